"""The PostgreSQL schema: what the migrations make, and `authority init`, `migrate` and `init --print-role` on it."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from sidecar.stores import postgres_schema
from sidecar.stores.postgres_schema import (
    AUDIT_TABLE,
    AUTHORITY_TABLES,
    MARKER_TABLE,
    MIGRATIONS,
    VERSION,
    migration_script,
    role_script,
)
from tests.kit.postgres import OWNER, Database, Postgres
from tests.kit.postgres_shell import Shell, shell_on

CONTRACT = {
    "run_attempts": "id! run_id status executor_type worker_id worker_session_id worker_generation lease_generation"
    " lease_version lease_token_digest offer_id",
    "runs": "id! project_id task_id task_revision status execution_owner cancel_requested_at_ms",
    "run_dispatch_leases": "attempt_id! run_id status version lease_generation worker_id worker_session_id"
    " worker_generation lease_token_digest offer_id expires_at_ms",
    "worker_sessions": "worker_id! session_id generation status lease_expires_at_ms",
    "task_execution_revisions": "project_id! task_id! source_revision! executor_type! task_revision"
    " source_content_digest plan_schema plan_json content_digest",
    "worker_credentials": "credential_id! version! worker_id secret_digest state not_before_at_ms expires_at_ms",
    "security_audit_events": "event_id! request_id operation_id outcome subject_type subject_id authentication_id"
    " reasons occurred_at_ms",
}
"""The columns of contract 6; `!` marks the primary key."""


def type_of(table: str, column: str) -> str:
    """Return the type that the contract gives a column."""
    ids = {("runs", "id"), ("run_attempts", "id"), (AUDIT_TABLE, "event_id")}
    if (table, column) in ids or column in ("run_id", "attempt_id", "session_id", "worker_session_id"):
        return "character varying(36)"
    if column in ("plan_json", "reasons"):
        return "jsonb"
    if column.endswith("_ms"):
        return "bigint"
    if column.endswith("_digest"):
        return "character(64)"
    if column in ("version", "lease_version", "source_revision") or column.endswith("generation"):
        return "integer"
    sizes = {
        ("runs", "task_id"): 255,
        ("runs", "task_revision"): 128,
        ("task_execution_revisions", "task_id"): 128,
        ("task_execution_revisions", "task_revision"): 96,
    }
    size = 128 if column in ("project_id", "worker_id", "offer_id") else sizes.get((table, column))
    return "text" if size is None else f"character varying({size})"


def test_the_tables_are_the_contracts(database: Database) -> None:
    """Tables, columns, primary keys, types and sizes are those of contract 6; what it leaves open is some text."""
    rows = database.execute(
        "SELECT c.relname::text, a.attname::text, format_type(a.atttypid, a.atttypmod),"
        " a.attnum = ANY (i.indkey) FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0"
        " LEFT JOIN pg_index AS i ON i.indrelid = c.oid AND i.indisprimary"
        " WHERE c.relnamespace = 'ql3'::regnamespace AND c.relkind = 'r' ORDER BY c.relname, a.attnum"
    )
    found: dict[str, list[str]] = {}
    for table, column, kind, key in rows:
        if table == MARKER_TABLE:
            continue
        found.setdefault(str(table), []).append(f"{column}{'!' if key else ''}")
        expected = type_of(str(table), str(column))
        assert kind == expected or (expected == "text" and str(kind).startswith("character varying(")), (table, column)
    assert found == {table: columns.split() for table, columns in CONTRACT.items()}
    assert set(found) == {*AUTHORITY_TABLES, AUDIT_TABLE}


def audit_row(outcome: str, subject: str | None, reasons: str) -> str:
    """Return a statement that inserts an audit row."""
    who = "NULL" if subject is None else f"'{subject}'"
    return (
        f"INSERT INTO {AUDIT_TABLE} VALUES (gen_random_uuid(), 'r', 'worker.secrets', '{outcome}', {who}, {who}, {who},"
        f" '{reasons}', 1)"
    )


@pytest.mark.parametrize(
    ("outcome", "subject", "reasons", "good"),
    [
        ("allowed", "worker", '["worker_credential"]', True),
        ("allowed", None, '["worker_credential"]', False),
        ("authentication_rejected", None, '["authentication_rejected"]', True),
        ("authentication_rejected", "worker", '["authentication_rejected"]', False),
        ("authentication_unavailable", None, '["authentication_unavailable"]', True),
        ("authentication_unavailable", None, "{}", False),
    ],
)
def test_an_audit_row_names_nobody_who_was_not_let_in(
    database: Database, outcome: str, subject: str | None, reasons: str, good: bool
) -> None:
    """As in QL3, the table itself refuses a subject beside a rejection, and a list of reasons that is none."""
    if good:
        database.execute(audit_row(outcome, subject, reasons))
    else:
        with pytest.raises(asyncpg.CheckViolationError):
            database.execute(audit_row(outcome, subject, reasons))


@pytest.fixture
def shell(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    """A shell on a database with the tables and the role's rights."""
    return shell_on(database, tmp_path, capsys, monkeypatch)


