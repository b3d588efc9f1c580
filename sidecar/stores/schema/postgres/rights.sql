-- What the role that is logged in may do in the schemas ql3 and secret_sidecar, and what it is. One statement, so that a
-- new connection costs one round trip and sees one moment. Every name is qualified: no search path that somebody gave
-- the role decides what is judged. Only rights of the role itself and of PUBLIC are listed: whatever it would inherit
-- is a membership, which stands here too.
WITH me AS (
    SELECT r.*, pg_catalog.quote_ident(r.rolname) AS role
    FROM pg_catalog.pg_roles AS r
    WHERE r.rolname = SESSION_USER
), spaces AS (
    SELECT n.* FROM pg_catalog.pg_namespace AS n WHERE n.nspname IN ('ql3', 'secret_sidecar')
), relations AS (
    SELECT c.*, s.nspname, pg_catalog.quote_ident(s.nspname) || '.' || pg_catalog.quote_ident(c.relname) AS quoted
    FROM pg_catalog.pg_class AS c
        JOIN spaces AS s ON s.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
), lists AS (
    -- No list of a relation means what is usual, where the owner alone holds anything.
    SELECT 'right' AS kind, quoted AS object, NULL::pg_catalog.name AS part, relkind, relowner AS owner,
        coalesce(relacl, pg_catalog.acldefault('r', relowner)) AS acl
    FROM relations
    UNION ALL
    SELECT 'right', r.quoted, a.attname, r.relkind, r.relowner, a.attacl
    FROM relations AS r
        JOIN pg_catalog.pg_attribute AS a ON a.attrelid = r.oid
    WHERE a.attacl IS NOT NULL
    UNION ALL
    SELECT 'create', 'SCHEMA ' || pg_catalog.quote_ident(nspname), NULL, NULL, nspowner, nspacl FROM spaces
    UNION ALL
    SELECT 'create', 'DATABASE ' || pg_catalog.quote_ident(datname), NULL, NULL, datdba, datacl
    FROM pg_catalog.pg_database
    WHERE datname = pg_catalog.current_database()
), granted AS (
    SELECT l.*, a.privilege_type AS held,
        CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE me.role END AS holder,
        CASE WHEN a.grantor <> l.owner THEN pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantor)) END AS grantor
    FROM me, lists AS l, LATERAL pg_catalog.aclexplode(l.acl) AS a
    WHERE a.grantee IN (0, me.oid)
)
SELECT 'role' AS kind, me.role AS object, NULL AS part, NULL AS held, NULL AS holder, NULL AS grantor, false AS own
FROM me
UNION ALL
SELECT 'table', r.quoted, NULL, NULL, NULL, NULL, false FROM relations AS r WHERE r.relkind <> 'S'
UNION ALL
SELECT 'usage', s.nspname, NULL, NULL, NULL, NULL, false
FROM spaces AS s, me
WHERE pg_catalog.has_schema_privilege(me.oid, s.oid, 'USAGE')
UNION ALL
SELECT CASE WHEN g.relkind = 'S' THEN 'sequence' ELSE 'right' END, g.object, pg_catalog.quote_ident(g.part), g.held,
    g.holder, g.grantor, g.owner = me.oid
FROM granted AS g, me
WHERE g.kind = 'right' AND (g.relkind <> 'S' OR g.held <> 'USAGE')
UNION ALL
SELECT 'create', g.object, NULL, g.held, g.holder, g.grantor, g.owner = me.oid
FROM granted AS g, me
WHERE g.kind = 'create' AND g.held = 'CREATE'
UNION ALL
SELECT 'owner', CASE r.relkind WHEN 'S' THEN 'SEQUENCE ' WHEN 'v' THEN 'VIEW ' WHEN 'm' THEN 'MATERIALIZED VIEW '
    WHEN 'f' THEN 'FOREIGN TABLE ' ELSE 'TABLE ' END || r.quoted, NULL, NULL, NULL, NULL, true
FROM relations AS r, me
WHERE r.relowner = me.oid
UNION ALL
SELECT 'owner', 'ROUTINE ' || pg_catalog.quote_ident(s.nspname) || '.' || pg_catalog.quote_ident(p.proname) || '('
    || pg_catalog.pg_get_function_identity_arguments(p.oid) || ')', NULL, NULL, NULL, NULL, true
FROM pg_catalog.pg_proc AS p
    JOIN spaces AS s ON s.oid = p.pronamespace, me
WHERE p.proowner = me.oid
UNION ALL
SELECT 'owner', 'TYPE ' || pg_catalog.quote_ident(s.nspname) || '.' || pg_catalog.quote_ident(t.typname), NULL, NULL, NULL, NULL, true
FROM pg_catalog.pg_type AS t
    JOIN spaces AS s ON s.oid = t.typnamespace, me
WHERE t.typowner = me.oid AND t.typrelid = 0 AND t.typelem = 0
UNION ALL
SELECT 'owner', 'SCHEMA ' || pg_catalog.quote_ident(s.nspname), NULL, NULL, NULL, NULL, true
FROM spaces AS s, me
WHERE s.nspowner = me.oid
UNION ALL
SELECT 'owner', 'DATABASE ' || pg_catalog.quote_ident(d.datname), NULL, NULL, NULL, NULL, true
FROM pg_catalog.pg_database AS d, me
WHERE d.datname = pg_catalog.current_database() AND d.datdba = me.oid
UNION ALL
SELECT 'member', pg_catalog.quote_ident(g.rolname), NULL, NULL, NULL, pg_catalog.quote_ident(b.rolname), false
FROM pg_catalog.pg_auth_members AS m
    JOIN pg_catalog.pg_roles AS g ON g.oid = m.roleid
    LEFT JOIN pg_catalog.pg_roles AS b ON b.oid = m.grantor, me
WHERE m.member = me.oid
UNION ALL
SELECT 'attribute', a.word, NULL, NULL, NULL, NULL, false
FROM me, LATERAL (VALUES ('SUPERUSER', me.rolsuper), ('BYPASSRLS', me.rolbypassrls), ('CREATEDB', me.rolcreatedb),
    ('CREATEROLE', me.rolcreaterole), ('REPLICATION', me.rolreplication)) AS a (word, held)
WHERE a.held
