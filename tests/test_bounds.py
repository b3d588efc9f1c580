"""Each bound of contract 4 at its default, on a real `serve`: it holds, only who is over it feels it, metrics tell."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from provider import limits
from provider.credential import make_token
from provider.outcomes import Reason
from sidecar import devcerts
from sidecar.devcerts import Pair
from sidecar.listener import ConnectionLimits
from sidecar.variables import BY_NAME
from tests.kit.edge import edge
from tests.kit.pki import pki
from tests.kit.stand import Stand, Wire, make_stand
from tests.kit.waiting import wait_for

DEFAULTS: Final = {
    "QL3_SECRET_SIDECAR_MAX_CONNECTIONS": "1024",
    "QL3_SECRET_SIDECAR_MAX_CONNECTIONS_PER_ADDRESS": "64",
    "QL3_WORKER_INGRESS_MAX_IN_FLIGHT": "64",
    "QL3_SECRET_SIDECAR_MAX_IN_FLIGHT_PER_CREDENTIAL": "8",
    "QL3_WORKER_INGRESS_MAX_BODY_BYTES": "65536",
    "QL3_WORKER_INGRESS_AUTH_RATE_PER_PEER": "120",
    "QL3_WORKER_INGRESS_AUTH_RATE_GLOBAL": "1200",
}


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """One sidecar of which nothing is configured that has a default."""
    with make_stand(tmp_path_factory.mktemp("bounds")) as made:
        assert not DEFAULTS.keys() & made.environment.keys()
        made.start()
        made.pki.client_context(made.pki.client, made.directory)
        yield made
        wait_for(lambda: made.metric("connections") == made.metric("handshaking_connections") == 0)
        assert made.metric("in_flight") == 0
        assert made.stderr() == ""


def closes(stand: Stand, cause: str) -> float:
    """How many connections were closed for a cause."""
    return stand.metric(f'silent_closes_total{{cause="{cause}"}}')


def refusals(stand: Stand, reason: Reason) -> float:
    """How many requests were refused for a reason."""
    return stand.metric(f'refusals_total{{reason="{reason.name.lower()}"}}')


def empty(stand: Stand) -> None:
    """Wait until nobody is connected."""
    wait_for(lambda: stand.metric("connections") == stand.metric("handshaking_connections") == 0)


def plain(stand: Stand, source: str) -> socket.socket:
    """Connect and say nothing."""
    return socket.create_connection(("127.0.0.1", stand.port), timeout=20, source_address=(source, 0))


def gone(sock: socket.socket) -> bool:
    """Tell whether the other side has ended a plain connection."""
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_the_defaults_are_the_contracts() -> None:
    """The numbers that are met below are those of contract 8."""
    assert {name: BY_NAME[name].default for name in DEFAULTS} == DEFAULTS


def test_connections_of_an_address(stand: Stand) -> None:
    """Sixty-four of one address are let in, the next is closed; another address does not feel it."""
    empty(stand)
    before = closes(stand, "address_limit")
    with ExitStack() as stack:
        wires = [stack.enter_context(stand.wire(source="127.0.1.1")) for _ in range(64)]
        wait_for(lambda: stand.metric("connections") == 64)
        with pytest.raises(OSError):
            stand.wire(source="127.0.1.1")
        assert closes(stand, "address_limit") == before + 1
        for wire in (stack.enter_context(stand.wire(source="127.0.1.2")), wires[0], wires[-1]):
            wire.send(stand.request())
            assert wire.answer().status == 200


def test_handshakes_of_an_address_and_of_all(stand: Stand) -> None:
    """Sixteen of an address and 256 of all may be before the end of their handshake: then the oldest gives way."""
    empty(stand)
    before = closes(stand, "handshake_evicted")
    with ExitStack() as stack:

        def stall(source: str) -> socket.socket:
            return stack.enter_context(plain(stand, source))

        first = [stall("127.0.2.1") for _ in range(16)]
        wait_for(lambda: stand.metric("handshaking_connections") == 16)
        assert closes(stand, "handshake_evicted") == before
        stall("127.0.2.1")
        wait_for(lambda: gone(first[0]))
        assert not gone(first[1])
        for number in range(2, 17):
            for _ in range(16):
                stall(f"127.0.2.{number}")
        wait_for(lambda: stand.metric("handshaking_connections") == 256)
        assert closes(stand, "handshake_evicted") == before + 1
        stall("127.0.2.17")
        wait_for(lambda: gone(first[1]))
        assert closes(stand, "handshake_evicted") == before + 2
        # Workers come through all the same.
        assert stand.ask().status == 200


def test_heads(stand: Stand) -> None:
    """A target of 8 KiB, 64 headers and 16 KiB of head pass; each with one more is malformed, and its bound is told."""
    host = f"host: localhost:{stand.port}\r\n"

    def head(target: str = "/x", fields: str = "") -> bytes:
        return f"POST {target} HTTP/1.1\r\n{host}{fields}\r\n".encode()

    def ask(data: bytes) -> str:
        with stand.wire() as wire:
            wire.send(data)
            return wire.answer().code

    def told() -> dict[str, float]:
        return {limit: stand.metric(f'head_limits_total{{limit="{limit}"}}') for limit in ("target", "fields", "block")}

    def filled(size: int) -> bytes:
        return head(fields=f"x: {'y' * (size - len(head(fields='x: ' + chr(13) + chr(10))))}\r\n")

    assert len(filled(limits.HEADER_BLOCK_BYTES)) == limits.HEADER_BLOCK_BYTES
    none = dict.fromkeys(("target", "fields", "block"), 0.0)
    good = [head("/" * limits.TARGET_BYTES), head(fields="x: y\r\n" * 63), filled(limits.HEADER_BLOCK_BYTES)]
    assert [ask(data) for data in good] == ["not_found"] * 3
    assert told() == none
    over = [head("/" * (limits.TARGET_BYTES + 1)), head(fields="x: y\r\n" * 64), filled(limits.HEADER_BLOCK_BYTES + 1)]
    for limit, data in zip(none, over, strict=True):
        before = told()
        assert ask(data) == "malformed_request"
        assert told() == before | {limit: before[limit] + 1}
    # What is malformed otherwise is over no bound, and a head without an end is over the last one.
    before = told()
    assert ask(b"nonsense\r\n\r\n") == "malformed_request"
    assert told() == before
    assert ask(b"POST /x HTTP/1.1\r\nx: " + b"y" * limits.HEADER_BLOCK_BYTES) == "malformed_request"
    assert told() == before | {"block": before["block"] + 1}


def test_bytes_of_a_body(stand: Stand) -> None:
    """A body of 64 KiB is read, one more byte is refused before the first of them is."""
    assert stand.ask(b" " * limits.BODY_BYTES).code == "invalid_json"
    before = refusals(stand, Reason.DECLARED_TOO_LARGE)
    assert stand.ask(b"", headers={"content-length": str(limits.BODY_BYTES + 1)}).code == "request_too_large"
    assert refusals(stand, Reason.DECLARED_TOO_LARGE) == before + 1


def test_requests_of_a_connection(stand: Stand) -> None:
    """A hundred requests are answered on a connection, and the last answer ends it."""
    before = stand.metric("used_up_connections_total")
    with stand.wire() as wire:
        for number in range(1, 101):
            wire.send(stand.request())
            answer = wire.answer()
            assert (answer.status, answer.header("connection")) == (200, "close" if number == 100 else None)
        assert wire.ended()
    assert stand.metric("used_up_connections_total") == before + 1


# --- in flight ---------------------------------------------------------------------------------------------------
def credentials(stand: Stand, count: int) -> list[str]:
    """Give the worker so many further credentials; return their tokens."""
    world, tokens = stand.world, []
    for number in range(count):
        name, secret = f"worker_{number}", bytes([number + 1]) * 31 + b"\x01"
        row = dict(world.rows["worker_credentials"]) | {
            "credential_id": name,
            "secret_digest": world.peppers.current.digest(name, secret),
        }
        marks = ", ".join("?" * len(row))
        world.execute(f"INSERT OR REPLACE INTO worker_credentials ({', '.join(row)}) VALUES ({marks})", [*row.values()])
        tokens.append(make_token(name, secret))
    return tokens


@contextmanager
def held(stand: Stand, wires: list[Wire], token: str) -> Iterator[None]:
    """Keep a request in flight on each connection, all of one credential, until its last byte comes."""
    body = stand.request(token=token)
    before = stand.metric("in_flight")
    for wire in wires:
        wire.send(body[:-1])
    wait_for(lambda: stand.metric("in_flight") == before + len(wires))
    yield
    for wire in wires:
        wire.send(body[-1:])
        assert wire.answer().status == 200


def test_requests_in_flight(stand: Stand) -> None:
    """Eight of a credential and 64 of all are in flight; the next is told to come again, and all of them are served."""
    empty(stand)
    own, all_of = refusals(stand, Reason.CREDENTIAL_IN_FLIGHT_LIMIT), refusals(stand, Reason.IN_FLIGHT_LIMIT)
    tokens = credentials(stand, 9)
    with ExitStack() as stack:
        # Connected before: a body has five seconds.
        sources = [f"127.0.3.{number + 1}" for number in range(9)]
        wires = [[stack.enter_context(stand.wire(source=source)) for _ in range(8)] for source in sources]
        with ExitStack() as holding:
            holding.enter_context(held(stand, wires[0], tokens[0]))
            answer = stand.ask(token=tokens[0])
            assert (answer.code, answer.header("retry-after")) == ("admission_capacity_exhausted", "1")
            assert refusals(stand, Reason.CREDENTIAL_IN_FLIGHT_LIMIT) == own + 1
            for number in range(1, 8):
                holding.enter_context(held(stand, wires[number], tokens[number]))
            wires[8][0].send(stand.request(token=tokens[8]))
            answer = wires[8][0].answer()
            assert (answer.code, answer.header("retry-after")) == ("admission_capacity_exhausted", "1")
            assert refusals(stand, Reason.IN_FLIGHT_LIMIT) == all_of + 1


# --- failed authentications --------------------------------------------------------------------------------------
def guesser() -> Pair:
    """Issue the certificate of somebody who only guesses."""
    return devcerts.issue(pki().intermediate, "guesser", client=True)


def guess(stand: Stand, pair: Pair, times: int = 1) -> list[str]:
    """Guess so often and return the codes."""
    codes = []
    for _ in range(times):
        with stand.wire(pair) as wire:
            wire.send(stand.request(token="ql3w_nobody_x"))
            codes.append(wire.answer().code)
    return codes


def test_failures_of_a_peer(stand: Stand) -> None:
    """A certificate may fail 120 times a minute; then it is refused, and others are not."""
    pair, before = guesser(), refusals(stand, Reason.SHIELDED)
    assert set(guess(stand, pair, 120)) == {"worker_authentication_required"}
    assert guess(stand, pair) == ["authentication_rate_limited"]
    assert refusals(stand, Reason.SHIELDED) == before + 1
    assert stand.metric("shield_refused_total") == before + 1
    assert stand.ask().status == 200
    assert guess(stand, guesser()) == ["worker_authentication_required"]


@pytest.mark.soak
def test_failures_of_all(tmp_path: Path) -> None:
    """All certificates together may fail 1200 times a minute; then who has failed is refused, and others are not."""
    with make_stand(tmp_path / "stand") as stand:
        # One window for all of them, however slow this machine is.
        stand.start(QL3_WORKER_INGRESS_AUTH_RATE_WINDOW_MS="3600000")
        pairs = [guesser() for _ in range(15)]
        for pair in pairs[:-1]:
            assert set(guess(stand, pair, 80)) == {"worker_authentication_required"}
        assert set(guess(stand, pairs[-1], 80)) == {"worker_authentication_required"}
        for pair in pairs:
            assert guess(stand, pair) == ["authentication_rate_limited"]
        assert stand.ask().status == 200


@pytest.mark.soak
async def test_connections_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand and twenty-four connections are let in, the next one is closed, and all of them are served on."""
    # A busy machine shakes fewer hands in ten seconds.
    monkeypatch.setattr("provider.limits.HEADERS_S", 100.0)
    async with edge(tmp_path, connections=ConnectionLimits(1024, 64)) as running:
        clients = [await running.client(source=f"127.0.4.{number % 16 + 1}") for number in range(1024)]
        assert running.metrics.connections == 1024
        with pytest.raises(OSError):
            await running.client(source="127.0.4.17")
        assert running.metrics.closes == dict.fromkeys(running.metrics.closes, 0) | {
            next(cause for cause in running.metrics.closes if cause.value == "connection_limit"): 1
        }
        for client in (clients[0], clients[-1]):
            assert (await client.ask()).status == 200


