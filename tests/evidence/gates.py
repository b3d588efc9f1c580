"""The gates of the evidence, in their order, and the record that the run keeps of them.

The run writes one JSON line for each gate and fact to a pipe; the reader prints and reports them. No reason ever holds
a value, a ref or a token: it is a text of ours, or the system's word for an error.
"""

import json
import os
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

GATES: Final = {
    "prefix": "exactly the locked packages and the product, which user 10001 may read and not write",
    "database": "PostgreSQL, whose role ql3_secret_sidecar reads six tables and adds to two",
    "namespaces": "network, mount, process, IPC and host name spaces of their own",
    "ready": "both sidecars are ready, every check ok",
    "limits": "512 MiB of memory and 256 processes, by cgroup",
    "generation_1": "both deliver generation 1 while there is no other",
    "generation_2": "both deliver generation 2, published once",
    "receipts": "both released the same marks, other ones in each generation",
    "unavailable": "the projection deleted, both refuse and the event says why",
    "no_restart": "each is the same process from the first delivery to the last refusal",
    "identity": "user and group 10001, no capability, no new privileges",
    "read_only": "every file system is read-only, and refuses to be written",
    "no_token": "no ServiceAccount token, and nothing mounted but what is named",
    "no_api_traffic": "each spoke to the database and to nobody else, and has no route to more",
    "quiet": "no value, ref, credential or lease token in output, metrics or audit rows",
    "within_limits": "no limit was ever met",
    "stopped": "told to end, both end with 0",
}
"""Every gate, and what it says."""


class Failed(Exception):
    """A gate does not hold. Its text says why, without anything secret."""


class Stop(Exception):
    """A gate without which nothing further can be judged has failed."""


class Record:
    """What the run says of itself, on a pipe."""

    def __init__(self, descriptor: int) -> None:
        """Write to this descriptor."""
        self._descriptor = descriptor

    def _say(self, **line: object) -> None:
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")

    def fact(self, name: str, value: object) -> None:
        """Note a figure or a circumstance."""
        self._say(fact=name, value=value)

    @contextmanager
    def gate(self, name: str, *, needed: bool = False) -> Iterator[None]:
        """Note whether the block ends as it should. Raises Stop when it does not and all that follows needs it."""
        if name not in GATES:
            raise ValueError("no such gate")
        begin, reason = time.monotonic(), None
        try:
            yield
        except Failed as failed:
            reason = str(failed)
        except OSError as error:
            reason = f"the system refused: {error.strerror or type(error).__name__} ({_place(error)})"
        except Exception as error:  # noqa: BLE001 - whatever went wrong, the gate does not hold
            reason = f"{type(error).__name__} ({_place(error)})"
        self._say(gate=name, passed=reason is None, reason=reason, seconds=round(time.monotonic() - begin, 3))
        if reason is not None and needed:
            raise Stop


def _place(error: Exception) -> str:
    """Where an error was raised; its text may hold anything."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{os.path.basename(frame.filename)}:{frame.lineno}"


def require(holds: object, reason: str) -> None:
    """Raise Failed with this reason unless it holds."""
    if not holds:
        raise Failed(reason)
