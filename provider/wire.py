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
from provider.memory import BufferPool
from provider.outcomes import Reason, Refused

HEAD_ROOM: Final = 512
"""Bytes kept free in front of the body for the HTTP head, so that head and body leave in one write."""

_LIMITS: Final = {Schema.V1: limits.RESPONSE_BYTES_V1, Schema.V2: limits.RESPONSE_BYTES_V2}
_SPECIAL: Final = re.compile(rb'["\\\x00-\x1f]')
_SHORT: Final = {0x22: b'\\"', 0x5C: b"\\\\", 0x08: b"\\b", 0x09: b"\\t", 0x0A: b"\\n", 0x0C: b"\\f", 0x0D: b"\\r"}
_ESCAPES: Final = {code: _SHORT.get(code, b"\\u%04x" % code) for code in (*range(0x20), 0x22, 0x5C)}
_ITEM_END: Final = b'"}'


class Response:
    """The encoded answer and the owner of its buffer. A context manager: leaving wipes."""

    __slots__ = ("_buffer", "length")

    def __init__(self, pool: BufferPool, length: int) -> None:
        """Allocate room for the head and `length` body bytes."""
        self._buffer = pool.take(HEAD_ROOM + length)
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
        """Overwrite head and body with zeros. Idempotent."""
        self._buffer.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wipe()


def encode(command: Command, batch: Batch, pool: BufferPool, limit: int) -> Response:
    """Return the 200 body for `command`; its keys and their order are the contract's.

    `limit` is the configured response limit in bytes; the schema's own limit holds as well. Raises
    `Refused(OVER_BUDGET)` beyond either, before anything is allocated.
    """
    head, tail = _frame(command)
    openings = _openings(batch)
    length = len(head) + len(tail) + (len(_BUNDLES) if command.schema is Schema.V2 else 0)
    for index, opening in enumerate(openings):
        with batch.value(index) as value:
            length += len(opening) + escaped_length(value) + len(_ITEM_END)
    if length > min(limit, _LIMITS[command.schema]):
        raise Refused(Reason.OVER_BUDGET)
    response = Response(pool, length)
    try:
        with response.body() as body:
            at = _put(body, 0, head)
            at = _put_items(body, at, batch, openings, bundles=False)
            if command.schema is Schema.V2:
                at = _put_items(body, _put(body, at, _BUNDLES), batch, openings, bundles=True)
            at = _put(body, at, tail)
            if at != length:
                raise AssertionError("the answer is not as long as counted")
    except BaseException:
        response.wipe()
        raise
    return response


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


def _put_items(body: memoryview, at: int, batch: Batch, openings: list[bytes], *, bundles: bool) -> int:
    for index, slot in enumerate(batch.slots):
        if slot.bundle is bundles:
            at = _put(body, at, openings[index])
            with batch.value(index) as value:
                at = put_escaped(body, at, value)
            at = _put(body, at, _ITEM_END)
    return at


def put_escaped(body: memoryview, at: int, value: memoryview) -> int:
    """Write `value` at `at` as the inside of a JSON string, from buffer to buffer; return its end (contract 3)."""
    plain = 0
    for match in _SPECIAL.finditer(value):
        special = match.start()
        at = _put(body, at, value[plain:special])
        at = _put(body, at, _ESCAPES[value[special]])
        plain = special + 1
    return _put(body, at, value[plain:])
