"""The head of an answer, judged in place (contract 3): nothing but digits is ever copied out of the buffer.

A broken answer may hold anything anywhere, so not even a header's name becomes `bytes`.
"""

import re
from dataclasses import dataclass
from typing import Final

HEAD_BYTES: Final = 4096
"""Status line and headers; the sidecar's own take about 250."""

_END: Final = re.compile(rb"\r\n\r\n")
_STATUS: Final = re.compile(rb"HTTP/1\.1 ([1-5][0-9]{2}) [\x20-\x7e]*\r\n")
_FIELD: Final = re.compile(
    rb"(?:(?P<length>(?i:content-length))|(?P<type>(?i:content-type))|(?P<close>(?i:connection))"
    rb"|(?P<after>(?i:retry-after))|(?P<framing>(?i:transfer-encoding|content-encoding|trailer|upgrade))"
    rb"|[!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*+(?P<value>(?:[\x21-\x7e]++(?:[ \t]++(?=[\x21-\x7e]))?)*+)[ \t]*+\r\n"
)
_LENGTH: Final = re.compile(rb"0|[1-9][0-9]{0,6}")
_SECONDS: Final = re.compile(rb"0|[1-9][0-9]{0,5}")
_TYPE: Final = b"application/json; charset=utf-8"
_KEEP: Final = re.compile(rb"(?i:keep-alive)")


class NotAsContracted(ValueError):
    """The answer differs from the contract. Says nothing of where or how: that would be its content."""

    def __init__(self) -> None:
        super().__init__("not as contracted")


@dataclass(frozen=True, slots=True)
class Head:
    """What a head says. `body` is where the body begins, `length` its bytes, 0 where none are stated.

    `framed`: the body is plain and of the contract's type. `closes`: the connection ends here.
    """

    status: int
    body: int
    length: int
    framed: bool
    closes: bool
    retry_after: int | None


def complete(view: memoryview) -> bool:
    """Tell whether `view` holds a whole head."""
    return _END.search(view) is not None


def read_head(view: memoryview) -> Head:
    """Read the head at the start of `view`, which is complete. Raises NotAsContracted when it is malformed."""
    end = _END.search(view)
    status = _STATUS.match(view)
    if end is None or status is None:
        raise NotAsContracted
    found: dict[str, tuple[int, int]] = {}
    at = status.end()
    while at < end.start() + 2:
        field = _FIELD.match(view, at, end.start() + 2)
        if field is None:
            raise NotAsContracted
        at = field.end()
        # The value's group closes last, so it would hide the name's: the names are asked for one by one.
        for name in ("length", "type", "close", "after", "framing"):
            if field.start(name) >= 0:
                if name in found:
                    raise NotAsContracted
                found[name] = field.span("value")
    return Head(
        status=int(bytes(view[status.start(1) : status.end(1)])),
        body=end.end(),
        length=_number(view, found.get("length"), _LENGTH) or 0,
        framed="type" in found and _is(view, found["type"], _TYPE) and "framing" not in found,
        closes="close" in found and _KEEP.fullmatch(view, *found["close"]) is None,
        retry_after=_number(view, found.get("after"), _SECONDS),
    )


def _is(view: memoryview, span: tuple[int, int], text: bytes) -> bool:
    with view[span[0] : span[1]] as value:
        return value == text


def _number(view: memoryview, span: tuple[int, int] | None, pattern: re.Pattern[bytes]) -> int | None:
    if span is None or pattern.fullmatch(view, *span) is None:
        return None
    return int(bytes(view[span[0] : span[1]]))
