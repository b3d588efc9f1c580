"""What a fuzz target is, and what every one of them holds."""

from collections.abc import Callable
from dataclasses import dataclass

from provider.outcomes import Reason, Refused
from tests.kit.exceptions import said


@dataclass(frozen=True, slots=True)
class Target:
    """`one` takes bytes, tells whether they were accepted, and lets out what should not have happened."""

    one: Callable[[bytes], bool]
    seeds: Callable[[], list[bytes]]
    """Where the search begins; at least one is accepted."""
    most: int = 4096
    """Longest input, bytes."""


def silent(error: BaseException, data: bytes) -> None:
    """Hold that an exception says nothing of the input: no stretch of twelve bytes of it."""
    told = said(error).encode("utf-8", "surrogateescape")
    assert not any(data[at : at + 12] in told for at in range(0, max(len(data) - 11, 0), 4) if len(told) > 40)


def refused_for(error: Refused, data: bytes, *reasons: Reason) -> bool:
    """Hold that a refusal has one of these reasons and says nothing else."""
    assert error.reason in reasons
    silent(error, data)
    return False
