"""Wipeable memory: private anonymous mappings from a pool (contract 3, wiping).

A `Buffer` is allocated at its full size before the first byte of a value exists, is never grown, and is overwritten
with zeros when it is released. Its pages are private to the process, locked into memory where the limit allows it,
left out of core dumps and empty in a forked child. Mappings return to the pool wiped and stay mapped, so a test that
scans the process sees a forgotten wipe.
"""

import ctypes
import mmap
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

_PAGE: Final = mmap.PAGESIZE
_MADV_WIPEONFORK: Final = 18
_MLOCK_ONFAULT: Final = 1
# A slice of this is the source of every overwrite: assigning from it copies inside C and allocates nothing.
_ZEROS: Final = memoryview(bytes(1 << 20))
MAX_BUFFER_BYTES: Final = len(_ZEROS)
"""Largest buffer: four times the largest response (contract 3)."""


def _libc_lock() -> Callable[[int, int], bool]:
    """Return a function that locks pages as they are touched; it answers False where the limit or the libc forbids."""
    libc = ctypes.CDLL(None)
    try:
        mlock2 = libc.mlock2
    except AttributeError:
        mlock = libc.mlock
        mlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        return lambda address, size: mlock(address, size) == 0
    mlock2.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return lambda address, size: mlock2(address, size, _MLOCK_ONFAULT) == 0


class Buffer:
    """Wipeable bytes of one owner. Use it as a context manager; leaving wipes it, on every way out.

    `view` covers exactly the bytes asked for. Views cut from it are released by whoever cut them: memory that a view
    still reaches is wiped like any other, but never serves another request.
    """

    __slots__ = ("_mapping", "_pool", "_size", "view")

    def __init__(self, pool: "BufferPool", mapping: mmap.mmap, size: int) -> None:
        """Made by `BufferPool.take` only."""
        self._pool = pool
        self._mapping: mmap.mmap | None = mapping
        self._size = size
        self.view = memoryview(mapping)[:size]

    def wipe(self) -> None:
        """Overwrite with zeros; the memory stays this buffer's until `release`. Idempotent."""
        if self._mapping is not None:
            # Through the mapping: no view, whether released too early or still lent out, stands in the way.
            self._mapping[: self._size] = _ZEROS[: self._size]

    def release(self) -> None:
        """Wipe and give the mapping back. Idempotent; afterwards `view` raises ValueError."""
        self.wipe()
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            try:  # noqa: SIM105 - `suppress` would cost as much as the rest of this method
                self.view.release()
            except BufferError:
                pass  # a view that C code still holds cannot be released; the pool sees that the mapping is lent
            self._pool.give_back(mapping)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        # A last resort for an owner that was dropped; every owner in this project releases on its own.
        if self._mapping is not None:
            with suppress(Exception):
                self.release()

    def __repr__(self) -> str:
        return "<Buffer>"

    def __reduce__(self) -> str:
        raise TypeError("a Buffer is never serialised")


class BufferPool:
    """Mappings in sizes of powers of two from one page up. Thread-safe: stuck reader threads return theirs late.

    `retain_bytes` bounds what idle mappings may keep; beyond it a wiped mapping is unmapped.
    """

    def __init__(self, retain_bytes: int = 8 << 20) -> None:
        """Make an empty pool; the first requests map what they need."""
        self._retain = retain_bytes
        self._idle: dict[int, list[mmap.mmap]] = {}
        self._idle_bytes = 0
        # Re-entrant: the collector may run a dropped buffer's `__del__` inside `take`, in the same thread.
        self._lock = threading.RLock()
        self._lock_pages = _libc_lock()
        self._locked: dict[int, bool] = {}
        self.outstanding = 0
        """Buffers taken and not yet released."""
        self.mapped_bytes = 0
        """Bytes of all mappings, idle and taken."""
        self.locked_bytes = 0
        """Bytes among them that the kernel agreed to lock."""

    def take(self, size: int) -> Buffer:
        """Return a zeroed buffer of `size` bytes.

        Raises ValueError for a size outside 1..MAX_BUFFER_BYTES and OSError when there is no memory.
        """
        if not 1 <= size <= MAX_BUFFER_BYTES:
            raise ValueError("buffer size out of bounds")
        room = max(_PAGE, 1 << (size - 1).bit_length())
        with self._lock:
            idle = self._idle.get(room)
            if idle:
                mapping = idle.pop()
                self._idle_bytes -= room
            else:
                mapping = self._map(room)
            self.outstanding += 1
        return Buffer(self, mapping, size)

    def give_back(self, mapping: mmap.mmap) -> None:
        """Take a wiped mapping back; called by `Buffer.release` alone. One that is still lent is not used again."""
        room = len(mapping)
        lent = _is_lent(mapping)
        with self._lock:
            self.outstanding -= 1
            if not lent and self._idle_bytes + room <= self._retain:
                self._idle.setdefault(room, []).append(mapping)
                self._idle_bytes += room
                return
            self.mapped_bytes -= room
            if self._locked.pop(id(mapping)):
                self.locked_bytes -= room
        if not lent:
            mapping.close()  # a lent one is unmapped when its last view is gone

    def _map(self, room: int) -> mmap.mmap:
        mapping = mmap.mmap(-1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for advice in (mmap.MADV_DONTDUMP, _MADV_WIPEONFORK):
            # Old kernels do not know every advice; the process is not dumpable and does not fork anyway.
            with suppress(OSError):
                mapping.madvise(advice)
        locked = self._lock_pages(ctypes.addressof(ctypes.c_char.from_buffer(mapping)), room)
        self._locked[id(mapping)] = locked
        self.mapped_bytes += room
        self.locked_bytes += room if locked else 0
        return mapping


def _is_lent(mapping: mmap.mmap) -> bool:
    """Tell whether somebody still holds a view: a mapping says so before it says that no mapping has this size."""
    try:
        mapping.resize(-1)
    except ValueError:
        return False
    except BufferError:
        pass
    return True
