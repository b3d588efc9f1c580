"""Opening beneath a directory descriptor, never by a path from outside (contract 7).

Two openers keep one promise: what they return lies beneath the anchor and on the anchor's mount, links included. The
kernel's `openat2` gives it in one call; where it is missing or forbidden, a walk gives it component by component.
Directories are opened with `O_PATH`: they are never listed, and such an open neither hangs nor counts as an open of
material.
"""

import ctypes
import errno
import os
import stat
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from provider import limits
from provider.mounts import mount_id
from provider.outcomes import Reason, Refused

FILE: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""Flags for material. O_NONBLOCK: a FIFO put in a file's place must not be waited for."""
PROBE: Final = os.O_PATH | os.O_CLOEXEC
"""Flags for looking at what a name resolves to; nothing is opened for reading."""
DIRECTORY: Final = PROBE | os.O_DIRECTORY
"""Flags for an anchor."""

Opener = Callable[[int, bytes, int], int]
"""`opener(anchor, name, flags)`: return a descriptor beneath `anchor`, or raise OSError."""

_SYS_OPENAT2: Final = 437  # the same number on every architecture
_RESOLVE: Final = 0x01 | 0x02 | 0x08  # NO_XDEV, NO_MAGICLINKS, BENEATH
_RACES: Final = 8  # a rename elsewhere may make the kernel give up; that it does so this often in a row is no race
_PUBLIC_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class Descriptors(list[int]):
    """Descriptors that are closed when the block is left."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for descriptor in self:
            try:  # noqa: SIM105 - closing is much of what a request does, and `suppress` costs as much as a close
                os.close(descriptor)
            except OSError:
                pass  # the descriptor is gone even when close reports an error of the file system


def is_root_path(path: str) -> bool:
    """Tell whether `path` may name a root: absolute, normalised, not `/`, at most 4096 bytes, no NUL."""
    try:
        size = len(os.fsencode(path))
    except UnicodeEncodeError:
        return False
    shaped = path.startswith("/") and not path.startswith("//") and path != "/" and os.path.normpath(path) == path
    return shaped and size <= limits.ROOT_PATH_BYTES and "\0" not in path


def open_root(path: str) -> int:
    """Open the root directory as an anchor. Its last component is no link; its parents may be.

    Raises OSError. Does not wait for the root's own file system, but would wait for that of a parent directory.
    """
    return os.open(path, DIRECTORY | os.O_NOFOLLOW)


def judge_root(root: int) -> None:
    """Raise `Refused(ROOT_UNAVAILABLE)` when others than its owner may write to the root.

    A root whose mount is read-only here may have any mode: a kubelet's is 1777. Waits for the root's file system.
    """
    try:
        exposed = os.fstat(root).st_mode & _PUBLIC_WRITE and not os.fstatvfs(root).f_flag & os.ST_RDONLY
    except OSError:
        exposed = True
    if exposed:
        raise Refused(Reason.ROOT_UNAVAILABLE)


class _How(ctypes.Structure):
    """`struct open_how`."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_HOW_BYTES: Final = ctypes.sizeof(_How)
_HOWS: Final = {flags: _How(flags, 0, _RESOLVE) for flags in (FILE, PROBE, DIRECTORY)}
_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(_How), ctypes.c_size_t)


def openat2(anchor: int, name: bytes, flags: int) -> int:
    """Open through the kernel. `flags` is FILE, PROBE or DIRECTORY. Raises OSError."""
    how = ctypes.byref(_HOWS[flags])
    error = 0
    for _ in range(_RACES):
        descriptor: int = _syscall(_SYS_OPENAT2, anchor, name, how, _HOW_BYTES)
        if descriptor >= 0:
            return descriptor
        error = ctypes.get_errno()
        if error not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(error, None)


def walk(anchor: int, name: bytes, flags: int) -> int:
    """Open component by component, for kernels and sandboxes without `openat2`. Raises OSError.

    Links are resolved lexically below the anchor, at most 8 of them; absolute targets, targets above the anchor and
    mounts below it are refused.
    """
    mount = mount_id(anchor)
    pending = name.split(b"/")[::-1]
    links = 0
    with Descriptors() as below:
        while pending:
            part = pending.pop()
            if part in (b"", b"."):
                continue
            if part == b"..":
                if not below:
                    raise OSError(errno.EXDEV, None)
                os.close(below.pop())
                continue
            below.append(os.open(part, PROBE | os.O_NOFOLLOW, dir_fd=below[-1] if below else anchor))
            if mount_id(below[-1]) != mount:
                raise OSError(errno.EXDEV, None)
            mode = os.fstat(below[-1]).st_mode
            if stat.S_ISLNK(mode):
                links += 1
                target = os.readlink(b"", dir_fd=below[-1])
                if links > limits.LINK_DEPTH or target.startswith(b"/"):
                    raise OSError(errno.ELOOP, None)
                pending += target.split(b"/")[::-1]
                os.close(below.pop())
            elif pending and not stat.S_ISDIR(mode):
                raise OSError(errno.ENOTDIR, None)
        # What was walked to is opened itself, through its descriptor: its name may mean something else by now.
        return os.open(f"/proc/self/fd/{below[-1] if below else anchor}", flags)


def choose_opener() -> Opener:
    """Return `openat2` where a first call works, and `walk` where the kernel lacks it or a sandbox forbids it.

    Raises OSError when not even `/` can be opened.
    """
    with Descriptors() as held:
        held.append(os.open("/", DIRECTORY))
        try:
            held.append(openat2(held[0], b".", DIRECTORY))
        except OSError as error:
            if error.errno in (errno.ENOSYS, errno.EPERM):
                return walk
        return openat2
