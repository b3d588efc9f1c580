-- The role of secret-sidecar: it reads six tables, adds audit rows, and has no other right (contract 6).
-- Run it in the database of the schema ql3, as the owner of that schema or a superuser who may create roles:
--
--   psql -v ON_ERROR_STOP=1 -d DATABASE -f role.sql
--
-- It may be run again at any time and takes away whatever the role was given besides. It sets no password. Set one
-- with psql's own command, which sends it as a digest only, so that it is in no log and no history:
--
--   \password ql3_secret_sidecar

BEGIN;

DO $script$
DECLARE
    attribute text;
    other record;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'ql3_secret_sidecar') THEN
        CREATE ROLE ql3_secret_sidecar LOGIN;
    END IF;
    -- One by one and only where needed: some of these only a superuser may name at all.
    FOR attribute IN
        SELECT a.word
        FROM pg_catalog.pg_roles AS r,
            LATERAL (VALUES ('LOGIN', NOT r.rolcanlogin), ('NOSUPERUSER', r.rolsuper), ('NOBYPASSRLS', r.rolbypassrls),
                ('NOCREATEDB', r.rolcreatedb), ('NOCREATEROLE', r.rolcreaterole), ('NOREPLICATION', r.rolreplication)
            ) AS a (word, needed)
        WHERE r.rolname = 'ql3_secret_sidecar' AND a.needed
    LOOP
        EXECUTE 'ALTER ROLE ql3_secret_sidecar ' || attribute;
    END LOOP;
    FOR other IN
        SELECT g.rolname AS of_role, b.rolname AS by_role
        FROM pg_catalog.pg_auth_members AS m
            JOIN pg_catalog.pg_roles AS g ON g.oid = m.roleid
            JOIN pg_catalog.pg_roles AS b ON b.oid = m.grantor
            JOIN pg_catalog.pg_roles AS r ON r.oid = m.member
        WHERE r.rolname = 'ql3_secret_sidecar'
    LOOP
        EXECUTE format('REVOKE %I FROM ql3_secret_sidecar GRANTED BY %I', other.of_role, other.by_role);
    END LOOP;
    EXECUTE format('REVOKE ALL ON DATABASE %I FROM ql3_secret_sidecar', current_database());
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO ql3_secret_sidecar', current_database());
    IF EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'secret_sidecar') THEN
        REVOKE ALL ON ALL TABLES IN SCHEMA secret_sidecar FROM ql3_secret_sidecar;
        REVOKE ALL ON ALL SEQUENCES IN SCHEMA secret_sidecar FROM ql3_secret_sidecar;
        REVOKE ALL ON SCHEMA secret_sidecar FROM ql3_secret_sidecar;
    END IF;
END
$script$;

REVOKE ALL ON ALL TABLES IN SCHEMA ql3 FROM ql3_secret_sidecar;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA ql3 FROM ql3_secret_sidecar;
REVOKE ALL ON SCHEMA ql3 FROM ql3_secret_sidecar;
GRANT USAGE ON SCHEMA ql3 TO ql3_secret_sidecar;
GRANT SELECT ON
    ql3.runs,
    ql3.run_attempts,
    ql3.run_dispatch_leases,
    ql3.worker_sessions,
    ql3.task_execution_revisions,
    ql3.worker_credentials
TO ql3_secret_sidecar;
GRANT INSERT ON ql3.security_audit_events TO ql3_secret_sidecar;
