"""How a client waits: on an event loop, or by blocking its thread. The rest of the client is one code for both.

The client's coroutines touch sockets without blocking and wait only here, so under `BlockingWaits` they never suspend
and `run_blocking` runs them without an event loop, in any thread and also where a loop runs already.
"""

import select
import socket
import time
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

Addresses = list[tuple[int, Any]]
"""Pairs of address family and what `connect` takes for it."""
_T = TypeVar("_T")


class EndOfTime(Exception):
    """A wait reached its end. Not `TimeoutError`, which the kernel raises too when a peer does not answer."""


class Waits(Protocol):
    """The only places where a client waits. `end` is on the clock of `time.monotonic`, in seconds."""

    async def readable(self, sock: socket.socket, end: float) -> None:
        """Return when `sock` can be read. Raises EndOfTime."""

    async def writable(self, sock: socket.socket, end: float) -> None:
        """Return when `sock` can be written. Raises EndOfTime."""

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""

    async def resolve(self, host: str, port: int, end: float) -> Addresses:
        """Return the addresses of a host. Raises OSError or EndOfTime."""


class BlockingWaits:
    """Blocks the calling thread. `resolve` may overrun `end`: the C library's look-up cannot be interrupted."""

    async def readable(self, sock: socket.socket, end: float) -> None:
        """As `Waits`."""
        _poll(sock, select.POLLIN, end)

    async def writable(self, sock: socket.socket, end: float) -> None:
        """As `Waits`."""
        _poll(sock, select.POLLOUT, end)

    async def sleep(self, seconds: float) -> None:
        """As `Waits`."""
        time.sleep(seconds)  # noqa: ASYNC251 - blocking is what this class is for

    async def resolve(self, host: str, port: int, end: float) -> Addresses:
        """As `Waits`."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [(family, address) for family, _, _, _, address in found]


def _poll(sock: socket.socket, events: int, end: float) -> None:
    poll = select.poll()
    poll.register(sock, events)
    if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
        raise EndOfTime


def run_blocking(coroutine: Coroutine[object, object, _T]) -> _T:
    """Run a coroutine of the client that waits by `BlockingWaits` to its end."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: _T = done.value
        return result
    coroutine.close()
    raise RuntimeError("a blocking client suspended")
