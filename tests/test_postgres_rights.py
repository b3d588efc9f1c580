"""The role's rights: the script gives what the contract wants and no more, and every right beside that is found."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from sidecar.devpostgres import binaries
from sidecar.stores.postgres_rights import RightsFault, RightsFaultKind, judge
from sidecar.stores.postgres_schema import AUDIT_TABLE, AUTHORITY_TABLES, MARKER_TABLE, ROLE, role_script
from tests.kit.postgres import OWNER, Database, Postgres

TABLES = [*(f"ql3.{table}" for table in (*AUTHORITY_TABLES, AUDIT_TABLE, MARKER_TABLE)), "secret_sidecar.receipts"]
READABLE = {f"ql3.{table}" for table in AUTHORITY_TABLES}
WRITABLE = {f"ql3.{AUDIT_TABLE}", "secret_sidecar.receipts"}
UUID = "018f0000-0000-7000-8000-000000000001"
ROWS = {
    f"ql3.{AUDIT_TABLE}": "(event_id, request_id, operation_id, outcome, reasons, occurred_at_ms)"
    f" VALUES ('{UUID}', 'r', 'worker.secrets', 'authentication_rejected', '[\"authentication_rejected\"]', 1)",
    "secret_sidecar.receipts": f"VALUES ('{UUID}', 'released', '{UUID}', 'w', 'c', 1,"
    " repeat('0', 64), repeat('0', 64), 1)",
}


def judged(database: Database, *, receipts: bool = True) -> tuple[RightsFault, ...]:
    """Judge the role in a database."""
    return database.run(lambda connection: judge(connection, receipts=receipts), database.role_url)


@pytest.fixture
def restored(server: Postgres) -> Iterator[None]:
    """Take back at the end what a test gave the role beyond one database."""
    server.psql("CREATE ROLE bystander")
    yield
    server.psql(f"ALTER ROLE {ROLE} NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE NOREPLICATION")
    server.psql(f"REVOKE bystander, pg_read_all_data FROM {ROLE}; DROP ROLE bystander")


def test_the_script_leaves_no_fault(database: Database) -> None:
    """After the script, with or without receipts, nothing is missing and nothing is too much."""
    assert judged(database) == ()
    assert judged(database, receipts=False) == ()


def test_the_script_without_receipts_takes_them_back(database: Database) -> None:
    """INSERT on the receipts is there only when it was asked for; the script may be run again either way."""
    database.psql(role_script(receipts=False))
    assert judged(database, receipts=False) == ()
    (usage, right) = judged(database)
    assert usage.mend == f"GRANT USAGE ON SCHEMA secret_sidecar TO {ROLE};"
    assert right.mend == f"GRANT INSERT ON secret_sidecar.receipts TO {ROLE};"
    for _ in range(2):
        database.psql(role_script(receipts=True))
    assert judged(database) == ()


@pytest.mark.parametrize("table", TABLES)
def test_what_the_role_may_do_and_what_it_may_not(database: Database, table: str) -> None:
    """Every statement on every table is tried: the six are read, two take rows, and all else is refused."""
    tried = {
        "SELECT": f"SELECT 1 FROM {table}",
        "INSERT": f"INSERT INTO {table} {ROWS.get(table, 'DEFAULT VALUES')}",
        "UPDATE": f"UPDATE {table} SET {first_column(database, table)} = NULL",
        "DELETE": f"DELETE FROM {table}",
        "TRUNCATE": f"TRUNCATE {table}",
        "LOCK": f"LOCK TABLE {table} IN EXCLUSIVE MODE",
        "FOR UPDATE": f"SELECT 1 FROM {table} FOR UPDATE",
        "TRIGGER": f"CREATE TRIGGER t BEFORE INSERT ON {table} EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "INDEX": f"CREATE INDEX ON {table} ((1))",
        "ALTER": f"ALTER TABLE {table} ADD COLUMN more text",
        "DROP": f"DROP TABLE {table}",
        "COPY": f"COPY {table} TO STDOUT",
    }
    allowed = {name for name, statement in tried.items() if succeeds(database, statement)}
    may = {"SELECT", "COPY"} if table in READABLE else {"INSERT"} if table in WRITABLE else set()
    assert allowed == may


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE ql3.more ()",
        "CREATE TABLE secret_sidecar.more ()",
        "CREATE FUNCTION ql3.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE SCHEMA more",
        "CREATE ROLE more",
        "CREATE DATABASE more",
        f"SET ROLE {OWNER}",
        f"ALTER ROLE {ROLE} SUPERUSER",
        f"ALTER ROLE {OWNER} PASSWORD 'x'",
        "DROP SCHEMA ql3 CASCADE",
        "ALTER SCHEMA secret_sidecar RENAME TO other",
        "COPY (SELECT 1) TO PROGRAM 'true'",
        "SELECT pg_read_file('PG_VERSION')",
        "SELECT * FROM pg_authid",
        "SELECT pg_reload_conf()",
    ],
)
def test_nothing_else_is_allowed(database: Database, statement: str) -> None:
    """What makes, changes, takes over or looks elsewhere is refused."""
    assert not succeeds(database, statement)


def test_no_right_is_passed_on(database: Database) -> None:
    """A GRANT by the role, which PostgreSQL answers with a warning where it holds the right itself, gives nothing."""
    before = database.psql("SELECT relname, relacl FROM pg_class WHERE relacl IS NOT NULL ORDER BY 1")
    grants = "; ".join(f"GRANT SELECT ON {table} TO PUBLIC" for table in sorted(READABLE))
    database.run(lambda connection: connection.execute(grants), database.role_url)
    assert database.psql("SELECT relname, relacl FROM pg_class WHERE relacl IS NOT NULL ORDER BY 1") == before


def first_column(database: Database, table: str) -> str:
    """Return the name of a table's first column."""
    return database.psql(f"SELECT attname FROM pg_attribute WHERE attrelid = '{table}'::regclass AND attnum = 1")


