"""The accept loop: limits before the handshake, each connection's identity, the sweep of bounds (contract 4)."""

import asyncio
import errno
import ipaddress
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from provider import limits
from provider.outcomes import Close
from sidecar.app import Application
from sidecar.connection import Connection, Phase
from sidecar.identity import Identity
from sidecar.metrics import Metrics

_SWEEP_S: Final = 0.05
_BACKLOG: Final = 512
_SHUTDOWN_S: Final = 1.0
"""TLS 1.3 peers need not answer a close_notify; longer than this is not waited."""
_DESCRIPTOR_ERRORS: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


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
            # Inherited by what is accepted: the kernel drops a peer that acknowledges nothing of our answer.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(limits.RESPONSE_S * 1000))
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
        self._open: dict[str, int] = {}
        self._total = 0
        self._handshakes: dict[asyncio.Task[None], str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sockets: list[socket.socket] = []
        self.connections: set[Connection] = set()

    def start(self, sockets: list[socket.socket]) -> None:
        """Begin to accept on bound sockets, and to sweep."""
        self._sockets = sockets
        for listening in sockets:
            _ = self._spawn(self._accept(listening))
        _ = self._spawn(self._sweep())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                accepted, address = await self._loop.sock_accept(listening)
            except OSError as error:
                # Out of descriptors, the listener waits for some to come back instead of spinning or dying.
                await asyncio.sleep(_SWEEP_S if error.errno in _DESCRIPTOR_ERRORS else 0)
                continue
            self._metrics.accepted += 1
            self._admit(accepted, address_key(address[0]))

    def _admit(self, accepted: socket.socket, key: str) -> None:
        of_address = self._open.get(key, 0)
        over = self._total >= self._limits.connections
        if over or of_address >= self._limits.per_address:
            self.count_close(Close.CONNECTION_LIMIT if over else Close.ADDRESS_LIMIT)
            accepted.close()
            return
        self._evict([task for task, of in self._handshakes.items() if of == key], self._limits.per_address)
        self._evict(list(self._handshakes), self._limits.connections)
        self._open[key] = of_address + 1
        self._total += 1
        task = self._spawn(self._handshake(accepted, key))
        self._handshakes[task] = key

    def _evict(self, handshaking: list[asyncio.Task[None]], limit: int) -> None:
        """Make room for one more before the end of its handshake: the oldest goes, not the new one."""
        if len(handshaking) >= max(1, limit // limits.HANDSHAKING_SHARE):
            self.count_close(Close.HANDSHAKE_EVICTED)
            del self._handshakes[handshaking[0]]
            handshaking[0].cancel()

    async def _handshake(self, accepted: socket.socket, key: str) -> None:
        identity = self._identity()
        connection = Connection(self._app, self, identity, key)
        self._metrics.handshaking += 1
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=identity.context,
                ssl_handshake_timeout=limits.HANDSHAKE_S,
                ssl_shutdown_timeout=_SHUTDOWN_S,
            )
        except (ConnectionAbortedError, TimeoutError):
            self.count_close(Close.HANDSHAKE_TIMEOUT)
        except (OSError, ssl.SSLError):
            self.count_close(Close.HANDSHAKE_FAILED)
        finally:
            self._metrics.handshaking -= 1
            task = asyncio.current_task()
            if task is not None:
                self._handshakes.pop(task, None)
            if not connection.made:
                accepted.close()
                self._release(key)

    def opened(self, connection: Connection) -> None:
        """Count a connection whose handshake is done."""
        self.connections.add(connection)
        self._metrics.connections = len(self.connections)

    def closed(self, connection: Connection) -> None:
        """Count a connection out; its places are free again."""
        self.connections.discard(connection)
        self._metrics.connections = len(self.connections)
        self._release(connection.address)

    def _release(self, key: str) -> None:
        self._total -= 1
        left = self._open[key] - 1
        if left:
            self._open[key] = left
        else:
            del self._open[key]

    def count_close(self, cause: Close) -> None:
        """Count a silent close."""
        self._metrics.closes[cause] += 1

    def count_pipelined(self) -> None:
        """Count a connection that ends for pipelining."""
        self._metrics.pipelined += 1

    async def _sweep(self) -> None:
        while True:
            before = self._loop.time()
            await asyncio.sleep(_SWEEP_S)
            now = self._loop.time()
            self._metrics.loop_lag_s = max(self._metrics.loop_lag_s, now - before - _SWEEP_S)
            for connection in tuple(self.connections):
                connection.sweep(now)

    async def drain(self, limit_s: float) -> None:
        """Let running requests finish within `limit_s` seconds, then reset what still runs and wait for its wipe."""
        end = self._loop.time() + limit_s
        # Looking is simpler than telling: nothing on the request path has to know of a drain.
        while self._loop.time() < end and any(c.phase is Phase.RUNNING for c in self.connections):  # noqa: ASYNC110
            await asyncio.sleep(_SWEEP_S / 5)
        left = [c for c in self.connections if c.phase is Phase.RUNNING]
        for connection in left:
            self.count_close(Close.DRAIN_RESET)
            connection.abort()
            connection.task.cancel()
        if left:
            await asyncio.wait([connection.task for connection in left], timeout=1)

    async def stop(self) -> None:
        """Close the sockets, then every connection, an answer on its way included once it is in the kernel."""
        for task in tuple(self._tasks):
            task.cancel()
        for listening in self._sockets:
            listening.close()
        for connection in tuple(self.connections):
            connection.close_when_idle()
        end = self._loop.time() + _SHUTDOWN_S
        while self.connections and self._loop.time() < end:  # noqa: ASYNC110 - as in drain
            await asyncio.sleep(_SWEEP_S / 5)
        for connection in tuple(self.connections):
            with suppress(OSError):
                connection.abort()
        await asyncio.sleep(0)
