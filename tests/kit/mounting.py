"""mount(2) and umount2(2) for tests that run as root."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

MS_RDONLY, MS_REMOUNT, MS_BIND = 0x1, 0x20, 0x1000
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str | os.PathLike[str], kind: str, flags: int = 0, data: str = "") -> None:
    """Mount. Raises OSError."""
    done = _libc.mount(source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), data.encode())
    if done != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def unmount(target: str | os.PathLike[str]) -> None:
    """Detach at once, whatever still uses it."""
    if _libc.umount2(os.fsencode(target), _MNT_DETACH) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


@contextmanager
def mounted(source: str, target: str | os.PathLike[str], kind: str, flags: int = 0, data: str = "") -> Iterator[None]:
    """Mount while the block runs; it may be unmounted inside already. Skips the test where even root may not mount."""
    try:
        mount(source, target, kind, flags, data)
    except PermissionError:
        pytest.skip("root may not mount here (no CAP_SYS_ADMIN)")
    try:
        yield
    finally:
        with suppress(OSError):
            unmount(target)
