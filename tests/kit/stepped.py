"""A real `serve` under a wall clock that can be stepped: `python -m tests.kit.stepped FILE`.

FILE holds one double, the seconds by which this process sees the time of day displaced; whoever writes it steps the
clock, for this process alone. Only what asks Python's `time` for the time of day sees it: OpenSSL's own look at the
clock, in a handshake, does not.
"""

import mmap
import struct
import sys
import time
from pathlib import Path
from typing import Final

from sidecar.__main__ import main

_SECONDS: Final = struct.Struct("d")


class Clock:
    """The hand that steps it."""

    def __init__(self, file: Path) -> None:
        """Begin without a displacement."""
        file.write_bytes(_SECONDS.pack(0.0))
        self.program = ("-m", "tests.kit.stepped", str(file))
        """What to run in place of `serve`."""
        self._file = file

    def step(self, seconds: float) -> None:
        """Displace the time of day by so many seconds from the true one."""
        with self._file.open("r+b") as file:
            file.write(_SECONDS.pack(seconds))


def _displace(file: Path) -> None:
    with file.open("rb") as opened:
        shared = mmap.mmap(opened.fileno(), _SECONDS.size, prot=mmap.PROT_READ)
    true, true_ns = time.time, time.time_ns

    def displacement() -> float:
        return float(_SECONDS.unpack_from(shared)[0])

    time.time = lambda: true() + displacement()
    time.time_ns = lambda: true_ns() + int(displacement() * 1_000_000_000)


if __name__ == "__main__":
    _displace(Path(sys.argv[1]))
    sys.exit(main(["serve"]))
