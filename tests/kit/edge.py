"""The serving half in this process: real sockets and TLS, the real listener and application, fakes behind the pipeline.

What a whole `serve` cannot be made to do shows here: to hang at a chosen step, to be looked at between two steps.
"""

import asyncio
import fcntl
import socket
import struct
import termios
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sidecar import identity
from sidecar.app import Application
from sidecar.connection import Connection
from sidecar.events import EVENTS, FIELDS, Events
from sidecar.exchange import AppLimits, Gate
from sidecar.identity import Identity
from sidecar.listener import ConnectionLimits, Listener, bind
from sidecar.metrics import Metrics
from sidecar.shield import Shield, ShieldLimits
from tests.kit import valid
from tests.kit.fakes import Scene, scene
from tests.kit.pki import Pki, pki
from tests.kit.stand import Answer, parse_answer

TARGET = f"/api/v3/worker-ingress/workers/{valid.WORKER}/sessions/{valid.SESSION}/secrets"


def request(
    body: bytes | None = None, *, method: str = "POST", target: str = TARGET, **headers: str | bytes | None
) -> bytes:
    """Return a valid request's bytes, with changes; a header of None is left out."""
    content = valid.body() if body is None else body
    fields: dict[str, str | bytes | None] = {
        "host": "localhost",
        "authorization": valid.AUTHORIZATION,
        "content-type": "application/json",
        "content-length": str(len(content)),
    }
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{method} {target} HTTP/1.1".encode()]
    for name, value in fields.items():
        if value is not None:
            lines.append(name.encode() + b": " + (value if isinstance(value, bytes) else value.encode()))
    return b"\r\n".join(lines) + b"\r\n\r\n" + content


class Heard(Events):
    """Events that are kept and not written."""

    def __init__(self) -> None:
        super().__init__("replica-1")
        self.lines: list[dict[str, Any]] = []

    def emit(self, event: str, level: str = "info", **fields: object) -> None:
        """Keep one event of the white list."""
        assert event in EVENTS
        assert fields.keys() <= FIELDS
        self.lines.append({"event": event, "level": level, **fields})


class Client:
    """A worker's TLS connection, in this event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a connection."""
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.writer.write(data)

    async def answer(self) -> Answer:
        """Read one answer. Raises IncompleteReadError when the connection ends before."""
        async with asyncio.timeout(20):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            return parse_answer(head + await self.reader.readexactly(length))[0]

    async def ask(self, data: bytes | None = None) -> Answer:
        """Send a request, the valid one if none is given, and read its answer."""
        self.send(request() if data is None else data)
        return await self.answer()

    async def ended(self) -> bytes:
        """Wait until the server ends the connection; return what came before, b"RESET" for a reset."""
        async with asyncio.timeout(20):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b"RESET"

    def reset(self) -> None:
        """Reset the connection, unless it is over."""
        sock = self.writer.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.writer.transport.abort()

    def untaken(self) -> int:
        """Return how many bytes of ours the server's kernel has not acknowledged."""
        sock = self.writer.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return 0
        raw = self.writer.transport._ssl_protocol._transport  # type: ignore[attr-defined]
        waiting = 0 if raw is None else raw.get_write_buffer_size()
        return int(waiting + struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))[0])

    async def close(self) -> None:
        """Close the connection."""
        self.writer.transport.abort()
        with suppress(OSError):
            await self.writer.wait_closed()


@dataclass
class Edge:
    """A running listener and all that it meets."""

    scene: Scene
    app: Application
    listener: Listener
    metrics: Metrics
    events: Heard
    pki: Pki
    directory: Path
    port: int
    identities: list[Identity]
    """The snapshot in service stands last."""
    clients: list[Client] = field(default_factory=list)

    async def client(self, pair: Any = None, source: str | None = None, *, receive_buffer: int = 0) -> Client:
        """Connect as a worker."""
        sock = socket.socket()
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        if source:
            sock.bind((source, 0))
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        context = self.pki.client_context(pair or self.pki.client, self.directory)
        reader, writer = await asyncio.open_connection(
            sock=sock, ssl=context, server_hostname="localhost", ssl_shutdown_timeout=1, limit=1 << 12
        )
        client = Client(reader, writer)
        self.clients.append(client)
        # A client's half of a handshake is done before the server's.
        ours = writer.get_extra_info("sockname")

        def decided() -> bool:
            names = [one.transport.peername() for one in self.listener.connections]
            return ours in names or writer.transport.is_closing()

        await self.until(decided)
        if writer.transport.is_closing():
            raise ConnectionResetError
        return client

    def plain(self) -> socket.socket:
        """Connect without TLS, at once: the kernel queues it until the loop turns."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    @property
    def connection(self) -> Connection:
        """The only open connection."""
        (connection,) = self.listener.connections
        return connection

    def told(self) -> list[tuple[object, object]]:
        """Code and stage of every request told so far."""
        return [(line["code"], line["stage"]) for line in self.events.lines if line["event"] == "request_completed"]

    async def until(self, condition: Any) -> None:
        """Let the loop turn until `condition` holds. Raises TimeoutError after 20 s."""
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.002)

    async def until_told(self, count: int) -> None:
        """Wait until so many requests were told."""
        await self.until(lambda: len(self.told()) >= count)

    def is_empty(self) -> bool:
        """Nothing is counted, held or open any more."""
        return (
            not self.listener.connections
            and not self.listener._places
            and not self.listener._of_address
            and not self.listener._handshakes
            and not self.listener._serving
            and (self.metrics.connections, self.metrics.handshaking, self.metrics.in_flight) == (0, 0, 0)
            and not self.app.busy
            and self.scene.is_clean
        )


@asynccontextmanager
async def edge(
    directory: Path,
    *,
    remote: bool = True,
    receipts: bool = False,
    connections: ConnectionLimits | None = None,
    limits: AppLimits | None = None,
    shield: ShieldLimits | None = None,
) -> AsyncIterator[Edge]:
    """Serve the fakes' valid world on a free port of loopback; at the end everything must be as at the start."""
    certificates = pki()
    snapshot = identity.load(certificates.write(directory / "tls"))
    loop = asyncio.get_running_loop()
    made = scene(remote=remote, receipts=receipts)
    # The world stands still: its clocks were read a day from now.
    made.store.snapshot = replace(made.store.snapshot, read_at=loop.time() + 86_400)
    metrics, events, identities = Metrics(), Heard(), [snapshot]
    app = Application(
        made.ports,
        limits or AppLimits(65_536, 64, 8, 15.0, binding=False),
        lambda: identities[-1],
        Shield(shield or ShieldLimits(60, 120, 1200, 4096), time.monotonic),
        metrics,
        events,
    )
    app.gate = Gate.OPEN
    listener = Listener(app, lambda: identities[-1], connections or ConnectionLimits(1024, 64), metrics)
    sockets = bind("127.0.0.1", 0)
    listener.start(sockets)
    port = sockets[0].getsockname()[1]
    running = Edge(made, app, listener, metrics, events, certificates, directory, port, identities)
    try:
        yield running
    finally:
        for client in running.clients:
            await client.close()
        await listener.stop()
    assert running.is_empty()
