"""All failures, by the section of docs/failure-modes.md in which they stand."""

from typing import Final

from tests.mutants.failing_edge import IDENTITY, NETWORK
from tests.mutants.failing_inside import MATERIAL, PROCESS, WORKER
from tests.mutants.failing_store import AUTHORITY, POSTGRES, SQLITE
from tests.mutants.failure import Failure, Group

FAILURES: Final[dict[Group, tuple[Failure, ...]]] = {
    Group.NETWORK: NETWORK,
    Group.IDENTITY: IDENTITY,
    Group.AUTHORITY: AUTHORITY,
    Group.SQLITE: SQLITE,
    Group.POSTGRES: POSTGRES,
    Group.MATERIAL: MATERIAL,
    Group.PROCESS: PROCESS,
    Group.WORKER: WORKER,
}


def numbered() -> dict[str, Failure]:
    """Every failure by its number in the document."""
    rows = (failure for group in Group for failure in FAILURES[group])
    return {f"F{number}": failure for number, failure in enumerate(rows, 1)}