def succeeds(database: Database, statement: str) -> bool:
    """Tell whether the role may run a statement; whatever it did is rolled back. Any error but a refusal is raised."""

    async def run(connection: Any) -> None:
        # Not for everything there is a transaction; those that want none are refused before.
        if statement.startswith("CREATE DATABASE"):
            await connection.execute(statement)
            return
        if statement.startswith("COPY ql3"):
            await connection.copy_from_query(f"SELECT * FROM {statement.split()[1]}", output="/dev/null")
            return
        transaction = connection.transaction()
        await transaction.start()
        try:
            await connection.execute(statement)
        finally:
            await transaction.rollback()

    try:
        database.run(run, database.role_url)
    except asyncpg.InsufficientPrivilegeError:
        return False
    return True


@dataclass(frozen=True)
class Extra:
    """A right too much: how it comes about, and the statement that mends it."""

    give: str
    kind: RightsFaultKind
    mend: str

    def __str__(self) -> str:
        """Name the test."""
        return self.give


MUCH, CREATE, OWNS = RightsFaultKind.RIGHT_TOO_MUCH, RightsFaultKind.MAY_CREATE, RightsFaultKind.OWNER
MEMBER, ATTRIBUTE = RightsFaultKind.MEMBER, RightsFaultKind.ATTRIBUTE
_RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")
EXTRAS = [
    *(
        Extra(f"GRANT {right} ON {table} TO {holder}", MUCH, f"REVOKE {right} ON {table} FROM {holder};")
        for table in TABLES
        for right in _RIGHTS
        for holder in ((ROLE, "PUBLIC") if right in ("SELECT", "DELETE") else (ROLE,))
        if (right, table in READABLE, table in WRITABLE) not in (("SELECT", True, False), ("INSERT", False, True))
    ),
    *(
        Extra(
            f"GRANT {right} ({column}) ON {table} TO {ROLE}", MUCH, f"REVOKE {right} ({column}) ON {table} FROM {ROLE};"
        )
        for table, right, column in (
            ("ql3.runs", "UPDATE", "status"),
            ("ql3.run_attempts", "INSERT", "id"),
            ("ql3.worker_sessions", "REFERENCES", "worker_id"),
            ("ql3.security_audit_events", "SELECT", "subject_id"),
            ("secret_sidecar.receipts", "SELECT", "mark"),
        )
    ),
    Extra(
        f'CREATE VIEW ql3."A view" AS SELECT 1 AS one; GRANT SELECT ON ql3."A view" TO {ROLE}',
        MUCH,
        f'REVOKE SELECT ON ql3."A view" FROM {ROLE};',
    ),
    Extra(
        f"CREATE SEQUENCE ql3.counter; GRANT UPDATE ON SEQUENCE ql3.counter TO {ROLE}",
        MUCH,
        f"REVOKE UPDATE ON SEQUENCE ql3.counter FROM {ROLE};",
    ),
    Extra(
        "GRANT USAGE ON SCHEMA ql3 TO giver; GRANT DELETE ON ql3.runs TO giver WITH GRANT OPTION;"
        f" SET ROLE giver; GRANT DELETE ON ql3.runs TO {ROLE}; RESET ROLE",
        MUCH,
        f"SET ROLE giver; REVOKE DELETE ON ql3.runs FROM {ROLE}; RESET ROLE;",
    ),
    *(
        Extra(f"GRANT CREATE ON {thing} TO {holder}", CREATE, f"REVOKE CREATE ON {thing} FROM {holder};")
        for thing in ("SCHEMA ql3", "SCHEMA secret_sidecar", "DATABASE :name")
        for holder in (ROLE, "PUBLIC")
    ),
    *(
        Extra(f"ALTER {thing} OWNER TO {ROLE}", OWNS, f"ALTER {thing} OWNER TO CURRENT_USER;")
        for thing in ("TABLE ql3.runs", "TABLE secret_sidecar.receipts", "SCHEMA ql3", "DATABASE :name")
    ),
    *(
        Extra(f"CREATE {thing}; ALTER {named} OWNER TO {ROLE}", OWNS, f"ALTER {named} OWNER TO CURRENT_USER;")
        for thing, named in (
            ("SEQUENCE ql3.s", "SEQUENCE ql3.s"),
            ("VIEW ql3.v AS SELECT 1", "VIEW ql3.v"),
            ("FUNCTION ql3.f(int) RETURNS int LANGUAGE sql AS 'SELECT 1'", "ROUTINE ql3.f(integer)"),
            ("DOMAIN ql3.d AS int", "TYPE ql3.d"),
        )
    ),
    Extra(f"GRANT bystander TO {ROLE}", MEMBER, f"REVOKE bystander FROM {ROLE} GRANTED BY postgres;"),
    Extra(f"GRANT pg_read_all_data TO {ROLE}", MEMBER, f"REVOKE pg_read_all_data FROM {ROLE} GRANTED BY postgres;"),
    *(
        Extra(f"ALTER ROLE {ROLE} {word}", ATTRIBUTE, f"ALTER ROLE {ROLE} NO{word};")
        for word in ("SUPERUSER", "BYPASSRLS", "CREATEDB", "CREATEROLE", "REPLICATION")
    ),
]


