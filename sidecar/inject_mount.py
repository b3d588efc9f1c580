"""What mode `files` asks of the kernel: whether a directory is memory, and a private memory file system over it."""

import ctypes
import os
from typing import Final

_MEMORY_KINDS: Final = frozenset({0x01021994, 0x858458F6})  # tmpfs, ramfs
_CLONE_NEWNS: Final = 0x00020000
_MS_REC_SLAVE: Final = 0x4000 | 0x80000
_MS_NOSUID_NODEV_NOEXEC: Final = 2 | 4 | 8
_MNT_DETACH: Final = 2
_OPTIONS: Final = (b"mode=0700,size=16m,noswap", b"mode=0700,size=16m")
"""noswap is known from Linux 6.4; 16 MiB is far more than the values of a delivery."""

_libc: Final = ctypes.CDLL(None, use_errno=True)


def is_memory(descriptor: int) -> bool:
    """Tell whether a directory lies on tmpfs or ramfs. Raises OSError."""
    # struct statfs begins with the type, a long; the rest differs between machines and is not looked at.
    room = ctypes.create_string_buffer(512)
    if _libc.fstatfs(descriptor, room) != 0:
        raise OSError(ctypes.get_errno(), "fstatfs")
    return ctypes.c_long.from_buffer(room).value & 0xFFFFFFFF in _MEMORY_KINDS


def mount_private(path: str) -> bool:
    """Cover a directory with a tmpfs that this process and its children alone see; False where that is not permitted.

    The process moves into a mount namespace of its own, which still sees what the machine mounts later.
    """
    if _libc.unshare(_CLONE_NEWNS) != 0:
        return False
    # Without this the mount would show up outside.
    if _libc.mount(b"none", b"/", None, _MS_REC_SLAVE, None) != 0:
        return False
    target = os.fsencode(path)
    return any(_libc.mount(b"tmpfs", target, b"tmpfs", _MS_NOSUID_NODEV_NOEXEC, options) == 0 for options in _OPTIONS)


def unmount(path: str) -> None:
    """Take the private file system off again; it goes with the process anyway."""
    _libc.umount2(os.fsencode(path), _MNT_DETACH)
