"""Mode `env`: each value as an environment variable.

What is exposed: root and the same user read the command's environment in /proc/PID/environ for as long as it runs,
everything that it starts inherits it, and crash reports like to print it.
"""

import ctypes
import mmap
from contextlib import suppress
from typing import Final

from sidecar.cli.common import Exit, Fault
from sidecar.inject import Injection, Values

_STRING_BYTES: Final = 131_072
"""Longest environment string that Linux takes (MAX_ARG_STRLEN), its NUL included; 96 KiB and a name fit."""


class Environment(Injection):
    """Builds `NAME=value` strings in memory that the stage gets by fork and the parent wipes before it says go."""

    def __init__(self) -> None:
        self._block: mmap.mmap | None = None
        self._addresses: list[int] = []
        self._names: frozenset[str] = frozenset()

    def fill(self, values: Values) -> None:
        """Lay out the strings; memory of its own, as the pool's is empty in a forked child."""
        size = sum(len(name) + 1 + len(value) + 1 for name, value in values)
        block = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._block = block
        with suppress(OSError):
            block.madvise(mmap.MADV_DONTDUMP)
        base = ctypes.addressof(ctypes.c_char.from_buffer(block))
        # The limit may forbid it; then the block may be swapped, as the command's own environment may.
        ctypes.CDLL(None).mlock(ctypes.c_void_p(base), ctypes.c_size_t(len(block)))
        at = 0
        for name, value in values:
            if len(name) + 1 + len(value) + 1 > _STRING_BYTES:
                raise Fault(Exit.TARGET_REFUSED, "A value is too long for a variable.", "Use another --inject mode.")
            start = f"{name}=".encode()
            block[at : at + len(start)] = start
            self._addresses.append(base + at)
            at += len(start)
            block[at : at + len(value)] = value
            at += len(value) + 1
        self._names = frozenset(name for name, _ in values)

    def secret_strings(self) -> list[int]:
        """As `Injection`."""
        return self._addresses

    def secret_names(self) -> frozenset[str]:
        """As `Injection`."""
        return self._names

    def forked(self) -> None:
        """Wipe our copy; the stage's own goes when it becomes the command."""
        self.close()

    def close(self) -> None:
        """Wipe and unmap."""
        block, self._block = self._block, None
        if block is not None:
            ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(block)), 0, len(block))
            block.close()
