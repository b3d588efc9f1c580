"""The schema of the embedded store: its mark, its numbered migrations, and how they are applied."""

import sqlite3
from pathlib import Path
from typing import Final

APPLICATION_ID: Final = 0x51335353
"""Marks a file as this project's store: "Q3SS", at byte 68 of the file."""

_FOLDER: Final = Path(__file__).parent / "schema" / "sqlite"
MIGRATIONS: Final = tuple(path.read_text("utf-8") for path in sorted(_FOLDER.glob("[0-9]*.sql")))
"""The numbered migrations; applying all of them makes the current version."""
VERSION: Final = len(MIGRATIONS)
"""The version of the schema that this program reads and writes; `user_version` of the file."""
_RECEIPTS: Final = (_FOLDER / "receipts.sql").read_text("utf-8")

AUTHORITY_TABLES: Final = (
    "runs",
    "run_attempts",
    "run_dispatch_leases",
    "worker_sessions",
    "task_execution_revisions",
    "worker_credentials",
)
"""The six tables that are read for a request."""


def apply_after(connection: sqlite3.Connection, version: int) -> None:
    """Apply every migration after `version`, in the caller's transaction if one is open. Raises sqlite3.Error."""
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        _run(connection, script)
        connection.execute(f"PRAGMA user_version = {number}")


def add_receipts(connection: sqlite3.Connection) -> None:
    """Make the receipts table unless it is there (contract 6, step 8). Raises sqlite3.Error."""
    _run(connection, _RECEIPTS)


def _run(connection: sqlite3.Connection, script: str) -> None:
    """Run a script statement by statement; `executescript` would commit a transaction that is open."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""
