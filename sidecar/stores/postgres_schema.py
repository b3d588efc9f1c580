"""The PostgreSQL schema: names, numbered migrations for a database without QL3, the table of receipts, and the role."""

from pathlib import Path
from typing import Final

SCHEMA: Final = "ql3"
"""Schema of the seven tables: QL3's own, or made by our migrations."""
RECEIPTS_SCHEMA: Final = "secret_sidecar"
"""Schema of the receipts alone, ours in any database."""
ROLE: Final = "ql3_secret_sidecar"
"""The role that `serve` logs in as."""
AUTHORITY_TABLES: Final = (
    "runs",
    "run_attempts",
    "run_dispatch_leases",
    "worker_sessions",
    "task_execution_revisions",
    "worker_credentials",
)
"""The six tables that are read for a request."""
AUDIT_TABLE: Final = "security_audit_events"
RECEIPTS_TABLE: Final = "receipts"
MARKER_TABLE: Final = "secret_sidecar_schema"
"""Stands in the schema `ql3` where our migrations made it: one row, the version. QL3 has no such table."""

_FOLDER: Final = Path(__file__).parent / "schema" / "postgres"
MIGRATIONS: Final = tuple(path.read_text("utf-8") for path in sorted(_FOLDER.glob("[0-9]*.sql")))
"""The numbered migrations; applying all of them makes the current version."""
VERSION: Final = len(MIGRATIONS)
"""The version of the schema that this program writes."""
RECEIPTS: Final = (_FOLDER / "receipts.sql").read_text("utf-8")

RIGHTS_QUERY: Final = (_FOLDER / "rights.sql").read_text("utf-8")
"""What `postgres_rights` judges."""

_MARKER: Final = (_FOLDER / "marker.sql").read_text("utf-8")


def migration_script(after: int) -> str:
    """Return the statements that bring a schema of version `after` (0: none) to the current one, marker included.

    To be run inside one transaction.
    """
    parts = [*([] if after else [_MARKER]), *MIGRATIONS[after:]]
    return "\n".join(parts) + f"\nUPDATE {SCHEMA}.{MARKER_TABLE} SET version = {VERSION};\n"


def role_script(*, receipts: bool) -> str:
    """Return the script that makes the role and sets its rights, no more and no less (contract 6). Runs any number of
    times; it stops half way for nobody, since it is one transaction.
    """
    parts = ["role.sql", "role_receipts.sql"] if receipts else ["role.sql"]
    return "".join((_FOLDER / part).read_text("utf-8") for part in parts) + "\nCOMMIT;\n"
