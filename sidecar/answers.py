"""Bytes of the answers: the head of a delivery, and problem documents from the outcome table (contract 3 and 4)."""

import json
import os
import re
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from provider.outcomes import Code, Reason
from sidecar.ids import uuid4

_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_TRACEPARENT: Final = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?"
)
_STATUS_TEXT: Final = {
    400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed", 408: "Request Timeout",
    409: "Conflict", 411: "Length Required", 413: "Content Too Large", 415: "Unsupported Media Type",
    417: "Expectation Failed", 429: "Too Many Requests", 500: "Internal Server Error", 503: "Service Unavailable",
    504: "Gateway Timeout",
}  # fmt: skip
_EXTRA: Final = {
    Reason.METHOD: "allow: POST\r\n",
    Reason.IN_FLIGHT_LIMIT: "retry-after: 1\r\n",
    Reason.CREDENTIAL_IN_FLIGHT_LIMIT: "retry-after: 1\r\n",
}
_COMMON: Final = "cache-control: no-store\r\nx-content-type-options: nosniff\r\n"
_CLOSE: Final = "connection: close\r\n"
_OK_HEAD: Final = f"HTTP/1.1 200 OK\r\ncontent-type: application/json; charset=utf-8\r\n{_COMMON}"


def request_id(value: bytes | None) -> str:
    """Return a valid `x-request-id` as it came, otherwise a fresh UUIDv4 (contract 2)."""
    if value is not None and _REQUEST_ID.fullmatch(value):
        return value.decode("ascii")
    return uuid4()


def trace_id(value: bytes | None) -> str:
    """Return the trace id of a valid W3C `traceparent`, otherwise 32 random hex digits (contract 4)."""
    match = _TRACEPARENT.fullmatch(value) if value is not None else None
    # Version 00 has exactly four fields; later versions may append more.
    if match is None or (match[1] == b"00" and match[3] is not None):
        return os.urandom(16).hex()
    return match[2].decode("ascii")


def ok_head(length: int, request_id: str, *, close: bool) -> bytes:
    """Return the head of a delivery of `length` body bytes."""
    close_field = _CLOSE if close else ""
    return f"{_OK_HEAD}content-length: {length}\r\nx-request-id: {request_id}\r\n{close_field}\r\n".encode("ascii")


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refusal as it goes out, and the instance that ties it to its event."""

    instance: str
    data: bytes


def refusal(
    reason: Reason, request_id: str, trace: str, *, close: bool, body: bool = True, retry_after: int | None = None
) -> Refusal:
    """Return the problem answer of `reason`; without its body for HEAD. `retry_after` is the shield's, in seconds."""
    frame = _FRAMES[reason.value.code]
    instance = f"urn:uuid:{uuid4()}"
    # An instance, a time and a trace id hold nothing that JSON would escape.
    content = f'{frame.opening}{instance}{frame.middle}{timestamp()}","trace_id":"{trace}"}}'
    extra = _EXTRA.get(reason, "") if retry_after is None else f"retry-after: {retry_after}\r\n"
    head = f"{frame.head}{len(content)}\r\nx-request-id: {request_id}\r\n{extra}{_CLOSE if close else ''}\r\n"
    return Refusal(instance, (head + content if body else head).encode("ascii"))


class _Frame(NamedTuple):
    """What every refusal with one code has in common."""

    head: str
    """Its head as far as the number of body bytes."""
    opening: str
    """Its document as far as the instance."""
    middle: str
    """What stands between instance and time."""


def _frame(code: Code) -> _Frame:
    problem = code.value
    named = {
        "type": f"urn:secret-sidecar:problem:{problem.code}",
        "title": problem.title,
        "status": problem.status,
        "detail": problem.detail,
        "instance": "",
    }
    return _Frame(
        f"HTTP/1.1 {problem.status} {_STATUS_TEXT[problem.status]}\r\n"
        f"content-type: application/problem+json\r\n{_COMMON}content-length: ",
        json.dumps(named, separators=(",", ":")).removesuffix('"}'),
        f'","code":{json.dumps(problem.code)},"timestamp":"',
    )


_FRAMES: Final = {code: _frame(code) for code in Code}


def timestamp(now_ns: int | None = None) -> str:
    """Return now, or the moment `now_ns` (ns since 1970), as RFC 3339 in UTC with milliseconds."""
    now = (time.time_ns() if now_ns is None else now_ns) // 1_000_000
    return f"{_second(now // 1000)}.{now % 1000:03d}Z"


@lru_cache(maxsize=1)
def _second(now_s: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_s))
