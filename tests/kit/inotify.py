"""A witness from outside: how often files were opened, as the kernel tells it."""

import ctypes
import os
import struct
from types import TracebackType
from typing import Self

_IN_OPEN = 0x20
_IN_Q_OVERFLOW = 0x4000
_EVENT = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)


class OpenWitness:
    """Counts IN_OPEN on directories and what lies directly in them, from the moment it is made.

    An open with O_PATH is none. Watch the root and every generation directory: then `opens()` is what
    `MountedFiles.stats.opens` must have grown by. Listing a watched directory counts too, so tests do it elsewhere.
    """

    def __init__(self, *directories: str | os.PathLike[str]) -> None:
        """Begin to watch. Raises OSError when a directory cannot be watched."""
        self._descriptor = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._names: list[str] = []
        for directory in directories:
            self.watch(directory)

    def watch(self, directory: str | os.PathLike[str]) -> None:
        """Watch one directory more."""
        _checked(_libc.inotify_add_watch(self._descriptor, os.fsencode(directory), _IN_OPEN))

    def names(self) -> list[str]:
        """Return the name of everything opened so far; "" stands for a watched directory itself."""
        while True:
            try:
                events = os.read(self._descriptor, 1 << 16)
            except BlockingIOError:
                return list(self._names)
            at = 0
            while at < len(events):
                _, mask, _, length = _EVENT.unpack_from(events, at)
                at += _EVENT.size
                name = events[at : at + length].rstrip(b"\0")
                at += length
                if mask & _IN_Q_OVERFLOW:
                    raise AssertionError("inotify lost events: its count proves nothing")
                if mask & _IN_OPEN:
                    self._names.append(os.fsdecode(name))

    def opens(self) -> int:
        """Return how many opens were seen so far."""
        return len(self.names())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)


def _checked(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
