"""A request's head: aiohttp's C parser, then the rows that it lets through (contract 2 and 4, stage parse).

What the parser refuses and what is refused here end in one row; the parser's own error text, which echoes the request,
goes nowhere.
"""

import asyncio
import re
from dataclasses import dataclass
from enum import Enum, unique
from typing import Final

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_parser import HttpRequestParser, HttpRequestParserPy

from provider import limits
from provider.outcomes import Reason, Refused

# The parser tolerates empty lines before the request line, repeated spaces in it and other versions; we do not.
_REQUEST_LINE: Final = re.compile(rb"[A-Z][A-Z-]{0,31} [\x21-\x7e]{1,%d} HTTP/1\.1\r\n" % limits.TARGET_BYTES)
_ONCE: Final = frozenset((b"authorization", b"content-type", b"content-encoding", b"x-request-id"))
_READ: Final = _ONCE | {b"traceparent", b"expect", b"upgrade", b"content-length", b"transfer-encoding"}
_DIGITS: Final = re.compile(rb"[0-9]{1,18}")
HAS_C_PARSER: Final = HttpRequestParser is not HttpRequestParserPy
"""Whether aiohttp brought its C parser, without which nothing is served: the pure one accepts other things."""


@unique
class HeadLimit(Enum):
    """Bounds of a head (contract 4, parse). The closed label set of `limit`."""

    TARGET = "target"
    """8 KiB of target."""
    BLOCK = "block"
    """16 KiB of request line and headers."""
    FIELDS = "fields"
    """64 headers."""


def exceeded(block: bytes | None) -> HeadLimit | None:
    """Tell which bound a refused head is over; None for one that was refused for something else.

    `block` is None when its end had not come within the bytes that a head may have.
    """
    if block is None:
        return HeadLimit.BLOCK
    line, _, fields = block.partition(b"\n")
    if any(len(word) > limits.TARGET_BYTES for word in line.split()[1:2]):
        return HeadLimit.TARGET
    # Each field has a line, and the empty line ends them.
    return HeadLimit.FIELDS if fields.count(b"\n") > limits.HEADER_COUNT + 1 else None


@dataclass(frozen=True, slots=True, repr=False)
class Head:
    """What this listener reads of a head. `target` is raw, `fields` are raw values by lower-case name.

    Without a repr: it would show the credential.
    """

    method: str
    target: str
    length: int | None
    """Declared body bytes; None when none was declared or the body is chunked."""
    chunked: bool
    expects: bool
    """Whether there is an `Expect`."""
    closes: bool
    """Whether the peer asked that the connection end with the answer."""
    fields: dict[bytes, bytes]


class HeadParser:
    """Parses heads on one event loop. Each head gets a parser of its own, so nothing carries over."""

    __slots__ = ("_loop", "_protocol")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use the loop's time; nothing is awaited."""
        self._loop = loop
        # The parser wants a protocol to pause for bodies; it never sees a body.
        self._protocol = BaseProtocol(loop)

    def parse(self, block: bytes) -> Head:
        """Parse one head, its empty line included. Raises `Refused(MALFORMED)`."""
        if _REQUEST_LINE.match(block) is None:
            raise Refused(Reason.MALFORMED)
        parser = HttpRequestParser(
            self._protocol,
            self._loop,
            2**16,
            max_line_size=limits.TARGET_BYTES,
            max_headers=limits.HEADER_COUNT,
            max_field_size=limits.HEADER_BLOCK_BYTES,
            auto_decompress=False,
        )
        try:
            messages, _upgraded, tail = parser.feed_data(block)
        except Exception:  # noqa: BLE001 - whatever it is, it is the head's fault, and its text echoes the head
            # Refused below: a refusal that is raised here would refer to it.
            messages, tail = [], b""
        if len(messages) != 1 or tail:
            raise Refused(Reason.MALFORMED)
        message = messages[0][0]
        fields: dict[bytes, bytes] = {}
        for name, value in message.raw_headers:
            key = name.lower()
            if key in _READ:
                if key not in fields:
                    fields[key] = value
                elif key in _ONCE:
                    raise Refused(Reason.MALFORMED)
                else:
                    fields[key] += b"," + value
        if message.method == "CONNECT" or b"upgrade" in fields or message.upgrade:
            raise Refused(Reason.MALFORMED)
        declared = fields.get(b"content-length")
        if declared is not None and _DIGITS.fullmatch(declared) is None:
            raise Refused(Reason.MALFORMED)
        # The parser lets an empty transfer-encoding stand, also beside a content-length.
        if b"transfer-encoding" in fields and (declared is not None or not message.chunked):
            raise Refused(Reason.MALFORMED)
        return Head(
            method=message.method,
            target=message.path,
            length=None if declared is None else int(declared),
            chunked=bool(message.chunked),
            expects=b"expect" in fields,
            closes=bool(message.should_close),
            fields=fields,
        )