async def as_role(connection: Any) -> tuple[RightsFault, ...]:
    """Judge the role on a superuser's connection, inside its transaction."""
    await connection.execute(f"SET SESSION AUTHORIZATION {ROLE}")
    found = await judge(connection, receipts=True)
    await connection.execute("RESET SESSION AUTHORIZATION")
    return found


def test_each_right_too_much_is_found_and_mended(database: Database) -> None:
    """One extra right is one fault, and its own statement mends it."""
    find_each(database)


def others() -> dict[str, Path]:
    """Return the programs of the wheel's other version, and of the system's where there is one."""
    system = [Path(found).resolve().parent for found in [shutil.which("postgres")] if found]
    system += sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return {"wheel": binaries(16)} | {str(number): path for number, path in enumerate(system)}


@pytest.mark.soak
@pytest.mark.parametrize("version", ["wheel", "0"])
def test_rights_are_the_same_on_other_versions(version: str) -> None:
    """On PostgreSQL 16 and on the system's own the script leaves no fault, and each right too much is found."""
    programs = others().get(version)
    if programs is None:
        pytest.skip("this system has no PostgreSQL of its own")
    with Postgres(programs) as other, other.database() as database:
        assert judged(database) == ()
        find_each(database)
        database.psql(role_script(receipts=True))
        assert judged(database) == ()


def find_each(database: Database) -> None:
    """Give each right of the list, find it, mend it."""

    async def run(connection: Any) -> None:
        await connection.execute("SET search_path = public")
        for extra in EXTRAS:
            await connection.execute("BEGIN; CREATE ROLE bystander; CREATE ROLE giver")
            give, mend = (text.replace(":name", database.name) for text in (extra.give, extra.mend))
            await connection.execute(give)
            assert [(fault.kind, fault.mend) for fault in await as_role(connection)] == [(extra.kind, mend)], give
            await connection.execute(mend)
            left = await as_role(connection)
            if extra.kind is OWNS:
                # Who owned a table no longer holds what was granted before that.
                assert {fault.kind for fault in left} <= {RightsFaultKind.RIGHT_MISSING}
            else:
                assert left == (), give
            await connection.execute("ROLLBACK")

    database.run(run)


@pytest.mark.usefixtures("restored")
def test_the_script_takes_back_all_that_the_role_was_given(database: Database) -> None:
    """Run again, the script mends every fault of the role's own rights, memberships and attributes at once."""
    given = [extra for extra in EXTRAS if extra.kind is not OWNS and "PUBLIC" not in extra.give + extra.mend]
    given = [extra for extra in given if "giver" not in extra.give]
    database.psql(";\n".join(extra.give.replace(":name", database.name) for extra in given))
    assert len(judged(database)) == len(given) > 50
    database.psql(role_script(receipts=True))
    assert judged(database) == ()


