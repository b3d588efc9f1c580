"""The request of one attempt, laid out in wipeable memory: it holds the credential and the lease token (contract 2)."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from provider.memory import Buffer, BufferPool
from sidecar.client_errors import CredentialInvalid, Input
from sidecar.client_files import read_into
from sidecar.client_offer import Offer

CredentialSource = Callable[[memoryview], int]
"""Writes the token, at most 255 bytes and without a newline, into the view given and returns its length."""

_TOKEN_BYTES: Final = 256
_TOKEN: Final = re.compile(rb"ql3w_[A-Za-z0-9][A-Za-z0-9._:-]{0,63}_[A-Za-z0-9_-]{43}")
_ORIGIN: Final = re.compile(
    r"https://(?P<authority>(?:(?P<name>[A-Za-z0-9._-]{1,253})|\[(?P<address>[0-9A-Fa-f:.]{2,45})\])"
    r"(?::(?P<port>[0-9]{1,5}))?)/?"
)
_HTTPS: Final = 443
_PORTS: Final = 65535


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the sidecar is. `authority` is the `host` header, as the URL writes it."""

    host: str
    port: int
    authority: str

    @classmethod
    def parse(cls, url: str) -> "Origin":
        """Read `https://host[:port]`, one slash at the end allowed. Raises ValueError with a fixed text for more."""
        match = _ORIGIN.fullmatch(url)
        port = int(match["port"] or _HTTPS) if match else 0
        if match is None or not 1 <= port <= _PORTS:
            raise ValueError("the URL must be an https origin, for example https://sidecar.example:5801")
        return cls((match["name"] or match["address"]).lower(), port, match["authority"])


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
