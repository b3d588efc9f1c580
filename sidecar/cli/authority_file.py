"""Actions on the store file: `init` and `migrate`."""

import argparse
import os

from sidecar.cli.authority_store import Actions, add_action, store_path
from sidecar.cli.common import Exit
from sidecar.stores.sqlite_control import SqliteControl
from sidecar.stores.sqlite_make import create, migrate
from sidecar.stores.sqlite_schema import VERSION


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
    add_action(
        actions,
        "migrate",
        _migrate,
        summary="bring a store of an older version forward, after a backup copy beside it; stop the sidecar first",
        example="migrate --file store.db",
    )


def _init(args: argparse.Namespace) -> int:
    path = store_path(args)
    if not os.path.lexists(path):
        create(path, receipts=args.receipts)
        print(f"made a store of version {VERSION}{' with receipts' if args.receipts else ''}")
        return Exit.DONE
    with SqliteControl(path) as store:
        added = args.receipts and store.add_receipts()
    print("the store is there already" + ("; made the table of receipts" if added else "; nothing was changed"))
    return Exit.DONE


def _migrate(args: argparse.Namespace) -> int:
    done = migrate(store_path(args))
    if done is None:
        print(f"the store has version {VERSION} already; nothing was changed")
    else:
        before, copy = done
        print(f"migrated from version {before} to {VERSION}; the store as it was: {copy}")
    return Exit.DONE
