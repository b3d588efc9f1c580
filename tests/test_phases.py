"""Every phase of a connection has its bound: slow clients of each kind, at the default bounds, all at the same time."""

import asyncio
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from provider import limits
from provider.outcomes import Reason
from provider.refs import SecretRef
from tests.kit.edge import edge, request
from tests.kit.stand import Stand, Wire, make_stand
from tests.kit.surface import Surface, finished
from tests.kit.world import PROJECT_ID

SLACK_S = 6.0
"""How late a bound may come on a busy machine. None may come early."""
CLOCKS_S = 0.05
"""Two processes see a moment at slightly different times."""
PROMISED = {
    "HANDSHAKE_S": 10, "HEADERS_S": 10, "BODY_S": 5, "IDLE_S": 5, "RESPONSE_S": 10, "DISCARD_S": 1,
    "DISCARD_BYTES": 65_536, "REQUESTS_PER_CONNECTION": 100, "HANDSHAKING_SHARE": 4,
}  # fmt: skip
BUNDLE = SecretRef.of(PROJECT_ID, "bundle", 1)
NO_TOKEN: dict[str, str | None] = {"authorization": None}


@pytest.fixture(scope="module")
def surface(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surface]:
    """One sidecar with default bounds, and a delivery far larger than any buffer of a slow client."""
    stand = make_stand(tmp_path_factory.mktemp("phases"), refs=4, bundle=BUNDLE)
    for ref in stand.world.refs:
        stand.put(ref, b"c4n4ry-v4lu3" * 1365)
    stand.put(BUNDLE, b'"' * 90_000)
    with Surface(stand) as made:
        stand.start()
        yield made


class Clients:
    """Slow clients, each in a thread of its own and from an address of its own."""

    def __init__(self, surface: Surface) -> None:
        self.surface = surface
        self.stand: Stand = surface.stand
        self.checking = threading.Lock()
        self._made = 1
        # Its file is written here, once, and not by several threads.
        surface.stand.pki.client_context(surface.stand.pki.client, surface.stand.directory)

    def wire(self) -> Wire:
        """Connect from a new address."""
        with self.checking:
            self._made += 1
            source = f"127.0.0.{self._made}"
        return self.stand.wire(source=source)

    def ask(self, wire: Wire) -> None:
        """Make one good request."""
        wire.send(self.stand.request())
        answer = wire.answer()
        with self.checking:
            self.surface.check(answer, None)

    def answer(self, wire: Wire, reason: Reason) -> None:
        """Read the answer of a refusal."""
        answer = wire.answer()
        with self.checking:
            self.surface.check(answer, reason)

    def silent(self, wire: Wire, *, dribble: bytes = b"", pause: float = 0.4) -> float:
        """Wait for the end, sending a byte now and then; return how long it took."""
        began = time.monotonic()
        wire.sock.settimeout(pause if dribble else 30)
        at = 0
        while True:
            try:
                if wire.sock.recv(1) == b"":
                    return time.monotonic() - began
                raise AssertionError("an answer where silence was promised")
            except TimeoutError:
                try:
                    wire.sock.send(dribble[at % len(dribble) :][:1])
                except OSError:
                    return time.monotonic() - began
                at += 1
            except OSError:
                return time.monotonic() - began


def stalled_handshake(clients: Clients) -> float:
    """Connect and say nothing."""
    with socket.create_connection(("127.0.0.1", clients.stand.port), source_address=("127.0.0.1", 0)) as sock:
        began = time.monotonic()
        sock.settimeout(30)
        assert sock.recv(1) == b""
        return time.monotonic() - began


