"""`secret-sidecar receipts`: which value went to whom, told by comparing marks (contract 6, step 8)."""

import argparse
import asyncio
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from provider.refs import InvalidRef, SecretRef
from sidecar.cli.authority_store import control_faults, database, in_transaction, moment, store_path
from sidecar.cli.common import Exit, Fault, duration_ms, lines, print_table
from sidecar.cli.reports import report
from sidecar.cli.store_reading import POSTGRES_RECEIPTS, ROOT, SQLITE_RECEIPTS, add_store_options, receipts_table
from sidecar.config import ConfigFaults, named, peppers_from_environment
from sidecar.findings import counted
from sidecar.receipts import COLUMNS, Marks, Receipt, holders
from sidecar.stores.control_db import Row, Tx
from sidecar.stores.sqlite_control import SqliteControl

BATCH_ROWS: Final = 1000
"""Rows deleted in one transaction, which deliveries wait for."""
_PAUSE_S: Final = 0.01


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the two actions."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    shown = actions.add_parser("list", help="show receipts, and who has the value that is mounted now")
    shown.add_argument("--ref", metavar="REF", help="only receipts of this ref")
    shown.add_argument("--worker", metavar="W", help="only receipts of this worker")
    shown.add_argument(
        "--since", type=_since_ms, default=0, metavar="T", help="from then on: 7d, or 2026-11-30T12:00:00Z"
    )
    shown.add_argument("--root", metavar="ROOT", help="the mounted files to compare with (default: serve's variable)")
    shown.epilog = "example:\n  secret-sidecar receipts list --ref REF --root /srv/secrets --file store.db"
    prune = actions.add_parser("prune", help="delete old receipts, while the sidecar serves")
    prune.add_argument("--older-than", type=duration_ms, required=True, metavar="90d", help="age from which rows go")
    prune.epilog = "example:\n  secret-sidecar receipts prune --older-than 90d --file store.db"
    for action in (shown, prune):
        add_store_options(action)
        action.add_argument("--json", action="store_true", help="print one JSON document instead of lines")
    parser.epilog = lines(
        (
            "now: the worker was given the value that is mounted; before: another value; unknown: nobody can tell.",
            "Marks are compared under the peppers that serve's variables name, the present and the previous one.",
            "A mark made under neither is never taken for another value: the row's id tells which pepper it was.",
            "",
            "example:",
            "  secret-sidecar receipts list --since 7d --file store.db",
        )
    )


def run(args: argparse.Namespace) -> int:
    """Do the action."""
    with control_faults():
        return _list(args) if args.action == "list" else _prune(args)


def _since_ms(text: str) -> int:
    try:
        return time.time_ns() // 1_000_000 - duration_ms(text)
    except argparse.ArgumentTypeError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError("a duration as 7d, or a time as 2026-11-30T12:00:00Z") from None
    if at.tzinfo is None:
        raise argparse.ArgumentTypeError("a time needs its zone, for example Z")
    return int(at.timestamp() * 1000)


def _list(args: argparse.Namespace) -> int:
    asked = {"file_name": None if args.ref is None else _file_name(args.ref), "worker_id": args.worker}
    given = {name: value for name, value in asked.items() if value is not None}
    which = "".join(f" AND {name} = ?" for name in given)

    async def step(tx: Tx) -> list[Row]:
        table = await receipts_table(tx, args)
        if table is None:
            raise _no_receipts(args)
        statement = (
            f"SELECT {COLUMNS} FROM {table} WHERE occurred_at_ms >= ?{which} ORDER BY occurred_at_ms, receipt_id"  # noqa: S608 - of constants
        )
        return await tx.fetch(statement, args.since, *given.values())

    rows = [Receipt(*map(str, row[:5]), *row[5:]) for row in in_transaction(args, step, write=False)]
    marks = _marks(args)
    chosen = [(one, marks.value(one)) for one in rows]
    workers = holders(chosen)
    if args.json:
        shown = [one.document() | {"value": value} for one, value in chosen]
        return report("receipts list", [], {"receipts": shown, "workers": workers, **counted([])}, as_json=True)
    _tell(chosen, workers)
    return Exit.DONE


def _tell(chosen: Iterable[tuple[Receipt, str]], workers: list[dict[str, str]]) -> None:
    table = [(moment(one.at_ms), one.kind, one.worker_id, one.file_name, value) for one, value in chosen]
    if table:
        print_table(table, ("TIME", "KIND", "WORKER", "FILE", "VALUE"))
        print_table([("holds", one["value"], one["workerId"], one["fileName"]) for one in workers])


def _file_name(text: str) -> str:
    try:
        return SecretRef.parse(text).file_name
    except InvalidRef:
        mend = "Make it with `secret-sidecar ref encode`."
        raise Fault(Exit.BAD_INPUT, "This is not a canonical SecretRef.", mend) from None


def _no_receipts(args: argparse.Namespace) -> Fault:
    if args.admin_url_file is None and store_path(args) is None:
        mend = "Give --admin-url-file F: the login of serve may not read receipts."
        return Fault(Exit.CONFIGURATION, "Receipts of PostgreSQL are read with the URL of their owner.", mend)
    return Fault(
        Exit.CONFIGURATION,
        "The store has no receipts.",
        "Make their table with `secret-sidecar authority init --receipts`.",
    )


def _marks(args: argparse.Namespace) -> Marks:
    """Return what marks are compared with; without a root or a pepper every value is unknown."""
    try:
        peppers = peppers_from_environment()
    except ConfigFaults:
        return Marks((), None)
    keys = [pepper.receipt_key() for pepper in (peppers.current, peppers.previous) if pepper is not None]
    return Marks(keys, args.root or named(ROOT))


def _prune(args: argparse.Namespace) -> int:
    deleted = asyncio.run(_prune_file(args) if store_path(args) is not None else _prune_database(args))
    if not args.json:
        print(f"deleted {deleted} receipts")
    return report("receipts prune", [], {"deleted": deleted, **counted([])}, as_json=args.json)


def _statement(table: str) -> str:
    old = f"SELECT receipt_id FROM {table} WHERE occurred_at_ms < ? LIMIT {BATCH_ROWS}"  # noqa: S608 - of constants
    return f"DELETE FROM {table} WHERE receipt_id IN ({old})"  # noqa: S608 - of constants


async def _prune_file(args: argparse.Namespace) -> int:
    deleted = 0
    with SqliteControl(str(store_path(args))) as control:
        while True:
            async with control.transaction() as tx:
                if await receipts_table(tx, args) is None:
                    raise _no_receipts(args)
                before = await tx.now_ms() - args.older_than
                batch = await tx.execute(_statement(SQLITE_RECEIPTS), before)
            if not batch:
                return deleted
            deleted += batch
            await asyncio.sleep(_PAUSE_S)


async def _prune_database(args: argparse.Namespace) -> int:
    """Delete in turns of its own: the receipts are ours beside QL3's schema too."""
    from sidecar.stores.postgres_control import PostgresControl, PostgresTx

    deleted = 0
    async with PostgresControl(database(args)) as control:
        while True:
            async with control.turn():
                tx = PostgresTx(control.connection)
                if await receipts_table(tx, args) is None:
                    raise _no_receipts(args)
                before = await tx.now_ms() - args.older_than
                batch = await tx.execute(_statement(POSTGRES_RECEIPTS), before)
            if not batch:
                return deleted
            deleted += batch
