"""The accept loop: limits before the handshake, each connection's identity, the sweep of bounds (contract 4)."""

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from provider import limits
from provider.outcomes import Close
from sidecar.app import Application
from sidecar.connection import Connection
from sidecar.head import exceeded
from sidecar.identity import Identity
from sidecar.metrics import Metrics
from sidecar.tlswire import read_little, tell_refusals

_SWEEP_S: Final = 0.05
_BACKLOG: Final = 512
_SHUTDOWN_S: Final = 1.0
"""TLS 1.3 peers need not answer a close_notify; longer than this is not waited."""
_SETTLE_S: Final = 3.0
"""How long stopping waits for cancelled requests to wipe and for answered ones to write their record."""
DESCRIPTOR_ERRORS: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
"""What accepting fails with for want of descriptors or memory."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Configured limits: open connections, and open connections of one address."""

    connections: int
    per_address: int


def address_key(host: str) -> str:
    """Return the key of an address in the limits: IPv4 as it is (also when mapped into IPv6), IPv6 by its /64."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return str(ipaddress.ip_network((address, 64), strict=False))
        address = address.ipv4_mapped
    return str(address)


def bind(host: str, port: int) -> list[socket.socket]:
    """Return listening sockets for every address of `host`. Raises OSError when one cannot be had."""
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        ):
            listening = socket.socket(family, kind, protocol)
            sockets.append(listening)
            listening.setblocking(False)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # `::` alone is dual stack; beside an IPv4 address of the same name it must not take both.
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host == "::" else 1)
            # Inherited by what is accepted: the kernel drops a peer that acknowledges nothing. A little later than
            # the sweep does, which counts it; what is left to the kernel are connections that we have closed.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(limits.RESPONSE_S * 1000) + 1000)
            listening.bind(address)
            listening.listen(_BACKLOG)
    except OSError:
        for listening in sockets:
            listening.close()
        raise
    return sockets


class Listener:
    """Accepts connections until `stop`; knows every open one."""

    def __init__(
        self, app: Application, identity: Callable[[], Identity], limits: ConnectionLimits, metrics: Metrics
    ) -> None:
        """`identity` returns the snapshot for a connection accepted now."""
        self._app = app
        self._identity = identity
        self._limits = limits
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._places: set[Connection] = set()
        """Every connection that counts, before its handshake ended too."""
        self._of_address: dict[str, int] = {}
        self._handshakes: dict[Connection, asyncio.Task[None]] = {}
        """Connections before the end of their handshake, the oldest first."""
        self._serving: set[asyncio.Task[None]] = set()
        self._accepting: list[asyncio.Task[None]] = []
        self._sweeping: asyncio.Task[None] | None = None
        self._sockets: list[socket.socket] = []
        self.connections: set[Connection] = set()

    def start(self, sockets: list[socket.socket]) -> None:
        """Begin to accept on bound sockets, and to sweep."""
        read_little()
        tell_refusals()
        self._sockets = sockets
        self._accepting = [self._loop.create_task(self._accept(listening)) for listening in sockets]
        self._sweeping = self._loop.create_task(self._sweep())

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                accepted, address = await self._loop.sock_accept(listening)
            except OSError as error:
                # Out of descriptors, the listener waits for some to come back instead of spinning or dying.
                is_out = error.errno in DESCRIPTOR_ERRORS
                self._metrics.accept_pauses += is_out
                await asyncio.sleep(_SWEEP_S if is_out else 0)
                continue
            self._metrics.accepted += 1
            self._admit(accepted, address_key(address[0]))
            # While connections queue, accepting does not suspend: requests take turns with a storm of them.
            await asyncio.sleep(0)

    def _admit(self, accepted: socket.socket, key: str) -> None:
        self._evict([one for one in self._handshakes if one.address == key], self._limits.per_address)
        if self._of_address.get(key, 0) >= self._limits.per_address:
            self._turn_away(accepted, Close.ADDRESS_LIMIT)
            return
        self._evict(list(self._handshakes), self._limits.connections)
        if len(self._places) >= self._limits.connections:
            self._turn_away(accepted, Close.CONNECTION_LIMIT)
            return
        connection = Connection(self._app, self, self._identity(), key)
        self._places.add(connection)
        self._of_address[key] = self._of_address.get(key, 0) + 1
        task = self._loop.create_task(self._handshake(connection, accepted))
        self._handshakes[connection] = task
        # Not at the end of the task's own code: a task that is cancelled before its first step never runs it.
        task.add_done_callback(lambda _: self._handshake_ended(connection, accepted))
        self._count()

    def _turn_away(self, accepted: socket.socket, cause: Close) -> None:
        self.count_close(cause)
        accepted.close()

    def _evict(self, handshaking: list[Connection], limit: int) -> None:
        """Make room for one more before the end of its handshake: the oldest goes, not the new one."""
        if len(handshaking) >= max(1, limit // limits.HANDSHAKING_SHARE):
            self.count_close(Close.HANDSHAKE_EVICTED)
            self._handshakes.pop(handshaking[0]).cancel()
            self._release(handshaking[0])

    async def _handshake(self, connection: Connection, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=connection.identity.context,
                ssl_handshake_timeout=limits.HANDSHAKE_S,
                ssl_shutdown_timeout=_SHUTDOWN_S,
            )
        except (ConnectionAbortedError, TimeoutError):
            self.count_close(Close.HANDSHAKE_TIMEOUT)
        except OSError:  # TLS errors are among them
            self.count_close(Close.HANDSHAKE_FAILED)

    def _handshake_ended(self, connection: Connection, accepted: socket.socket) -> None:
        self._handshakes.pop(connection, None)
        if not connection.made:
            accepted.close()
            self._release(connection)
        self._count()

    def opened(self, connection: Connection) -> None:
        """Take over a connection whose handshake is done; it is not evicted any more."""
        self._handshakes.pop(connection, None)
        self.connections.add(connection)
        self._serving.add(connection.task)
        connection.task.add_done_callback(self._serving.discard)
        self._count()

    def closed(self, connection: Connection) -> None:
        """Forget a connection; its places are free again."""
        self.connections.discard(connection)
        self._release(connection)
        self._count()

    def _release(self, connection: Connection) -> None:
        """Give the places of a connection back, once."""
        if connection not in self._places:
            return
        self._places.remove(connection)
        left = self._of_address[connection.address] - 1
        if left:
            self._of_address[connection.address] = left
        else:
            del self._of_address[connection.address]

    def _count(self) -> None:
        self._metrics.connections = len(self.connections)
        self._metrics.handshaking = len(self._handshakes)

    def count_close(self, cause: Close) -> None:
        """Count a silent close."""
        self._metrics.closes[cause] += 1

    def count_pipelined(self) -> None:
        """Count a connection that ends for pipelining."""
        self._metrics.pipelined += 1

    def count_used_up(self) -> None:
        """Count a connection that ends because it has made as many requests as one may."""
        self._metrics.used_up += 1

    def count_refused_head(self, block: bytes | None) -> None:
        """Count a malformed head by the bound that it is over, if it is; None: by the bytes that a head may have."""
        limit = exceeded(block)
        if limit is not None:
            self._metrics.head_limits[limit] += 1

    async def _sweep(self) -> None:
        while True:
            before = self._loop.time()
            await asyncio.sleep(_SWEEP_S)
            now = self._loop.time()
            self._metrics.loop_lag_s = max(self._metrics.loop_lag_s, now - before - _SWEEP_S)
            self._look(now)

    def _look(self, now: float) -> None:
        # Not in the loop above, whose frame would keep the last connection, and the buffers of its TLS, until the next.
        for connection in tuple(self.connections):
            try:
                connection.sweep(now)
            except Exception:  # noqa: BLE001 - one connection gone wrong must not lift the bounds of all others
                connection.abort()

    async def drain(self, limit_s: float) -> None:
        """Let running requests finish within `limit_s` seconds, then reset what still runs."""
        end = self._loop.time() + limit_s
        # Looking is simpler than telling: nothing on the request path has to know of a drain.
        while self._loop.time() < end and any(one.busy for one in self.connections):  # noqa: ASYNC110
            await asyncio.sleep(_SWEEP_S / 5)
        for connection in [one for one in self.connections if one.busy]:
            self.count_close(Close.DRAIN_RESET)
            connection.abort()

    async def stop(self) -> None:
        """Close the sockets, then every connection, and wait until what ran for them has wiped what it held."""
        ending = {*self._accepting, *self._handshakes.values()}
        for task in ending:
            task.cancel()
        for listening in self._sockets:
            listening.close()
        for connection in tuple(self.connections):
            connection.close_unless_busy()
        end = self._loop.time() + _SHUTDOWN_S
        while self.connections and self._loop.time() < end:  # noqa: ASYNC110 - as in drain
            await asyncio.sleep(_SWEEP_S / 5)
        for connection in tuple(self.connections):
            connection.abort()
        if ending := ending | self._serving:
            await asyncio.wait(ending, timeout=_SETTLE_S)
        if self._sweeping is not None:
            self._sweeping.cancel()