def dribbled_handshake(clients: Clients) -> float:
    """Send a ClientHello a byte at a time."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = clients.stand.pki.client_context(clients.stand.pki.client, clients.stand.directory)
    hello = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        hello.do_handshake()
    data = outgoing.read()
    with socket.create_connection(("127.0.0.1", clients.stand.port), source_address=("127.0.0.100", 0)) as sock:
        began = time.monotonic()
        sock.settimeout(0.3)
        for at in range(len(data)):
            try:
                sock.send(data[at : at + 1])
                assert sock.recv(1) == b""
                break
            except TimeoutError:
                continue
            except OSError:
                break
        return time.monotonic() - began


def no_head(clients: Clients) -> float:
    """Finish the handshake and say nothing."""
    with clients.wire() as wire:
        return clients.silent(wire)


def dribbled_head(clients: Clients) -> float:
    """Send a head a byte at a time."""
    with clients.wire() as wire:
        return clients.silent(wire, dribble=clients.stand.request())


def dribbled_later_head(clients: Clients) -> float:
    """Begin a second head after four seconds, and dribble it: its time runs from its first byte."""
    with clients.wire() as wire:
        clients.ask(wire)
        time.sleep(4)
        wire.send(b"P")
        return clients.silent(wire, dribble=b"OST")


def idle(clients: Clients) -> float:
    """Say nothing after an answer."""
    with clients.wire() as wire:
        began = time.monotonic()
        clients.ask(wire)
        clients.silent(wire)
        return time.monotonic() - began


def body_that_never_comes(clients: Clients) -> float:
    """Declare a body and send none."""
    with clients.wire() as wire:
        began = time.monotonic()
        wire.send(clients.stand.request(b"", headers={"content-length": "10"}))
        clients.answer(wire, Reason.BODY_TIMEOUT)
        took = time.monotonic() - began
        assert finished(wire, 15)
        return took


def dribbled_body(clients: Clients) -> float:
    """Dribble a body that is no JSON: its time is over before that is seen; the connection ends a second later."""
    with clients.wire() as wire:
        began = time.monotonic()
        wire.send(clients.stand.request(b"", headers={"content-length": "500"}))
        wire.sock.settimeout(0.2)
        while True:
            wire.send(b"}")
            try:
                first = wire.sock.recv(65536)
            except TimeoutError:
                continue
            wire._data += first
            break
        took = time.monotonic() - began
        clients.answer(wire, Reason.BODY_TIMEOUT)
        assert finished(wire, 15)
        return took


def answer_that_is_not_taken(clients: Clients) -> float:
    """Ask for a large delivery and read nothing of it."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    raw.bind(("127.0.0.101", 0))
    raw.connect(("127.0.0.1", clients.stand.port))
    context = clients.stand.pki.client_context(clients.stand.pki.client, clients.stand.directory)
    with Wire(context.wrap_socket(raw, server_hostname="localhost")) as wire:
        before = clients.stand.metric('silent_closes_total{cause="response_timeout"}')
        wire.send(clients.stand.request(headers={"x-request-id": "not-taken"}))
        began = time.monotonic()
        while clients.stand.metric('silent_closes_total{cause="response_timeout"}') == before:
            assert time.monotonic() - began < 30
            time.sleep(0.05)
        took = time.monotonic() - began
        # Beneath TLS, which takes a reset in the middle of a record for an end.
        with socket.socket(fileno=wire.sock.detach()) as beneath, pytest.raises(OSError, match="reset"):
            while beneath.recv(65536):
                pass
    with clients.checking:
        clients.surface.told["delivered"] += 1
    return took


def discard_over_time(clients: Clients) -> float:
    """Dribble a body after its early answer: it is let in for a second, and the answer is not lost."""
    with clients.wire() as wire:
        began = time.monotonic()
        wire.send(clients.stand.request(b"", headers=NO_TOKEN | {"content-length": "60000"}))
        clients.answer(wire, Reason.UNAUTHENTICATED)
        wire.sock.settimeout(0.05)
        while True:
            try:
                if wire.sock.recv(1) == b"":
                    break
            except TimeoutError:
                wire.sock.send(b"x")
            except OSError:
                break
        return time.monotonic() - began


def discard_of_a_late_body(clients: Clients) -> float:
    """Send 60 KiB after the early answer and read only then: the answer is there, and the end after it is in order."""
    with clients.wire() as wire:
        wire.send(clients.stand.request(b"", headers=NO_TOKEN | {"content-length": "61440"}))
        time.sleep(0.3)
        began = time.monotonic()
        for _ in range(60):
            wire.send(b"x" * 1024)
        clients.answer(wire, Reason.UNAUTHENTICATED)
        assert finished(wire, 15)
        return time.monotonic() - began


def discard_of_a_flood(clients: Clients) -> float:
    """Send far more than 64 KiB after the early answer: the connection ends while more is being sent."""
    with clients.wire() as wire:
        wire.send(clients.stand.request(b"", headers=NO_TOKEN | {"content-length": str(1 << 40)}))
        clients.answer(wire, Reason.UNAUTHENTICATED)
        began = time.monotonic()
        with pytest.raises(OSError):  # a reset or a broken pipe
            while True:
                wire.send(b"x" * 65536)
        return time.monotonic() - began


