"""One connection to the sidecar: TLS 1.3 over a socket that never blocks, read straight into wipeable memory."""

import errno
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from provider.limits import HANDSHAKE_S, IDLE_S, REQUESTS_PER_CONNECTION
from sidecar.client_errors import Unavailable
from sidecar.client_identity import tls_failure
from sidecar.client_waits import EndOfTime, Waits

_REUSE_S: Final = IDLE_S - 1.0
"""The sidecar closes a connection that idled for 5 s; one second less keeps clear of that moment."""


class Connection:
    """A connection that is handshaken, and the context it was made with. Its owner closes it."""

    __slots__ = ("_idle_since", "_requests", "_sock", "_waits", "context")

    def __init__(self, sock: ssl.SSLSocket, context: ssl.SSLContext, waits: Waits) -> None:
        """Made by `connect`."""
        self._sock = sock
        self._waits = waits
        self._requests = 0
        self._idle_since = 0.0
        self.context = context

    @property
    def used(self) -> bool:
        """Whether a request went over it before."""
        return self._requests > 0

    async def send(self, view: memoryview, end: float) -> None:
        """Hand all of `view` to TLS. Raises Unavailable, TlsFailed or EndOfTime."""
        self._requests += 1
        sent = 0
        while sent < len(view):
            with view[sent:] as rest:
                sent += await _ready(self._sock, self._waits, self._sock.send, rest, end)

    async def receive(self, room: memoryview, end: float) -> int:
        """Read into `room`, return the count, at least 1. Raises as `send`, Unavailable when the peer has closed."""
        count = await _ready(self._sock, self._waits, self._sock.recv_into, room, end)
        if count == 0:
            raise Unavailable
        return count

    def rest(self) -> None:
        """Begin to idle."""
        self._idle_since = time.monotonic()

    def reusable(self, context: ssl.SSLContext) -> bool:
        """Tell whether it may carry a next request: same identity, idle not for long, and nothing arrived meanwhile."""
        if self.context is not context or self._requests >= REQUESTS_PER_CONNECTION or self._sock.pending():
            return False
        if time.monotonic() - self._idle_since > _REUSE_S:
            return False
        try:
            # Whatever there is to read, the end included, says that the peer is done with this connection.
            socket.socket.recv(self._sock, 1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Close without a TLS goodbye, which nobody waits for. OpenSSL zeroes its buffers as it frees them."""
        self._sock.close()


async def connect(host: str, port: int, context: ssl.SSLContext, waits: Waits, end: float) -> Connection:
    """Connect and shake hands, within 10 s at most so that a dead replica does not take all the time there is.

    Raises Unavailable, TlsFailed or, at `end`, EndOfTime.
    """
    limit = min(end, time.monotonic() + HANDSHAKE_S)
    try:
        raw = await _dial(host, port, waits, limit)
        try:
            with _faults():
                sock = context.wrap_socket(raw, server_hostname=host, do_handshake_on_connect=False)
            try:
                await _ready(sock, waits, _shake, sock, limit)
            except BaseException:
                sock.close()
                raise
        except BaseException:
            raw.close()
            raise
        return Connection(sock, context, waits)
    except EndOfTime:
        if limit < end:
            raise Unavailable from None
        raise


def _shake(sock: ssl.SSLSocket) -> int:
    sock.do_handshake()
    return 1


async def _dial(host: str, port: int, waits: Waits, end: float) -> socket.socket:
    """Return a socket connected to the first address that answers."""
    with _faults():
        addresses = await waits.resolve(host, port, end)
        for family, address in addresses:
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                code = sock.connect_ex(address)
                if code == errno.EINPROGRESS:
                    await waits.writable(sock, end)
                    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            except BaseException:
                sock.close()
                raise
            if code == 0:
                return sock
            sock.close()
    raise Unavailable


async def _ready(
    sock: ssl.SSLSocket, waits: Waits, operation: Callable[[Any], int], argument: object, end: float
) -> int:
    """Run a TLS operation, again as often as it asks to wait."""
    while True:
        wait: Callable[[socket.socket, float], Awaitable[None]]
        with _faults():
            try:
                return operation(argument)
            except ssl.SSLWantReadError:
                wait = waits.readable
            except ssl.SSLWantWriteError:
                wait = waits.writable
        await wait(sock, end)


@contextmanager
def _faults() -> Iterator[None]:
    """Tell TLS that failed from a connection that did, and drop the library's texts."""
    try:
        yield
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError):
        raise Unavailable from None
    except ssl.SSLError as error:
        raise tls_failure(error) from None
    except OSError:
        raise Unavailable from None
