"""Sans-I/O gate in front of the HTTP parser: one bounded head, then exactly the declared body (contract 2, 4).

aiohttp's C parser reads the head of a request and nothing else: a fresh parser gets the bytes of one head, so no state
of one request can reach the next, and what follows a head is framed here by the declared length alone.
"""

import re
from typing import Final

from provider import limits
from provider.outcomes import Reason, Refused

# The first empty line ends a head, however its line ends are written: a head of bare LFs is complete, and then refused.
_HEAD_END: Final = re.compile(rb"\n\r?\n")


class Framer:
    """Collects one head, then one body. Bytes beyond are pipelined: dropped, and they end the connection."""

    __slots__ = ("_body", "_collect", "_head", "_length", "_rest", "awaiting_head", "received")

    def __init__(self) -> None:
        """Wait for the head of a first request."""
        self.next()

    def next(self) -> None:
        """Forget the finished request and wait for the next head."""
        self._head = b""
        self._rest = b""
        self._body: bytes | bytearray = b""
        self._collect = False
        self._length: int | None = 0
        self.awaiting_head = True
        self.received = 0
        """Bytes that arrived after the head."""

    @property
    def started(self) -> bool:
        """Whether a byte of the awaited head has arrived."""
        return bool(self._head)

    def feed(self, data: bytes) -> bytes | None:
        """Take what arrived; return a head once it is complete, its empty line included, otherwise None.

        After a head, call `expect` before feeding more. Raises `Refused(MALFORMED)` for a block over its limit.
        """
        if not self.awaiting_head:
            self._take(data)
            return None
        block = self._head + data if self._head else data
        # The end may straddle two arrivals: two bytes of the old part are looked at again.
        match = _HEAD_END.search(block, max(0, len(self._head) - 2))
        end = match.end() if match else len(block)
        if end > limits.HEADER_BLOCK_BYTES:
            self.awaiting_head = False
            raise Refused(Reason.MALFORMED)
        if match is None:
            self._head = block
            return None
        self.awaiting_head = False
        self._rest = block[end:]
        return block[:end]

    def expect(self, length: int | None, *, collect: bool) -> None:
        """Say how many body bytes the head declared, and whether they are wanted or only counted.

        None when nobody can tell where the request ends (no head, or chunks): then it is never `complete`.
        """
        self._head = b""
        rest, self._rest = self._rest, b""
        self._length = length
        self._collect = collect and length is not None
        if self._collect and len(rest) == length:
            # The usual request: head and body in one arrival, no second copy.
            self._body, self.received = rest, length
            return
        self._body = bytearray(length or 0) if self._collect else b""
        self._take(rest)

    def drop(self) -> None:
        """Let go of the body: its request is over, although the rest of it may still arrive."""
        self._body = b""
        self._collect = False

    def _take(self, data: bytes) -> None:
        if self._collect and self._length is not None and self.received < self._length:
            part = data[: self._length - self.received]
            self._body[self.received : self.received + len(part)] = part  # type: ignore[index]  # a bytearray while it lacks bytes
        self.received += len(data)

    @property
    def complete(self) -> bool:
        """Whether the declared body has arrived."""
        return self._length is not None and self.received >= self._length

    @property
    def pipelined(self) -> bool:
        """Whether bytes beyond the declared body have arrived."""
        return self._length is not None and self.received > self._length

    @property
    def unwanted(self) -> int:
        """Bytes that arrived after the head and are no part of a body that is wanted."""
        return self.received - min(self.received, self._length or 0) if self._collect else self.received

    def body(self) -> bytes | bytearray:
        """Return the body, once `complete`."""
        return self._body
