"""Batch -> response bytes, from buffer to buffer (contract 3).

The answer is laid out once, at its full size, in one wipeable buffer: room for the HTTP head, then the body. Sizes are
counted before anything is allocated, so a delivery over its limit is refused before any byte.
"""

import re
from json.encoder import encode_basestring as _quote
from types import TracebackType
from typing import Final, Self

from provider import limits
from provider.command import Command, Schema
from provider.material import Batch
from provider.memory import Buffer, BufferPool
from provider.outcomes import Reason, Refused

HEAD_ROOM: Final = 512
"""Bytes kept free in front of the body for the HTTP head, so that head and body leave in one write."""

_LIMITS: Final = {Schema.V1: limits.RESPONSE_BYTES_V1, Schema.V2: limits.RESPONSE_BYTES_V2}
_SPECIAL: Final = re.compile(rb'["\\\x00-\x1f]')
_PLAIN: Final = re.compile(rb"[ !#-\[\]-\xff]*+")
"""Everything else, which is found faster from this side."""
_SHORT: Final = {0x22: b'\\"', 0x5C: b"\\\\", 0x08: b"\\b", 0x09: b"\\t", 0x0A: b"\\n", 0x0C: b"\\f", 0x0D: b"\\r"}
_ESCAPES: Final = {code: _SHORT.get(code, b"\\u%04x" % code) for code in (*range(0x20), 0x22, 0x5C)}
_ITEM_END: Final = b'"}'


class Response:
    """The answer, once `encode` has written it, and the owner of its buffer. A context manager: leaving wipes."""

    __slots__ = ("_buffer", "_pool", "length")

    _buffer: Buffer

    def __init__(self, pool: BufferPool) -> None:
        """Begin empty: nothing is allocated."""
        self._pool = pool
        self.length = 0
        """Bytes of the body; 0 as long as there is none."""

    def allocate(self, length: int) -> None:
        """Take room for the head and `length` body bytes, at least one; called by `encode` alone, once."""
        self._buffer = self._pool.take(HEAD_ROOM + length)
        self.length = length

    def body(self) -> memoryview:
        """Return a view of the body; the caller releases it."""
        return self._buffer.view[HEAD_ROOM:]

    def framed(self, head: bytes) -> memoryview:
        """Write `head` (at most HEAD_ROOM bytes, nothing secret) right before the body and return a view of both.

        Raises ValueError for a longer head. The caller releases the view.
        """
        start = HEAD_ROOM - len(head)
        if start < 0:
            raise ValueError("head longer than its room")
        self._buffer.view[start:HEAD_ROOM] = head
        return self._buffer.view[start:]

    def wipe(self) -> None:
        """Overwrite head and body with zeros, if there are any. Idempotent."""
        if self.length:
            self._buffer.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wipe()


def encode(response: Response, command: Command, batch: Batch, limit: int) -> None:
    """Write the 200 body for `command` into an empty response; its keys and their order are the contract's.

    `limit` is the configured response limit in bytes; the schema's own limit holds as well. Raises
    `Refused(OVER_BUDGET)` beyond either, before anything is allocated. Whoever owns the response wipes it.
    """
    head, tail = _frame(command)
    openings = _openings(batch)
    values = [batch.value(index) for index in range(len(batch.slots))]
    try:
        plain = list(map(_is_plain, values))
        length = len(head) + len(tail) + (len(_BUNDLES) if command.schema is Schema.V2 else 0)
        for opening, value, as_is in zip(openings, values, plain, strict=True):
            length += len(opening) + (len(value) if as_is else escaped_length(value)) + len(_ITEM_END)
        if length > min(limit, _LIMITS[command.schema]):
            raise Refused(Reason.OVER_BUDGET)
        response.allocate(length)
        with response.body() as body:
            at, in_bundles = _put(body, 0, head), False
            for slot, opening, value, as_is in zip(batch.slots, openings, values, plain, strict=True):
                if slot.bundle and not in_bundles:
                    at, in_bundles = _put(body, at, _BUNDLES), True
                at = _put(body, at, opening)
                at = (_put if as_is else put_escaped)(body, at, value)
                at = _put(body, at, _ITEM_END)
            if command.schema is Schema.V2 and not in_bundles:
                at = _put(body, at, _BUNDLES)
            if _put(body, at, tail) != length:
                raise AssertionError("the answer is not as long as counted")
    finally:
        for value in values:
            value.release()


_BUNDLES: Final = b'],"environmentBundles":['


def _frame(command: Command) -> tuple[bytes, bytes]:
    """Return what stands before the first value and after the last one; none of it is secret."""
    head = (
        f'{{"schema":"{command.schema.value}","runId":{_quote(command.run_id)},"attemptId":{_quote(command.attempt_id)},'
        f'"offerId":{_quote(command.offer_id)},"executionDigest":"{command.execution_digest}","values":['
    )
    return head.encode(), b"]}"


def _openings(batch: Batch) -> list[bytes]:
    """Return what stands before each value: its ref, after a comma where it is not the first of its list."""
    openings, begun = [], set()
    for slot in batch.slots:
        comma = "," if slot.bundle in begun else ""
        begun.add(slot.bundle)
        openings.append(f'{comma}{{"secretRef":"{slot.ref.text}","value":"'.encode("ascii"))
    return openings


def _is_plain(value: memoryview) -> bool:
    """Tell whether `value` may stand inside a JSON string as it is; asked once, as most values may."""
    found = _PLAIN.match(value)
    return found is not None and found.end() == len(value)


def escaped_length(value: memoryview) -> int:
    """Return the bytes that `value` takes inside a JSON string (contract 3)."""
    length = len(value)
    for match in _SPECIAL.finditer(value):
        length += len(_ESCAPES[value[match.start()]]) - 1
    return length


def _put(body: memoryview, at: int, part: bytes | memoryview) -> int:
    end = at + len(part)
    body[at:end] = part
    return end


def put_escaped(body: memoryview, at: int, value: memoryview) -> int:
    """Write `value` at `at` as the inside of a JSON string, from buffer to buffer; return its end (contract 3)."""
    plain = 0
    for match in _SPECIAL.finditer(value):
        special = match.start()
        at = _put(body, at, value[plain:special])
        at = _put(body, at, _ESCAPES[value[special]])
        plain = special + 1
    return _put(body, at, value[plain:])
