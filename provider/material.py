"""Batch: the secret values of one delivery, in buffers that are wiped on every way out (contract 3 and 7).

A provider lays out a batch before it reads: one slot for each ref, at its full size. It fills the slots through
`room`, states their lengths with `fill`, and hands the batch on. Values are reachable as read-only views while the
batch lives, and never as `str` or `bytes`.
"""

import re
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self

from provider import limits
from provider.memory import Buffer, BufferPool
from provider.outcomes import Reason, Refused
from provider.refs import SecretRef

# Strict UTF-8 without NUL, judged in place. Possessive, so the engine keeps no state that grows with the value.
_TEXT: Final = re.compile(
    rb"(?:[\x01-\x7f]++"
    rb"|[\xc2-\xdf][\x80-\xbf]"
    rb"|\xe0[\xa0-\xbf][\x80-\xbf]"
    rb"|[\xe1-\xec\xee\xef][\x80-\xbf]{2}"
    rb"|\xed[\x80-\x9f][\x80-\xbf]"
    rb"|\xf0[\x90-\xbf][\x80-\xbf]{2}"
    rb"|[\xf1-\xf3][\x80-\xbf]{3}"
    rb"|\xf4[\x80-\x8f][\x80-\xbf]{2})++"
)


def is_text(view: memoryview, end: int = sys.maxsize) -> bool:
    """Tell whether the bytes, or those before `end`, are non-empty strict UTF-8 without NUL (contract 7); no copy."""
    return _TEXT.fullmatch(view, 0, end) is not None


class Slot(NamedTuple):
    """Room asked for one value: its ref, the bytes expected, and whether it is the bundle that authority named."""

    ref: SecretRef
    size: int
    bundle: bool = False


class Batch:
    """Owner of the values of one delivery. A context manager: leaving wipes. `repr` shows nothing of them."""

    __slots__ = ("_buffer", "_closed", "_lengths", "_rooms", "slots")

    def __init__(self, pool: BufferPool, slots: Sequence[Slot]) -> None:
        """Allocate every slot, one byte longer than asked, so that a value which grew shows itself.

        Raises `Refused(MATERIAL_UNAVAILABLE)` for a size outside 1..16384 (98304 for the bundle) and
        `Refused(OVER_BUDGET)` when the secrets together exceed 65536 bytes or more than one is a bundle.
        """
        self.slots = tuple(slots)
        secrets = bundles = room = 0
        for slot in self.slots:
            if not 1 <= slot.size <= (limits.BUNDLE_BYTES if slot.bundle else limits.VALUE_BYTES):
                raise Refused(Reason.MATERIAL_UNAVAILABLE)
            room += slot.size + 1
            if slot.bundle:
                bundles += 1
            else:
                secrets += slot.size
        if secrets > limits.BATCH_BYTES or bundles > limits.BUNDLE_REFS:
            raise Refused(Reason.OVER_BUDGET)
        self._lengths: list[int | None] = [None] * len(self.slots)
        self._buffer: Buffer = pool.take(room or 1)
        self._closed = False
        self._rooms: list[memoryview] = []
        start = 0
        for slot in self.slots:
            self._rooms.append(self._buffer.view[start : start + slot.size + 1])
            start += slot.size + 1

    def room(self, index: int) -> memoryview:
        """Return the writable room of slot `index`: its size and one byte. Released with the batch."""
        return self._rooms[index]

    def fill(self, index: int, length: int) -> None:
        """State that slot `index` now holds `length` bytes and judge them.

        Raises `Refused(MATERIAL_UNAVAILABLE)` unless they are 1..size bytes of strict UTF-8 without NUL; the slot then
        holds no value, also where it held one before. Raises ValueError when the batch is wiped.
        """
        if self._closed:
            raise ValueError("the batch is released")
        self._lengths[index] = None
        if not 1 <= length <= self.slots[index].size:
            raise Refused(Reason.MATERIAL_UNAVAILABLE)
        if not is_text(self._rooms[index], length):
            raise Refused(Reason.MATERIAL_UNAVAILABLE)
        self._lengths[index] = length

    def value(self, index: int) -> memoryview:
        """Return a read-only view of value `index`; the caller releases it (`with batch.value(i) as v`).

        Raises ValueError when the slot was never filled or the batch is wiped.
        """
        length = self._lengths[index]
        if length is None or self._closed:
            raise ValueError("no value in this slot")
        with self._rooms[index][:length] as value:
            return value.toreadonly()

    def length(self, index: int) -> int:
        """Return the bytes of value `index`. Raises ValueError when the slot was never filled."""
        length = self._lengths[index]
        if length is None:
            raise ValueError("no value in this slot")
        return length

    @property
    def total(self) -> int:
        """Bytes of all filled values."""
        return sum(length or 0 for length in self._lengths)

    def wipe(self) -> None:
        """Overwrite every value with zeros and release the memory. Idempotent."""
        if self._closed:
            return
        self._closed = True
        # Zeros first: nothing that could go wrong with a view may come before them.
        self._buffer.wipe()
        for room in self._rooms:
            try:  # noqa: SIM105 - `suppress` costs more than the release, for every value
                room.release()
            except BufferError:
                pass  # a thread reads into it still: what it brings reaches nobody, the memory is not used again
        self._buffer.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wipe()

    def __repr__(self) -> str:
        return f"<Batch of {len(self.slots)}>"

    def __reduce__(self) -> str:
        raise TypeError("a Batch is never serialised")
