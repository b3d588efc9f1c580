"""One TLS connection of a worker: its phases and their bounds, one request after the other (contract 4).

The protocol below owns framing and time; `app` owns meaning. A phase has one due time, looked at by the listener's
sweep, so the request path arms no timer: it assigns a number.
"""

import asyncio
from enum import Enum, unique
from typing import TYPE_CHECKING, Final

from provider import limits
from provider.outcomes import Close, Reason, Refused
from sidecar.framing import Framer
from sidecar.head import Head
from sidecar.peer import Peer
from sidecar.tlswire import plaintext_left, unsent, untaken

if TYPE_CHECKING:
    from sidecar.app import Application
    from sidecar.identity import Identity
    from sidecar.listener import Listener

_NEVER: Final = float("inf")
_LOOK_AFTER_S: Final = 0.5
"""How long an answer may be on its way before the kernel is asked whether the peer has taken it."""


@unique
class Phase(Enum):
    """Where a connection is; each has its own bound and its own silent end."""

    HEAD = "head"
    RUNNING = "running"
    DISCARD = "discard"
    CLOSING = "closing"
    CLOSED = "closed"


class Connection(asyncio.Protocol):
    """Frames requests, bounds every phase, writes answers."""

    __slots__ = (
        "_app", "_arrived", "_body_waiter", "_budget", "_chunked", "_listener", "_loop", "_waiter", "address",
        "deadline", "due", "framer", "identity", "made", "peer", "phase", "requests", "task", "timed_out",
        "transport", "untaken_since",
    )  # fmt: skip

    def __init__(self, app: "Application", listener: "Listener", identity: "Identity", address: str) -> None:
        """`identity` is the TLS snapshot this connection was accepted under; `address` is its key in the limits."""
        self._app = app
        self._listener = listener
        self._loop = app.loop
        self.identity = identity
        self.address = address
        self.framer = Framer()
        self.phase = Phase.HEAD
        self.made = False
        """Whether the handshake ended well, so that `connection_lost` will follow."""
        self.requests = 0
        self.timed_out = False
        self.due = _NEVER
        self.deadline = _NEVER
        self.untaken_since: float | None = None
        self._arrived: Head | Reason | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._body_waiter: asyncio.Future[None] | None = None
        self._budget = limits.DISCARD_BYTES
        self._chunked = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """After the handshake: take the peer and wait for a first head."""
        self.made = True
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]  # TLS transports are both ways
        self.peer = Peer.of(transport.get_extra_info("ssl_object"))
        self.due = self._loop.time() + limits.HEADERS_S
        self._listener.opened(self)
        self.task = self._loop.create_task(self._run())

    def connection_lost(self, exc: Exception | None) -> None:
        """Whatever runs for a peer that has gone is ended, which wipes it."""
        self.phase = Phase.CLOSED
        self.due = _NEVER
        self.task.cancel()
        self._listener.closed(self)

    def data_received(self, data: bytes) -> None:
        """Feed the framer; nothing is parsed here but a complete head."""
        if self.phase is Phase.HEAD:
            self._feed_head(data)
        elif self.phase is Phase.RUNNING:
            self.framer.feed(data)
            if self._body_waiter is not None and self.framer.complete and not self._body_waiter.done():
                self._body_waiter.set_result(None)
        elif self.phase is Phase.DISCARD:
            self.framer.feed(data)
            self._budget -= len(data)
            if self._budget < 0 or self._rest_arrived():
                self._close()

    def _feed_head(self, data: bytes) -> None:
        first_byte = not self.framer.started
        try:
            block = self.framer.feed(data)
            if block is None:
                if first_byte and self.requests:
                    self.due = self._loop.time() + limits.HEADERS_S
                return
            head = self._app.parse(block)
        except Refused as refused:
            self.framer.expect(0, collect=False)
            self._arrived = refused.reason
        else:
            length = head.length or 0
            self._chunked = head.chunked
            self.framer.expect(length, collect=length <= self._app.limits.max_body_bytes)
            self._arrived = head
        self.requests += 1
        self.phase = Phase.RUNNING
        self.deadline = self.due = self._loop.time() + self._app.limits.request_timeout_s
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _run(self) -> None:
        try:
            await self._serve()
        finally:
            # An answer that was given moved the phase on; a task that ended without one leaves nobody waiting.
            if self.phase is Phase.RUNNING:
                self.transport.abort()

    async def _serve(self) -> None:
        while True:
            if self._arrived is None:
                self._waiter = self._loop.create_future()
                await self._waiter
                self._waiter = None
            arrived, self._arrived = self._arrived, None
            ends = await self._app.handle(self, arrived)  # type: ignore[arg-type]  # the waiter was set with it
            if self.framer.pipelined:
                self._listener.count_pipelined()
            if self.phase is Phase.CLOSED:
                return
            if ends:
                self._end()
                return
            self.framer.next()
            self.phase = Phase.HEAD
            self.due = self._loop.time() + limits.IDLE_S

    async def read_body(self, until: float) -> bytes | bytearray:
        """Return the declared body. Raises `Refused(BODY_TIMEOUT)` when it is not complete at `until` (monotonic)."""
        if not self.framer.complete:
            self._body_waiter = self._loop.create_future()
            try:
                async with asyncio.timeout_at(until):
                    await self._body_waiter
            except TimeoutError:
                raise Refused(Reason.BODY_TIMEOUT) from None
            finally:
                self._body_waiter = None
        return self.framer.body()

    def write(self, data: bytes | memoryview) -> None:
        """Hand an answer to TLS, which has encrypted it when this returns.

        Raises ConnectionResetError when the connection is gone: nothing was handed over.
        """
        if self.phase is Phase.CLOSED or self.transport.is_closing():
            raise ConnectionResetError
        self.transport.write(data)
        if plaintext_left(self.transport):
            self.transport.abort()
            raise ConnectionResetError
        if self.untaken_since is None:
            self.untaken_since = self._loop.time()

    def abort(self) -> None:
        """Reset the connection."""
        self.transport.abort()

    def close_when_idle(self) -> None:
        """Close at once if no byte of a request has arrived."""
        if self.phase is Phase.HEAD and not self.framer.started:
            self._close()

    def _rest_arrived(self) -> bool:
        return self.framer.complete and not self._chunked

    def _end(self) -> None:
        """After the last answer: let what still arrives run out, a little, so that no reset overtakes the answer."""
        if not self._rest_arrived():
            self.phase = Phase.DISCARD
            self._budget -= self.framer.received
            self.due = self._loop.time() + limits.DISCARD_S
        else:
            self._close()

    def _close(self) -> None:
        if unsent(self.transport):
            self.phase = Phase.CLOSING
            self.due = self._loop.time()
        else:
            self.phase = Phase.CLOSED
            self.due = _NEVER
            self.transport.close()

    def sweep(self, now: float) -> None:
        """Look at the bounds; called by the listener several times a second."""
        if self.untaken_since is not None and now - self.untaken_since >= _LOOK_AFTER_S:
            if not untaken(self.transport):
                self.untaken_since = None
            elif now - self.untaken_since >= limits.RESPONSE_S:
                self._listener.count_close(Close.RESPONSE_TIMEOUT)
                self.due = _NEVER
                self.transport.abort()
                return
        if now >= self.due:
            self._expire()

    def _expire(self) -> None:
        if self.phase is Phase.HEAD:
            idle = self.requests and not self.framer.started
            self._listener.count_close(Close.IDLE_TIMEOUT if idle else Close.HEADERS_TIMEOUT)
            self._close()
        elif self.phase is Phase.RUNNING:
            self.due = _NEVER
            self.timed_out = True
            self.task.cancel()
        elif self.phase is Phase.DISCARD or (self.phase is Phase.CLOSING and not unsent(self.transport)):
            self._close()
