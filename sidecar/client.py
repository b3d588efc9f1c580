"""The worker's half: fetch the secrets of an offer, and keep the product's guarantees past the socket (contract 2, 3).

    async with Client(url, cert=cert, key=key, ca=ca, credential=token_file) as client:
        async with client.fetch(Offer.read("offer.json")) as secrets:
            use(secrets["DATABASE_URL"])  # a read-only memoryview; zeroed when the block ends

`BlockingClient` is the same without `async` and needs no event loop. Nothing of the server is imported here, and no
library beside the standard one. Values are read from TLS straight into memory that is wiped, and never become `str` or
`bytes`; what the caller makes of a view is the caller's.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from sidecar.client_blocking import BlockingClient
from sidecar.client_core import DEFAULT_TIMEOUT_S, Core
from sidecar.client_errors import (
    CredentialInvalid,
    Denied,
    FetchError,
    Input,
    InputUnusable,
    LeaseOver,
    OfferInvalid,
    OutOfTime,
    Tls,
    TlsFailed,
    Trouble,
    Unavailable,
    UnexpectedAnswer,
)
from sidecar.client_identity import IdentityFiles
from sidecar.client_offer import Offer
from sidecar.client_request import CredentialSource
from sidecar.client_secrets import Secrets
from sidecar.client_waits import Addresses, EndOfTime

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "BlockingClient",
    "Client",
    "CredentialInvalid",
    "CredentialSource",
    "Denied",
    "FetchError",
    "Input",
    "InputUnusable",
    "LeaseOver",
    "Offer",
    "OfferInvalid",
    "OutOfTime",
    "Secrets",
    "Tls",
    "TlsFailed",
    "Trouble",
    "Unavailable",
    "UnexpectedAnswer",
]


class Client:
    """A client of one origin, under one event loop. An async context manager: leaving closes its connections."""

    def __init__(self, url: str, *, cert: str, key: str, ca: str, credential: str | CredentialSource) -> None:
        """Reads and connects nothing yet.

        `url` is `https://host[:port]`; the certificate must be for that host. `cert`, `key` and `ca` are paths of PEM
        files, looked at before each fetch and read again when they changed. `credential` is the path of a file with the
        token and one LF, or a function that writes the token into the view it is given and returns the length; it is
        asked for each attempt. Raises ValueError for a URL that is more than an origin.
        """
        self._core = Core(url, IdentityFiles(cert, key, ca), credential, _LoopWaits())

    @asynccontextmanager
    async def fetch(self, offer: Offer, *, deadline: float | None = None) -> AsyncIterator[Secrets]:
        """Fetch the offer's secrets; they are wiped when the block is left, on every way out.

        Denials (400, 401, 409) end it at once. 429, 503 and connection faults are tried again, with jitter and after
        the server's Retry-After, until `deadline` (seconds on the clock of `time.monotonic`, None: 30 s from now) or
        the end of the offer's lease. Raises a FetchError: LeaseOver, OutOfTime, InputUnusable, CredentialInvalid,
        TlsFailed, Denied, Unavailable or UnexpectedAnswer.
        """
        with await self._core.fetch(offer, deadline) as secrets:
            yield secrets

    def close(self) -> None:
        """Close the connections that are kept. The client may be used again."""
        self._core.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _LoopWaits:
    """Waits on the running event loop; `time.monotonic` is its clock."""

    async def readable(self, sock: socket.socket, end: float) -> None:
        loop = asyncio.get_running_loop()
        await _event(loop.add_reader, loop.remove_reader, sock.fileno(), end)

    async def writable(self, sock: socket.socket, end: float) -> None:
        loop = asyncio.get_running_loop()
        await _event(loop.add_writer, loop.remove_writer, sock.fileno(), end)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def resolve(self, host: str, port: int, end: float) -> Addresses:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(end):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except TimeoutError:
            raise EndOfTime from None
        return [(family, address) for family, _, _, _, address in found]


async def _event(add: Callable[..., object], remove: Callable[[int], object], descriptor: int, end: float) -> None:
    came = asyncio.Event()
    add(descriptor, came.set)
    try:
        async with asyncio.timeout_at(end):
            await came.wait()
    except TimeoutError:
        raise EndOfTime from None
    finally:
        remove(descriptor)
