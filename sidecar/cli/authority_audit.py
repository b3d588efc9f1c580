"""The action `audit prune`: old audit rows go, in batches that requests wait for only milliseconds."""

import argparse
import asyncio
import sys
from typing import Final

from sidecar.cli.authority_store import Actions, add_action, database, store_path
from sidecar.cli.common import Exit, duration_ms
from sidecar.stores.sqlite_control import SqliteControl

_BAR: Final = 40


def configure(actions: Actions) -> None:
    """Describe the action."""
    audit = actions.add_parser("audit", help="keep the audit rows", description="Keep the audit rows.")
    audit.epilog = "example:\n  secret-sidecar authority audit prune --older-than 90d --file store.db"
    parts = audit.add_subparsers(dest="part", required=True, metavar="ACTION")
    prune = add_action(
        parts,
        "prune",
        _prune,
        summary="delete audit rows that are older than some time, while the sidecar serves",
        example="audit prune --older-than 90d --file store.db",
    )
    prune.add_argument("--older-than", type=duration_ms, required=True, metavar="90d", help="age from which on rows go")


def _prune(args: argparse.Namespace) -> int:
    path = store_path(args)
    if path is None:
        return _prune_database(args)
    deleted = 0
    with SqliteControl(path) as store:
        rows = store.audit_rows()
        for passed, batch in store.prune_audit(args.older_than):
            deleted += batch
            _show(passed, rows, deleted)
    if deleted:
        _show(rows, rows, deleted, end="\n")
    print(f"deleted {deleted} audit rows; the file keeps its size, the room is used again")
    return Exit.DONE


def _prune_database(args: argparse.Namespace) -> int:
    from sidecar.stores.postgres_control import PostgresControl

    async def main() -> int:
        async with PostgresControl(database(args)) as control:
            return sum([batch async for batch in control.prune_audit(args.older_than)])

    print(f"deleted {asyncio.run(main())} audit rows; PostgreSQL uses the room again after its next vacuum")
    return Exit.DONE


def _show(passed: int, rows: int, deleted: int, end: str = "") -> None:
    """Draw progress for a person at a terminal."""
    if sys.stderr.isatty():
        full = min(_BAR, _BAR * passed // max(rows, 1))
        print(f"\r[{'#' * full}{'.' * (_BAR - full)}] {deleted} deleted", end=end, file=sys.stderr, flush=True)