# --- what is never counted by name -------------------------------------------------------------------------------
def test_no_flood_makes_a_series(stand: Stand) -> None:
    """Methods, targets, versions, ids, credentials, certificates and addresses that nobody knows make no new series."""

    def series() -> set[str]:
        lines = stand.get("/metrics", stand.metrics_port)[1].splitlines()
        return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}

    before, codes = series(), set()
    for number in range(40):
        odd = f"odd{number}"
        requests = (
            stand.request(method=odd.upper()[:3] + "X" * number, target=f"/api/v3/{odd}"),
            stand.request(method="GET", target=f"/{odd}?{odd}={odd}"),
            stand.request(headers={"x-request-id": odd, "traceparent": odd, odd: odd, "content-type": odd}),
            stand.request(token=f"ql3w_{odd}_{'A' * 43}"),
            stand.request(f'{{"{odd}":1}}'.encode()),
            stand.request(target=stand.world.target.replace("worker-1", odd)),
            f"{odd} / {odd}\r\n\r\n".encode(),
            b"POST / HTTP/1.1\r\nhost: a\r\n" + f"expect: {odd}\r\n\r\n".encode(),
        )
        with stand.wire(guesser() if number % 8 == 0 else None, source=f"127.0.5.{number + 1}") as wire:
            wire.send(requests[number % len(requests)])
            codes.add(wire.answer().code)
    assert len(codes) > 5
    assert series() == before


def test_half_a_connection_is_none(stand: Stand) -> None:
    """Who ends its sending side, of TLS or beneath, has left: its request is told unanswered, and nothing stays."""
    for beneath in (False, True):
        before = stand.metric('requests_total{code="unanswered"}')
        with stand.wire() as wire:
            wire.send(stand.request()[:-1])
            wait_for(lambda: stand.metric("in_flight") == 1)
            if beneath:
                wire.sock.shutdown(socket.SHUT_WR)
            else:
                ending = threading.Thread(target=_unwrap, args=(wire,))
                ending.start()
                ending.join(20)
            wait_for(lambda: stand.metric('requests_total{code="unanswered"}') == before + 1)  # noqa: B023
        wait_for(lambda: stand.metric("in_flight") == 0)
    assert stand.metric("buffers_outstanding") == 0


def _unwrap(wire: Wire) -> None:
    """Send a close_notify, and wait for that of the other side."""
    try:
        wire.sock.unwrap()
    except OSError:  # it resets what it will not answer
        return
