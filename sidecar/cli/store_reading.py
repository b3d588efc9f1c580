"""How commands that compare files with the store reach it: options, variables, receipts, and the files in force."""

import argparse
import os
from collections.abc import Mapping
from typing import Final

from sidecar.cli.authority_store import control_faults, in_transaction, store_path
from sidecar.cli.common import Exit, Fault
from sidecar.config import named
from sidecar.publish import Unpublished
from sidecar.publish.target import DATA, DIRECTORY, look
from sidecar.stores.control_db import Tx
from sidecar.stores.references import References, last_deliveries, references
from sidecar.variables import PROVIDING

ROOT: Final = f"{PROVIDING}ROOT_DIRECTORY"
SQLITE_RECEIPTS: Final = "receipts"
POSTGRES_RECEIPTS: Final = "secret_sidecar.receipts"


def add_store_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the store; without them the variables of serve do."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--file", metavar="STORE", help="the store file; without it the variables of serve name it")
    where.add_argument(
        "--admin-url-file",
        metavar="F",
        help="file of mode 0600 with a URL: read PostgreSQL, receipts too, as its login",
    )


def root_of(args: argparse.Namespace) -> str:
    """Return the root's path: the argument, or what the variable of serve names. Raises Fault(CONFIGURATION)."""
    root = args.root or named(ROOT)
    if not root:
        raise Fault(Exit.CONFIGURATION, "No root is named.", f"Give ROOT, or set {ROOT}.")
    return os.path.abspath(root)


def read_references(args: argparse.Namespace) -> tuple[References, dict[str, int] | None, int]:
    """Return what the store names, each file's last delivery, and the store's time in ms.

    The deliveries are None where receipts cannot be read: there are none, or PostgreSQL without --admin-url-file.
    Raises Fault.
    """

    async def step(tx: Tx) -> tuple[References, dict[str, int] | None, int]:
        table = await receipts_table(tx, args)
        deliveries = None if table is None else await last_deliveries(tx, table)
        return await references(tx), deliveries, await tx.now_ms()

    with control_faults():
        return in_transaction(args, step, write=False)


async def receipts_table(tx: Tx, args: argparse.Namespace) -> str | None:
    """Return the name of the receipts table where it is there and this login may read it."""
    if store_path(args) is not None:
        there = await tx.fetch("SELECT 1 FROM sqlite_schema WHERE name = ?", SQLITE_RECEIPTS)
        return SQLITE_RECEIPTS if there else None
    if args.admin_url_file is None:
        return None
    (row,) = await tx.fetch("SELECT CAST(to_regclass(?) AS text)", POSTGRES_RECEIPTS)
    return None if row[0] is None else POSTGRES_RECEIPTS


def files_in_force(root: str) -> Mapping[str, int]:
    """Return the files of a root that serve would look at, and when each was written (ms since 1970). Raises Fault."""
    try:
        descriptor = os.open(root, DIRECTORY)
        try:
            state = look(descriptor)
        finally:
            os.close(descriptor)
        folder = root if state.generation is None else f"{root}/{DATA}"
        return {name: os.stat(f"{folder}/{name}").st_mtime_ns // 1_000_000 for name in state.names}
    except OSError as error:
        wrong = f"The root cannot be read ({error.strerror})."
        raise Fault(Exit.BAD_INPUT, wrong, "See `secret-sidecar doctor ROOT`.") from None
    except Unpublished:
        raise Fault(
            Exit.BAD_INPUT, "The root's `..data` is no link beside it.", "See `secret-sidecar doctor`."
        ) from None
