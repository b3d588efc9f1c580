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
from sidecar.tlswire import Transport

if TYPE_CHECKING:
    from sidecar.app import Application
    from sidecar.identity import Identity
    from sidecar.listener import Listener

_NEVER: Final = float("inf")
_LOOK_AFTER_S: Final = 0.5
"""How long an answer may be on its way before the kernel is asked whether the peer has taken it."""


class PeerGone(Exception):
    """The connection is over, so nothing of the answer was handed over."""


@unique
class Phase(Enum):
    """Where a connection is; each has its own bound and its own silent end."""

    HEAD = "head"
    """Idle, or a head is arriving."""
    RUNNING = "running"
    """A request is there and has no answer yet."""
    DISCARD = "discard"
    """The last answer is given; what still arrives runs out."""
    CLOSING = "closing"
    """Nothing more is looked at; the peer has yet to take the last answer."""
    CLOSED = "closed"


class Connection:
    """Frames requests, bounds every phase, writes answers."""

    __slots__ = (
        "_app", "_arrived", "_body_waiter", "_budget", "_listener", "_loop", "_waiter", "address",
        "deadline", "due", "framer", "identity", "peer", "phase", "requests", "task", "timed_out", "transport",
        "untaken_since",
    )  # fmt: skip

    transport: Transport
    """Set by whoever accepted the socket, before anything else happens."""
    task: asyncio.Task[None]
    """Runs the requests one after the other, from the first one on."""

    def __init__(self, app: "Application", listener: "Listener", identity: "Identity", address: str) -> None:
        """`identity` is the TLS snapshot this connection was accepted under; `address` is its key in the limits."""
        self._app = app
        self._listener = listener
        self._loop = app.loop
        self.identity = identity
        self.address = address
        self.framer = Framer()
        self.phase = Phase.HEAD
        self.requests = 0
        self.timed_out = False
        """Whether the task was cancelled because its request's deadline had come."""
        self.due = _NEVER
        self.deadline = _NEVER
        self.untaken_since: float | None = None
        """When the last answer was handed to TLS, until the peer is known to have taken it."""
        self._arrived: Head | Reason | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._body_waiter: asyncio.Future[None] | None = None
        self._budget = limits.DISCARD_BYTES

    def connection_made(self) -> None:
        """After the handshake: take the peer and wait for a first head, which begins the task."""
        self.peer = Peer.of(self.transport.tls)
        self.due = self._loop.time() + limits.HEADERS_S
        self._listener.opened(self)

    def connection_lost(self) -> None:
        """End what runs for a peer that has gone, which wipes it. An answered request may finish its record."""
        unanswered = self.phase is Phase.RUNNING
        self.phase = Phase.CLOSED
        self.due = _NEVER
        # One that has just arrived is taken up all the same, so that it too is counted and told.
        if unanswered and self._arrived is None:
            self.task.cancel()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)  # no request has come, so the task ends
        self._listener.closed(self)

    def data_received(self, data: bytes) -> None:
        """Feed the framer; nothing is parsed here but a complete head."""
        if self.phase is Phase.HEAD:
            self._feed_head(data)
        elif self.phase is Phase.RUNNING:
            self.framer.feed(data)
            if self.framer.unwanted > limits.DISCARD_BYTES:
                self.transport.hold_back()  # a flood is left to the kernel: we would only throw it away
            if self._body_waiter is not None and self.framer.complete and not self._body_waiter.done():
                self._body_waiter.set_result(None)
        elif self.phase is Phase.DISCARD:
            self.framer.feed(data)
            self._budget -= len(data)
            if self._budget < 0 or self._ran_out():
                self._close()
        elif self.phase is Phase.CLOSING:
            self._budget -= len(data)
            if self._budget < 0:
                self.transport.hold_back()  # a flood is left to the kernel: we would only throw it away

    def _feed_head(self, data: bytes) -> None:
        if self.requests and not self.framer.started:
            if self.transport.unsent:
                # The answer before is not complete, since we still hold a part of it: a peer that asks on without
                # reading would make us hold ever more.
                self._listener.count_pipelined()
                self._close()
                return
            self.due = self._loop.time() + limits.HEADERS_S
        block: bytes | None = None
        try:
            block = self.framer.feed(data)
            if block is None:
                return
            head = self._app.parse(block)
        except Refused as refused:
            self._listener.count_refused_head(block)
            self.framer.expect(None, collect=False)
            self._arrived = refused.reason
        else:
            length = None if head.chunked else head.length or 0
            self.framer.expect(length, collect=length is not None and length <= self._app.limits.max_body_bytes)
            self._arrived = head
        self.requests += 1
        self.phase = Phase.RUNNING
        self.deadline = self.due = self._loop.time() + self._app.limits.request_timeout_s
        if self.requests == 1:
            self.task = self._loop.create_task(self._run())
            self._listener.serving(self.task)
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _run(self) -> None:
        try:
            while await self._next():
                await self._app.handle(self, self._take_up())
        except asyncio.CancelledError:
            # Nobody awaits this task. Kept in it, the error would keep our frames, and they this connection with the
            # buffers that TLS has for it, until a collection of the oldest generation.
            pass
        finally:
            # An answer moves the phase on; a task that ends without one leaves nobody waiting.
            if self.phase is Phase.RUNNING:
                self.abort()

    async def _next(self) -> bool:
        """Wait for a request; return whether there is one. After the last answer there is none."""
        if self._arrived is None and self.phase is Phase.HEAD:
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._arrived is not None

    def _take_up(self) -> Head | Reason:
        # Given away: the credential in a head must not stay here until the next one.
        arrived, self._arrived = self._arrived, None
        if arrived is None:
            raise RuntimeError("no request has arrived")
        return arrived

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

    def answer(self, data: bytes | memoryview, *, last: bool) -> None:
        """Hand a whole answer to TLS, which has encrypted it when this returns. `last`: the connection ends with it.

        Raises PeerGone when the connection is over; nothing was handed over then.
        """
        if self.phase is not Phase.RUNNING:
            raise PeerGone
        if not self.transport.write(data):
            self.abort()
            raise PeerGone
        self.transport.let_in()
        self.untaken_since = self._loop.time()
        if self.framer.pipelined:
            self._listener.count_pipelined()
        if self.requests >= limits.REQUESTS_PER_CONNECTION:
            self._listener.count_used_up()
        if not last:
            self.framer.next()
            self.phase = Phase.HEAD
            self.due = self.untaken_since + limits.IDLE_S
        elif self._ran_out():
            self._close()
        else:
            # What still arrives is let in, a little, so that no reset overtakes the answer.
            self.framer.drop()
            self.phase = Phase.DISCARD
            self.due = self.untaken_since + limits.DISCARD_S

    def _ran_out(self) -> bool:
        """Whether the peer has sent all that it announced, and nothing else."""
        return self.framer.complete and not self.framer.pipelined

    def abort(self) -> None:
        """Reset the connection."""
        self.due = _NEVER
        self.untaken_since = None
        self.transport.reset()

    @property
    def busy(self) -> bool:
        """Whether a request runs or a part of an answer is still held in this process."""
        return self.phase is Phase.RUNNING or self.transport.unsent > 0

    def close_unless_busy(self) -> None:
        """Close at once if no request runs."""
        if self.phase is Phase.HEAD or self.phase is Phase.DISCARD:
            self._close()

    def _close(self) -> None:
        self.framer.drop()
        if self.transport.untaken:
            self.phase = Phase.CLOSING
            self.due = self._loop.time()
            if self.untaken_since is None:
                self.untaken_since = self.due
        else:
            self.phase = Phase.CLOSED
            self.due = self._loop.time() + limits.SHUTDOWN_S
            self.transport.close()

    def sweep(self, now: float) -> None:
        """Look at the bounds; called by the listener several times a second."""
        since = self.untaken_since
        if since is not None and now - since >= _LOOK_AFTER_S:
            if not self.transport.untaken:
                self.untaken_since = None
            elif now >= since + limits.RESPONSE_S:
                self._listener.count_close(Close.RESPONSE_TIMEOUT)
                self.abort()
            elif now >= self.deadline and self.phase is not Phase.RUNNING:
                self._listener.count_close(Close.DEADLINE_RESET)
                self.abort()
        if now >= self.due:
            self._expire()

    def _expire(self) -> None:
        if self.phase is Phase.HEAD:
            if self.framer.started or not self.requests:
                self._listener.count_close(Close.HEADERS_TIMEOUT)
            elif self.untaken_since is not None and self.transport.untaken:
                self.due = self.untaken_since + limits.RESPONSE_S
                return
            else:
                self._listener.count_close(Close.IDLE_TIMEOUT)
            self._close()
        elif self.phase is Phase.RUNNING:
            # The request before may still be writing its record; what waits behind it is cancelled once it runs.
            if self._arrived is None:
                self.due = self.deadline = _NEVER
                self.timed_out = True
                self.task.cancel()
        elif self.phase is Phase.CLOSED:
            self.abort()  # a peer need not say its own end
        else:
            self._close()