@pytest.mark.parametrize("receipts", [False, True])
def test_each_right_missing_is_found_and_mended(database: Database, receipts: bool) -> None:
    """Without one of its rights the role has one fault, and its statement mends it; receipts count when they are on."""
    needed = [(table, "SELECT") for table in sorted(READABLE)] + [(table, "INSERT") for table in sorted(WRITABLE)]
    for table, right in needed:
        database.psql(f"REVOKE {right} ON {table} FROM {ROLE}")
        found = judged(database, receipts=receipts)
        if table == "secret_sidecar.receipts" and not receipts:
            assert found == ()
            continue
        (fault,) = found
        assert fault.kind is RightsFaultKind.RIGHT_MISSING
        assert fault.mend == f"GRANT {right} ON {table} TO {ROLE};"
        database.psql(fault.mend)
        assert judged(database, receipts=receipts) == ()


def test_a_right_on_some_columns_is_not_the_right(database: Database) -> None:
    """SELECT on a column stands for nothing: the table's own is missing."""
    database.psql(f"REVOKE SELECT ON ql3.runs FROM {ROLE}; GRANT SELECT (id, status) ON ql3.runs TO {ROLE}")
    (fault,) = judged(database)
    assert fault.mend == f"GRANT SELECT ON ql3.runs TO {ROLE};"


def test_a_missing_table_is_named(database: Database) -> None:
    """A table that is not there is said to be missing, not its right; with the schema all seven are."""
    database.psql("DROP TABLE ql3.runs")
    (fault,) = judged(database)
    assert fault.kind is RightsFaultKind.TABLE_MISSING
    assert "ql3.runs" in fault.wrong
    database.psql("DROP SCHEMA ql3 CASCADE")
    assert len(judged(database)) == 7
    database.psql("DROP SCHEMA secret_sidecar CASCADE")
    assert len(judged(database, receipts=False)) == 7
    assert "--receipts" in judged(database)[-1].mend


@pytest.mark.usefixtures("restored")
def test_all_faults_are_told_at_once(database: Database) -> None:
    """Missing, too much and what the role is come together, each with its own statement, and none twice."""
    give = "GRANT UPDATE ON ql3.runs TO ROLE; REVOKE SELECT ON ql3.run_attempts FROM ROLE; ALTER ROLE ROLE CREATEDB"
    database.psql(re.sub("(TO|FROM) ROLE|ROLE ROLE", lambda found: found[0][: -len("ROLE")] + ROLE, give))
    found = judged(database)
    assert {fault.kind for fault in found} == {RightsFaultKind.RIGHT_MISSING, MUCH, ATTRIBUTE}
    assert len(set(found)) == len(found) == 3
    database.psql("\n".join(fault.mend for fault in found))
    assert judged(database) == ()


def test_usage_connect_and_public_elsewhere_are_not_judged(database: Database) -> None:
    """Rights outside the two schemas, CONNECT, TEMPORARY, and USAGE on a schema or sequence are nobody's fault."""
    database.psql(
        "CREATE TABLE public.open (id int); GRANT ALL ON public.open TO PUBLIC; CREATE SEQUENCE ql3.numbers;"
        f" GRANT USAGE ON SEQUENCE ql3.numbers TO {ROLE}; GRANT USAGE ON SCHEMA ql3 TO PUBLIC;"
        f" GRANT TEMPORARY ON DATABASE {database.name} TO PUBLIC"
    )
    assert judged(database) == ()


def test_a_search_path_of_the_role_decides_nothing(server: Postgres, database: Database) -> None:
    """Tables that stand in for the catalogue on the role's search path are not looked at."""
    database.psql("CREATE SCHEMA evil; CREATE TABLE evil.pg_roles (rolname name); GRANT USAGE ON SCHEMA evil TO PUBLIC")
    database.psql("GRANT SELECT ON evil.pg_roles TO PUBLIC; GRANT UPDATE ON ql3.runs TO PUBLIC")

    async def run(connection: Any) -> tuple[RightsFault, ...]:
        await connection.execute("SET search_path = evil, pg_catalog")
        return await judge(connection, receipts=True)

    (fault,) = database.run(run, database.role_url)
    assert fault.mend == "REVOKE UPDATE ON ql3.runs FROM PUBLIC;"


def test_a_role_that_another_login_puts_on_is_not_the_login(database: Database) -> None:
    """The login is judged, not what `SET ROLE` made of it: it could put that off again."""
    login = f"other_login_{database.name}"
    database.psql(f"CREATE ROLE {login} LOGIN PASSWORD 'x' IN ROLE {ROLE}; ALTER ROLE {login} SET role = {ROLE}")
    url = database.server.url(login, "x", database.name)
    found = database.run(lambda connection: judge(connection, receipts=True), url)
    database.psql(f"DROP ROLE {login}")
    assert RightsFaultKind.MEMBER in {fault.kind for fault in found}
