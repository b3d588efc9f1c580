"""The accept loop: limits before the handshake, each connection's identity, the sweep of bounds (contract 4)."""

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from provider import limits
from provider.outcomes import Close
from sidecar.app import Application
from sidecar.connection import Connection
from sidecar.head import exceeded
from sidecar.identity import Identity
from sidecar.metrics import Metrics
from sidecar.tlswire import READ_BYTES, Transport

_SWEEP_S: Final = 0.05
_BACKLOG: Final = 512
_ACCEPTS: Final = 4
_ADDRESSES: Final = 1024
"""Addresses whose key is remembered: parsing one costs as much as accepting it."""
_SETTLE_S: Final = 3.0
"""How long stopping waits for cancelled requests to wipe and for answered ones to write their record."""
DESCRIPTOR_ERRORS: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
"""What accepting fails with for want of descriptors or memory."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Configured limits: open connections, and open connections of one address."""

    connections: int
    per_address: int


@lru_cache(maxsize=_ADDRESSES)
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
            # Inherited, too: an answer must not wait until the bytes before it are acknowledged.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
        self._handshakes: dict[Connection, float] = {}
        """Connections before the end of their handshake, the oldest first, and until when it may last."""
        self._serving: set[asyncio.Task[None]] = set()
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._sweeping: asyncio.Task[None] | None = None
        self._sockets: list[socket.socket] = []
        self.connections: set[Connection] = set()

    def start(self, sockets: list[socket.socket]) -> None:
        """Begin to accept on bound sockets, and to sweep."""
        self._sockets = list(sockets)
        for listening in sockets:
            self._listen(listening)
        self._sweeping = self._loop.create_task(self._sweep())

    def _listen(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:  # not closed since
            self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        # A few at a time: requests take turns with a storm of connections.
        for _ in range(_ACCEPTS):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in DESCRIPTOR_ERRORS:
                    # The listener waits for some to come back instead of spinning or dying.
                    self._metrics.accept_pauses += 1
                    self._loop.remove_reader(listening)
                    self._loop.call_later(_SWEEP_S, self._listen, listening)
                    return
                continue  # that peer was gone before it was accepted
            self._metrics.accepted += 1
            accepted.setblocking(False)
            self._admit(accepted, address_key(address[0]))

    def _admit(self, accepted: socket.socket, key: str) -> None:
        self._evict(self._limits.per_address, key)
        if self._of_address.get(key, 0) >= self._limits.per_address:
            self._turn_away(accepted, Close.ADDRESS_LIMIT)
            return
        self._evict(self._limits.connections)
        if len(self._places) >= self._limits.connections:
            self._turn_away(accepted, Close.CONNECTION_LIMIT)
            return
        connection = Connection(self._app, self, self._identity(), key)
        connection.transport = Transport(self._loop, connection, accepted, connection.identity.context, self._buffer)
        self._places.add(connection)
        self._of_address[key] = self._of_address.get(key, 0) + 1
        self._handshakes[connection] = self._loop.time() + limits.HANDSHAKE_S
        self._count()

    def _turn_away(self, accepted: socket.socket, cause: Close) -> None:
        self.count_close(cause)
        accepted.close()

    def _evict(self, limit: int, key: str | None = None) -> None:
        """Make room for one more before the end of its handshake, of one address or of all: the oldest goes."""
        most = max(1, limit // limits.HANDSHAKING_SHARE)
        if len(self._handshakes) < most:
            return  # as is nearly always so; nothing need be counted
        handshaking = [one for one in self._handshakes if key is None or one.address == key]
        if len(handshaking) >= most:
            self._give_up(handshaking[0], Close.HANDSHAKE_EVICTED)

    def _give_up(self, connection: Connection, cause: Close) -> None:
        """End a handshake; its place is free at once."""
        self.count_close(cause)
        del self._handshakes[connection]
        self._release(connection)
        connection.transport.abort()

    def opened(self, connection: Connection) -> None:
        """Take over a connection whose handshake is done; it is not evicted any more."""
        self._handshakes.pop(connection, None)
        self.connections.add(connection)
        self._count()

    def serving(self, task: asyncio.Task[None]) -> None:
        """Keep the task of a connection that has got a first request; stopping waits for it."""
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    def closed(self, connection: Connection) -> None:
        """Forget a connection; its places are free again."""
        if self._handshakes.pop(connection, None) is not None:
            self.count_close(Close.HANDSHAKE_FAILED)
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
        for connection, until in tuple(self._handshakes.items()):
            if now < until:
                break
            self._give_up(connection, Close.HANDSHAKE_TIMEOUT)

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
        while self._sockets:
            listening = self._sockets.pop()
            self._loop.remove_reader(listening)
            listening.close()
        for connection in tuple(self._handshakes):
            del self._handshakes[connection]
            connection.transport.abort()
        for connection in tuple(self.connections):
            connection.close_unless_busy()
        end = self._loop.time() + limits.SHUTDOWN_S
        while self.connections and self._loop.time() < end:  # noqa: ASYNC110 - as in drain
            await asyncio.sleep(_SWEEP_S / 5)
        for connection in tuple(self.connections):
            connection.abort()
        await asyncio.sleep(0)  # what was aborted is told in the loop's next turn
        if self._serving:
            await asyncio.wait(self._serving, timeout=_SETTLE_S)
        if self._sweeping is not None:
            self._sweeping.cancel()
