"""Reading the worker's own files: each through one descriptor, bounded, never one that others may read or change."""

import os
import stat
from typing import Final

from sidecar.client_errors import Input, InputUnusable, Trouble

_OPEN_TO_OTHERS: Final = 0o037
"""Group may read (a mounted secret with fsGroup is 0440), and nothing more."""
FILE_BYTES: Final = 1 << 20
"""Largest certificate, key and CA file: that of the server's identity files (contract 8)."""

Stamp = tuple[int, ...]


def read_into(path: str, room: memoryview, which: Input) -> int:
    """Read a private file into `room` and return its bytes. Raises InputUnusable; a file of len(room) is too large."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise _unusable(which, error) from None
    try:
        _judge(os.fstat(descriptor), which, private=True)
        length = 0
        while length < len(room) and (count := os.readv(descriptor, [room[length:]])):
            length += count
    except OSError as error:
        raise _unusable(which, error) from None
    finally:
        os.close(descriptor)
    if length == len(room):
        raise InputUnusable(which, Trouble.TOO_LARGE)
    return length


def stamp(path: str, which: Input) -> Stamp:
    """Return what `stat` shows of an identity file, which a rotation changes. Raises InputUnusable."""
    try:
        status = os.stat(path)
        _judge(status, which, private=which is Input.KEY)
        if not os.access(path, os.R_OK):
            raise InputUnusable(which, Trouble.UNREADABLE)
    except OSError as error:
        raise _unusable(which, error) from None
    if status.st_size > FILE_BYTES:
        raise InputUnusable(which, Trouble.TOO_LARGE)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _judge(status: os.stat_result, which: Input, *, private: bool) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise InputUnusable(which, Trouble.NOT_REGULAR)
    if private and status.st_mode & _OPEN_TO_OTHERS:
        raise InputUnusable(which, Trouble.OPEN_TO_OTHERS)


def _unusable(which: Input, error: OSError) -> InputUnusable:
    missing = isinstance(error, FileNotFoundError | NotADirectoryError)
    return InputUnusable(which, Trouble.MISSING if missing else Trouble.UNREADABLE)
