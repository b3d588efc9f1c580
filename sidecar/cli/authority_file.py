"""Actions on the store itself: `init` and `migrate`."""

import argparse
import asyncio
import os
from typing import TYPE_CHECKING

from sidecar.cli.authority_store import Actions, add_action, database, store_path
from sidecar.cli.common import Exit
from sidecar.stores.postgres_schema import SCHEMA, role_script
from sidecar.stores.sqlite_control import SqliteControl
from sidecar.stores.sqlite_make import create, migrate
from sidecar.stores.sqlite_schema import VERSION

if TYPE_CHECKING:
    from sidecar.stores.postgres_make import Made


def configure(actions: Actions) -> None:
    """Describe the actions."""
    init = add_action(
        actions,
        "init",
        _init,
        summary="make a new store, or add what is asked for to it",
        example="init --file store.db",
    )
    init.add_argument("--receipts", action="store_true", help="make the table of receipts too, also in a store that is")
    init.add_argument(
        "--print-role", action="store_true", help="print the script of PostgreSQL's role instead; touches no store"
    )
    add_action(
        actions,
        "migrate",
        _migrate,
        summary="bring a store of an older version forward, a file after a backup copy; stop the sidecar first",
        example="migrate --file store.db",
    )


def _init(args: argparse.Namespace) -> int:
    if args.print_role:
        print(role_script(receipts=args.receipts), end="")
        return Exit.DONE
    path = store_path(args)
    if path is None:
        return _init_database(args)
    if not os.path.lexists(path):
        create(path, receipts=args.receipts)
        print(f"made a store of version {VERSION}{' with receipts' if args.receipts else ''}")
        return Exit.DONE
    with SqliteControl(path) as store:
        added = args.receipts and store.add_receipts()
    print("the store is there already" + ("; made the table of receipts" if added else "; nothing was changed"))
    return Exit.DONE


def _init_database(args: argparse.Namespace) -> int:
    from sidecar.stores.postgres_control import PostgresControl
    from sidecar.stores.postgres_make import initialise

    async def main() -> "Made":
        async with PostgresControl(database(args)) as control:
            return await initialise(control, receipts=args.receipts)

    made = asyncio.run(main())
    parts = [f"made the schema {SCHEMA}"] if made.tables else []
    parts += ["made the table of receipts"] if made.receipts else []
    print("; ".join(parts) or "everything is there already; nothing was changed")
    if parts:
        more = " --receipts" if args.receipts else ""
        print(f"now set the role's rights: secret-sidecar authority init --print-role{more}")
    return Exit.DONE


def _migrate(args: argparse.Namespace) -> int:
    path = store_path(args)
    if path is None:
        return _migrate_database(args)
    done = migrate(path)
    if done is None:
        print(f"the store has version {VERSION} already; nothing was changed")
    else:
        before, copy = done
        print(f"migrated from version {before} to {VERSION}; the store as it was: {copy}")
    return Exit.DONE


def _migrate_database(args: argparse.Namespace) -> int:
    from sidecar.stores import postgres_make, postgres_schema
    from sidecar.stores.postgres_control import PostgresControl

    async def main() -> int | None:
        async with PostgresControl(database(args)) as control:
            return await postgres_make.migrate(control)

    before = asyncio.run(main())
    now = postgres_schema.VERSION
    print(
        f"the schema has version {now} already; nothing was changed"
        if before is None
        else f"migrated from version {before} to {now}"
    )
    return Exit.DONE
