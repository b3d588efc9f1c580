"""Which store an authority action works on, and how its faults are told to a person."""

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, TypeAlias, TypeVar

from sidecar.cli.common import Exit, Fault, lines, print_json, print_table
from sidecar.config import ConfigFaults, store_from_environment
from sidecar.stores.control import ControlRefused, PlanFaults, Tx, Wrong
from sidecar.stores.faults import StoreFault, StoreFaultKind
from sidecar.stores.sqlite_control import SqliteControl

T = TypeVar("T")

Act: TypeAlias = Callable[[argparse.Namespace], int]
Actions: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
_AT_RUN_TIME: Final = (StoreFaultKind.LOCKED, StoreFaultKind.FULL)


def add_action(actions: Actions, name: str, act: Act, *, summary: str, example: str) -> argparse.ArgumentParser:
    """Add an action with the option that every one has; `example` follows the program's name in its help."""
    action = actions.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
    action.set_defaults(act=act)
    action.add_argument("--file", metavar="STORE", help="the store file; without it the variables of serve name it")
    action.epilog = lines(("example:", f"  secret-sidecar authority {example}"))
    return action


def store_path(args: argparse.Namespace) -> str:
    """Return the store file's path. Raises Fault(CONFIGURATION) when neither option nor environment names one."""
    if args.file is not None:
        return str(args.file)
    try:
        path = store_from_environment().authority_file
    except ConfigFaults as faults:
        raise Fault(Exit.CONFIGURATION, "Give --file STORE, or mend the environment:", str(faults)) from None
    if path is None:
        raise Fault(Exit.CONFIGURATION, "These actions keep a SQLite store only.", "Give --file STORE.")
    return path


def in_transaction(args: argparse.Namespace, step: Callable[[Tx], Awaitable[T]], *, write: bool = True) -> T:
    """Run a step in a transaction of its own on the action's store, and return what it returns once it is committed."""

    async def main(store: SqliteControl) -> T:
        async with store.transaction(write=write) as tx:
            return await step(tx)

    with SqliteControl(store_path(args)) as store:
        return asyncio.run(main(store))


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
