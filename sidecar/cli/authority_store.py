"""Which store an authority action works on, and how its faults are told to a person."""

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Final, TypeAlias, TypeVar

from sidecar.cli.common import Exit, Fault, lines, print_json, print_table
from sidecar.config import ConfigFaults, Postgres, Store, store_from_environment
from sidecar.secret_file import SecretFileFault, read_secret_file
from sidecar.stores.control import ControlDb, ControlRefused, PlanFaults, Tx, Wrong
from sidecar.stores.faults import StoreFault, StoreFaultKind
from sidecar.stores.sqlite_control import SqliteControl
from sidecar.variables import LOGIN

T = TypeVar("T")

Act: TypeAlias = Callable[[argparse.Namespace], int]
Actions: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
_AT_RUN_TIME: Final = (StoreFaultKind.LOCKED, StoreFaultKind.FULL, StoreFaultKind.UNREACHABLE)


def add_action(actions: Actions, name: str, act: Act, *, summary: str, example: str) -> argparse.ArgumentParser:
    """Add an action with the option that every one has; `example` follows the program's name in its help."""
    action = actions.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
    action.set_defaults(act=act)
    where = action.add_mutually_exclusive_group()
    where.add_argument("--file", metavar="STORE", help="the store file; without it the variables of serve name it")
    where.add_argument(
        "--admin-url-file", metavar="F", help="file of mode 0600 with a URL: write the PostgreSQL of those variables so"
    )
    action.epilog = lines(("example:", f"  secret-sidecar authority {example}"))
    return action


def store_path(args: argparse.Namespace) -> str | None:
    """Return the store file's path; None when the action is on PostgreSQL.

    Raises Fault(CONFIGURATION) when neither options nor environment name a store.
    """
    if args.admin_url_file is not None:
        return None
    return str(args.file) if args.file is not None else _of_environment().authority_file


def database(args: argparse.Namespace, *, write: bool = True) -> Postgres:
    """Return the PostgreSQL database of an action: as the admin URL's login, or, to read alone, as `serve`'s own.

    Raises Fault(CONFIGURATION): the admin URL is missing where it is needed, its file is bad, or the environment is.
    """
    url = None if args.admin_url_file is None else _admin_url(args.admin_url_file)
    postgres = _of_environment(url).postgres
    if postgres is None or (write and url is None):
        mend = "Give --admin-url-file F: a file of mode 0600 with the URL of the schema's owner."
        raise Fault(Exit.CONFIGURATION, "This action writes, which the login of serve may not.", mend)
    return postgres


def _of_environment(url: str | None = None) -> Store:
    try:
        return store_from_environment(admin_url=url)
    except ConfigFaults as faults:
        wrong = "Give --file STORE or --admin-url-file F, or mend the environment:"
        told = str(faults) if url is None else str(faults).replace(f"{LOGIN}URL", "--admin-url-file")
        raise Fault(Exit.CONFIGURATION, wrong, told) from None


def _admin_url(path: str) -> str:
    """Read the URL. It holds the password of whoever owns the schema, so the file is for its owner alone."""
    try:
        if os.stat(path).st_mode & 0o077:
            raise SecretFileFault("names a file that is open to others", "Set its mode to 0600.")
        return read_secret_file(path).decode()
    except OSError as error:
        wrong, mend = f"names a file that cannot be read ({error.strerror})", "Look at the path and this user's rights."
    except SecretFileFault as fault:
        wrong, mend = fault.wrong, fault.mend
    except UnicodeDecodeError:
        wrong, mend = "names a file that holds no URL", "Write the URL alone into it."
    raise Fault(Exit.CONFIGURATION, f"--admin-url-file {wrong}.", mend)


def in_transaction(args: argparse.Namespace, step: Callable[[Tx], Awaitable[T]], *, write: bool = True) -> T:
    """Run a step in a transaction of its own on the action's store, and return what it returns once it is committed."""

    async def main() -> T:
        async with _opened(args, write=write) as store, store.transaction(write=write) as tx:
            return await step(tx)

    return asyncio.run(main())


@asynccontextmanager
async def _opened(args: argparse.Namespace, *, write: bool) -> AsyncIterator[ControlDb]:
    path = store_path(args)
    if path is None:
        # Only here, so that the driver is imported by those alone who use PostgreSQL.
        from sidecar.stores.postgres_control import PostgresControl

        async with PostgresControl(database(args, write=write)) as control:
            yield control
    else:
        with SqliteControl(path) as store:
            yield store


def moment(at_ms: object) -> str:
    """Write a time of the store (ms) as UTC to the second; `-` for none, as it is for what is no time."""
    if at_ms is None:
        return "-"
    try:
        return (
            datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            if type(at_ms) is int
            else str(at_ms)
        )
    except (OverflowError, OSError, ValueError):
        return str(at_ms)


def report(args: argparse.Namespace, facts: dict[str, object]) -> int:
    """Print what an action made, aligned or with `--json` as one document; names that end in `AtMs` are times."""
    if args.json:
        print_json({"schemaVersion": 1} | facts)
    else:
        print_table([(name, moment(fact) if name.endswith("AtMs") else fact) for name, fact in facts.items()])
    return Exit.DONE


@contextmanager
def control_faults() -> Iterator[None]:
    """Tell what a store or a step of the control plane refused as a Fault."""
    try:
        yield
    except StoreFault as fault:
        code = Exit.FAILED if fault.kind in _AT_RUN_TIME else Exit.CONFIGURATION
        if fault.kind is StoreFaultKind.EXISTS:
            code = Exit.BAD_INPUT
        raise Fault(code, fault.wrong, fault.mend) from None
    except ControlRefused as refused:
        code = Exit.BAD_INPUT if refused.kind is Wrong.INPUT else Exit.FAILED
        raise Fault(code, refused.wrong, refused.mend) from None
    except PlanFaults as faults:
        listed = "".join(f"\n  {fault}" for fault in faults.faults)
        raise Fault(Exit.BAD_INPUT, "No task is made of this, and nothing was written.", f"Mend:{listed}") from None