@pytest.fixture
def bare(
    server: Postgres, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shell]:
    """A shell on an empty database."""
    with server.database("empty") as made:
        yield shell_on(made, tmp_path, capsys, monkeypatch)


def tables(database: Database) -> list[str]:
    """Return the names of all tables of the two schemas."""
    return database.psql(
        "SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname IN ('ql3', 'secret_sidecar') ORDER BY 1"
    ).split()


OURS = sorted(f"ql3.{table}" for table in (*AUTHORITY_TABLES, AUDIT_TABLE, MARKER_TABLE))


def test_init_makes_what_is_missing_and_says_so(bare: Shell) -> None:
    """The first `init` makes the tables, the next nothing; `--receipts` adds theirs; each says what to run next."""
    assert "made the schema ql3" in bare.done("init")
    assert "authority init --print-role" in bare.out
    assert tables(bare.database) == OURS
    assert "nothing was changed" in bare.done("init")
    assert "made the table of receipts" in bare.done("init", "--receipts")
    assert "--print-role --receipts" in bare.out
    assert "nothing was changed" in bare.done("init", "--receipts")
    assert tables(bare.database) == [*OURS, "secret_sidecar.receipts"]


def test_init_uses_a_schema_that_is_empty(bare: Shell) -> None:
    """Where the owner may not make schemas, one that was made for them does."""
    bare.database.psql(f"CREATE SCHEMA ql3 AUTHORIZATION {OWNER}")
    bare.done("init")
    assert tables(bare.database) == OURS


def test_print_role_prints_the_script_and_asks_nobody(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script needs no database, no environment and no login; it sets no password and says how to."""
    for name in [name for name in os.environ if name.startswith("QL3_")]:
        monkeypatch.delenv(name)
    assert shell.done("init", "--print-role", admin=False) == role_script(receipts=False)
    assert "receipts TO" not in shell.out
    assert shell.done("init", "--print-role", "--receipts", admin=False) == role_script(receipts=True)
    assert "GRANT INSERT ON secret_sidecar.receipts" in shell.out
    assert "PASSWORD '" not in shell.out
    assert "\\password ql3_secret_sidecar" in shell.out


def test_migrate_goes_forward(bare: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older schema is refused by every action but `migrate`; a newer one by all."""
    with monkeypatch.context() as patch:
        patch.setattr(postgres_schema, "MIGRATIONS", MIGRATIONS[:1])
        patch.setattr(postgres_schema, "VERSION", 1)
        script = migration_script(0)
    bare.database.psql(f"SET ROLE {OWNER}; {script}")
    assert bare.run("drain", "worker") == 78
    assert "authority migrate" in bare.err
    assert bare.done("migrate") == f"migrated from version 1 to {VERSION}\n"
    assert "nothing was changed" in bare.done("migrate")
    bare.done("show")
    bare.database.psql(f"UPDATE ql3.{MARKER_TABLE} SET version = {VERSION + 1}")
    for action in (("migrate",), ("init",), ("drain", "worker")):
        assert bare.run(*action) == 78
        assert "newer" in bare.err


QL3S = f"SET ROLE {OWNER}; CREATE SCHEMA ql3; " + MIGRATIONS[0]
"""QL3's own schema: the tables, and no mark of ours."""


@pytest.mark.parametrize(
    "action",
    [
        ("init",),
        ("migrate",),
        ("enroll", "worker", "--token-file", "{}/new"),
        ("open-session", "worker"),
        ("drain", "worker"),
        ("revoke-credential", "worker"),
        ("cancel", "run"),
        ("release", "attempt"),
        ("audit", "prune", "--older-than", "1d"),
    ],
)
def test_the_schema_of_ql3_is_not_written(bare: Shell, action: tuple[str, ...]) -> None:
    """On a schema that our migrations did not make, every action that writes refuses with 78 and leaves nothing."""
    bare.database.psql(QL3S)
    before = tables(bare.database)
    assert bare.run(*(part.format(bare.folder) for part in action)) == 78
    assert "authority init" in bare.err
    assert tables(bare.database) == before
    assert not (bare.folder / "new").exists()


def test_beside_the_schema_of_ql3_only_receipts_are_made(bare: Shell) -> None:
    """`init --receipts` makes the schema secret_sidecar and its table there, and touches nothing of QL3's."""
    bare.database.psql(QL3S)
    before = tables(bare.database)
    assert "made the table of receipts" in bare.done("init", "--receipts")
    assert tables(bare.database) == [*before, "secret_sidecar.receipts"]
    assert "nothing was changed" in bare.done("init", "--receipts")
    assert json.loads(bare.done("show", "--json"))["workers"] == []


def test_an_empty_database_is_no_store(bare: Shell) -> None:
    """Writing asks for `init` first, reading says what is missing."""
    assert bare.run("drain", "worker") == 78
    assert "authority init" in bare.err
    assert bare.run("show") == 78
    assert "authority init" in bare.err