def discard_after_a_huge_head(clients: Clients) -> float:
    """Send a head over 16 KiB and on: its 400 is not lost to a reset."""
    with clients.wire() as wire:
        wire.send(b"POST / HTTP/1.1\r\nx: " + b"y" * 20_000)
        time.sleep(0.3)
        began = time.monotonic()
        for _ in range(20):
            wire.send(b"y" * 1024)
        clients.answer(wire, Reason.MALFORMED)
        assert finished(wire, 15)
        return time.monotonic() - began


def pipelining(clients: Clients) -> float:
    """Send two requests at once: one answer, the end, and more bytes meanwhile cost nobody the answer."""
    with clients.wire() as wire:
        wire.send(clients.stand.request() + clients.stand.request())
        began = time.monotonic()
        time.sleep(0.2)
        wire.send(clients.stand.request())
        answer = wire.answer()
        with clients.checking:
            clients.surface.check(answer, None)
        assert answer.header("connection") == "close"
        assert finished(wire, 15)
        return time.monotonic() - began


def good(clients: Clients) -> float:
    """Be a good worker all the while, on one connection after the other."""
    began = time.monotonic()
    while time.monotonic() - began < 10:
        with clients.wire() as wire:
            for _ in range(3):
                clients.ask(wire)
                time.sleep(0.2)
    return 10.0


BOUNDS: dict[Callable[[Clients], float], tuple[float, str | None]] = {
    stalled_handshake: (limits.HANDSHAKE_S, "handshake_timeout"),
    dribbled_handshake: (limits.HANDSHAKE_S, "handshake_timeout"),
    no_head: (limits.HEADERS_S, "headers_timeout"),
    dribbled_head: (limits.HEADERS_S, "headers_timeout"),
    dribbled_later_head: (limits.HEADERS_S, "headers_timeout"),
    idle: (limits.IDLE_S, "idle_timeout"),
    body_that_never_comes: (limits.BODY_S, None),
    dribbled_body: (limits.BODY_S, None),
    answer_that_is_not_taken: (limits.RESPONSE_S, "response_timeout"),
    discard_over_time: (limits.DISCARD_S, None),
    discard_of_a_late_body: (0, None),
    discard_of_a_flood: (0, None),
    discard_after_a_huge_head: (0, None),
    pipelining: (0, None),
    good: (10.0, None),
}
"""Each kind of client, the bound that it meets in seconds, and the cause under which its silent end is counted."""


async def deadline(directory: Path) -> float:
    """Let a request hang in this process until its default deadline."""
    async with edge(directory) as running:
        running.scene.steps.plans["lock"] = None
        client = await running.client()
        began = asyncio.get_running_loop().time()
        answer = await client.ask(request())
        assert (answer.status, answer.code) == (504, "request_timeout")
        return asyncio.get_running_loop().time() - began


def test_the_bounds_are_the_contracts() -> None:
    """The numbers that the slow clients meet are those of the contract."""
    assert {name: getattr(limits, name) for name in PROMISED} == PROMISED


async def test_every_bound_holds_and_none_comes_early(surface: Surface, tmp_path: Path) -> None:
    """Slow clients of every kind at once each meet their own bound, no sooner, and each silent end is counted."""
    clients = Clients(surface)
    loop = asyncio.get_running_loop()
    hanging = asyncio.create_task(deadline(tmp_path))
    with ThreadPoolExecutor(len(BOUNDS)) as threads:
        running = {kind.__name__: loop.run_in_executor(threads, kind, clients) for kind in BOUNDS}
        took = {name: await result for name, result in running.items()}
    took["deadline"] = await hanging
    surface.verify()
    bounds = {kind.__name__: bound for kind, (bound, _) in BOUNDS.items()} | {"deadline": 15.0}
    assert {name: seconds for name, seconds in took.items() if seconds < bounds[name] - CLOCKS_S} == {}
    assert {name: seconds for name, seconds in took.items() if seconds > bounds[name] + SLACK_S} == {}
    causes = Counter(cause for _, cause in BOUNDS.values() if cause)
    for cause in ("handshake_timeout", "headers_timeout", "idle_timeout", "response_timeout", "deadline_reset",
                  "connection_limit", "address_limit", "handshake_evicted"):  # fmt: skip
        assert surface.stand.metric(f'silent_closes_total{{cause="{cause}"}}') == causes[cause], cause
    assert surface.stand.metric("pipelined_connections_total") == 1
