"""Which mount a descriptor is on, and of what kind, learnt without asking the file system (contract 7).

`stat` and `statfs` wait for the server of a hung mount. `open(O_PATH)`, `/proc/self/fdinfo` and `/proc/self/mountinfo`
do not: they read the kernel's own tables.
"""

import errno
import os
import re
import select
import threading
import weakref
from typing import Final

LOCAL_KINDS: Final = frozenset((b"tmpfs", b"ramfs", b"ext2", b"ext3", b"ext4", b"xfs", b"btrfs", b"overlay"))
"""Kinds whose reads wait for no other machine or process, so they are read inline. Every other kind may hang."""

_FDINFO_BYTES: Final = 4096
_CHUNK_BYTES: Final = 65_536
_MOUNT_ID: Final = re.compile(rb"^mnt_id:\s*([0-9]+)$", re.MULTILINE)
# Blanks inside a path are escaped in mountinfo, so the first " - " ends the optional fields.
_MOUNT: Final = re.compile(rb"^([0-9]+) .*? - (\S+) ", re.MULTILINE)


def mount_id(descriptor: int) -> int:
    """Return the id of the mount that `descriptor` is on; unique among mounts that are attached or in use.

    Raises OSError when `/proc` is not there or does not say.
    """
    fdinfo = os.open(f"/proc/self/fdinfo/{descriptor}", os.O_RDONLY)
    try:
        return _id(os.read(fdinfo, _FDINFO_BYTES))
    finally:
        os.close(fdinfo)


def _id(said: bytes) -> int:
    found = _MOUNT_ID.search(said)
    if found is None:
        raise OSError(errno.ENODATA, None)
    return int(found[1])


class MountProbe:
    """Asks for mount ids many times: the same answer as `mount_id`, at a fifth of its cost.

    The kernel writes a file of `/proc/self/fdinfo` anew at each read. One is kept open, for a number of our own, and
    what is asked about is put under that number for as long as the answer takes.
    """

    __slots__ = ("__weakref__", "_held", "_lock")

    def __init__(self) -> None:
        """Begin without descriptors: nothing is opened before the first question."""
        self._held: list[int] = []
        """The number, and the open file."""
        self._lock = threading.Lock()
        weakref.finalize(self, _close, self._held)

    def mount_id(self, descriptor: int) -> int:
        """Return the id of the mount that `descriptor` is on. Raises OSError like `mount_id`."""
        with self._lock:
            try:
                if not self._held:
                    self._held.append(os.open("/proc/self", os.O_PATH | os.O_CLOEXEC))
                    self._held.append(os.open(f"/proc/self/fdinfo/{self._held[0]}", os.O_RDONLY | os.O_CLOEXEC))
                number, fdinfo = self._held
                os.dup2(descriptor, number, inheritable=False)
                said = os.pread(fdinfo, _FDINFO_BYTES, 0)
                # Whatever stays under the number keeps its mount from being unmounted: `/proc` may stay.
                os.dup2(fdinfo, number, inheritable=False)
            except OSError:
                _close(self._held)
                raise
        return _id(said)


def _close(held: list[int]) -> None:
    while held:
        os.close(held.pop())


class MountTable:
    """The mounts of this process, read again only when the kernel says that they changed.

    Mount ids are used again after an unmount, so what is known of an id is dropped with every change. Belongs to one
    thread and to the mount namespace in which it was first asked.
    """

    __slots__ = ("__weakref__", "_changes", "_descriptor", "_kinds")

    def __init__(self) -> None:
        """Begin empty; nothing is opened before the first question."""
        self._descriptor: int | None = None
        self._changes = select.poll()
        self._kinds: dict[int, bytes] = {}

    def is_local(self, mount: int) -> bool:
        """Tell whether mount `mount` is of a local kind. The caller holds a descriptor on it, so its id stays its own.

        A mount that the table does not show counts as not local. Raises OSError when the table cannot be read.
        """
        table = self._table()
        if not self.is_settled():
            self._kinds = {int(number): kind for number, kind in _MOUNT.findall(_whole(table))}
        return self._kinds.get(mount) in LOCAL_KINDS

    def is_settled(self) -> bool:
        """Tell whether the mounts are still those of the last answer."""
        if self._descriptor is not None and self._changes.poll(0):
            self._kinds.clear()
        return bool(self._kinds)

    def _table(self) -> int:
        if self._descriptor is None:
            self._descriptor = os.open("/proc/self/mountinfo", os.O_RDONLY)
            weakref.finalize(self, os.close, self._descriptor)
            self._changes.register(self._descriptor, select.POLLPRI)
        return self._descriptor


def _whole(descriptor: int) -> bytes:
    chunks = bytearray()
    while chunk := os.pread(descriptor, _CHUNK_BYTES, len(chunks)):
        chunks += chunk
    return bytes(chunks)
