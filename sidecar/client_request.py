"""The request of one attempt, laid out in wipeable memory: it holds the credential and the lease token (contract 2)."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from provider.memory import Buffer, BufferPool
from sidecar.client_errors import CredentialInvalid, Input
from sidecar.client_files import read_into
from sidecar.client_offer import Offer

CredentialSource = Callable[[memoryview], int]
"""Writes the token, at most 255 bytes and without a newline, into the view given and returns its length."""

_TOKEN_BYTES: Final = 256
_TOKEN: Final = re.compile(rb"ql3w_[A-Za-z0-9][A-Za-z0-9._:-]{0,63}_[A-Za-z0-9_-]{43}")
_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the sidecar is. `authority` is the `host` header, as the URL writes it."""

    host: str
    port: int
    authority: str

    @classmethod
    def parse(cls, url: str) -> "Origin":
        """Read `https://host[:port]`, one slash at the end allowed. Raises ValueError with a fixed text for more."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port or (443 if parts.port is None else 0)
            if url.rstrip("/") != f"https://{parts.netloc}" or parts.path not in {"", "/"}:
                port = 0
        except ValueError:
            parts, host, port = urlsplit(""), "", 0
        if port == 0 or "@" in parts.netloc or _HOST.fullmatch(host) is None:
            raise ValueError("the URL must be an https origin, for example https://sidecar.example:5801")
        return cls(host, port, parts.netloc)


def file_credential(path: str) -> CredentialSource:
    """Return a source that reads a private file anew for each attempt: the token and at most one LF."""

    def read(room: memoryview) -> int:
        length = read_into(path, room, Input.CREDENTIAL)
        return length - 1 if length and room[length - 1] == 0x0A else length

    return read


def lay_out(origin: Origin, offer: Offer, credential: CredentialSource, request_id: str, pool: BufferPool) -> Buffer:
    """Return head and body in one buffer, which the caller releases. Raises InputUnusable or CredentialInvalid."""
    before = f"POST {offer.target} HTTP/1.1\r\nhost: {origin.authority}\r\nx-request-id: {request_id}\r\n"
    before += f"content-type: application/json\r\ncontent-length: {len(offer.body)}\r\nauthorization: Worker "
    with pool.take(_TOKEN_BYTES) as room:
        length = credential(room.view)
        if _TOKEN.fullmatch(room.view, 0, length) is None:
            raise CredentialInvalid
        with room.view[:length] as token:
            parts = (before.encode(), token, b"\r\n\r\n", offer.body)
            request = pool.take(sum(map(len, parts)))
            at = 0
            for part in parts:
                request.view[at : at + len(part)] = part
                at += len(part)
    return request
