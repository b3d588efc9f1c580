"""The worker's client: what it delivers, how it keeps connections, and how it wipes (contract 2 and 3)."""

import asyncio
import json
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest

from provider import limits
from sidecar.client import Client, Denied, OutOfTime, Secrets, Unavailable, UnexpectedAnswer
from tests.kit.pki import pki
from tests.kit.scripted import HEAD, Scripted, Step, ok, refusal
from tests.kit.side import GIVEN, REFS, TOKEN, Side


def test_delivery(tmp_path: Path) -> None:
    """Values come by name and by ref, byte for byte, the bundle apart; after the block every view is dead."""
    side = Side.make(tmp_path)
    with side.serving() as (_, client), client.fetch(side.offer()) as secrets:
        assert list(secrets) == ["SECRET_0", "SECRET_1"]
        assert len(secrets) == 2
        views = [*secrets.values(), *secrets.by_ref.values(), secrets.bundle]
        assert [bytes(view) for view in views if view] == GIVEN[:2] * 2 + GIVEN[2:]
        assert secrets.by_ref[REFS[0].text] is secrets["SECRET_0"]
        part = secrets["SECRET_0"][:3]
        for view in views:
            assert view is not None
            with pytest.raises(TypeError):
                view[0] = 0
    for view in views:
        assert view is not None
        with pytest.raises(ValueError, match="released"):
            bytes(view)
    assert bytes(part) == b"\0\0\0"


def test_request_is_as_contracted(tmp_path: Path) -> None:
    """The request has the contract's target and headers, and its body is the offer without the worker's own keys."""
    side = Side.make(tmp_path)
    with side.serving() as (server, client):
        side.fetch(client)
    head, _, sent = server.requests[0].partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    worker, session = side.document["workerId"], side.document["sessionId"]
    assert lines[0] == f"POST /api/v3/worker-ingress/workers/{worker}/sessions/{session}/secrets HTTP/1.1"
    assert len(headers.pop("x-request-id")) == 36
    assert headers == {
        "host": f"localhost:{server.port}",
        "authorization": f"Worker {TOKEN}",
        "content-type": "application/json",
        "content-length": str(len(sent)),
    }
    own = {"workerId", "sessionId", "leaseExpiresAtMs", "environment"}
    assert json.loads(sent) == {key: value for key, value in side.document.items() if key not in own}


def test_a_connection_is_kept(tmp_path: Path) -> None:
    """One connection carries many fetches, until the server says close, the identity changes, or 100 were made."""
    side = Side.make(tmp_path)
    whole = side.whole()
    closing = ok(side.content(), HEAD + b"connection: close\r\n")
    steps = [Step(whole)] * 3 + [Step(closing, "close"), Step(whole)]
    counts = []
    with side.serving(*steps) as (server, client):
        for number in range(6 + limits.REQUESTS_PER_CONNECTION + 1):
            if number == 6:
                side.files.identify(pki().direct)
            assert side.fetch(client) == GIVEN
            counts.append(server.connections)
    assert counts == [1] * 4 + [2] * 2 + [3] * limits.REQUESTS_PER_CONNECTION + [4]


def test_a_stale_connection_costs_no_attempt(tmp_path: Path) -> None:
    """A kept connection that the server closed, before or under the next request, is replaced without a pause."""
    side = Side.make(tmp_path)
    whole = side.whole()
    for then in ("close", "reset"):
        steps = [Step(whole), Step(b"", then), Step(whole, then), Step(whole)]
        with side.serving(*steps) as (server, client):
            assert [side.fetch(client) for _ in range(3)] == [GIVEN] * 3
            assert len(server.requests) == 4


def test_an_idle_connection_is_not_trusted_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that idled for about as long as the sidecar allows is not used again."""
    side = Side.make(tmp_path)
    with side.serving() as (server, client):
        side.fetch(client)
        now = time.monotonic()
        monkeypatch.setattr("sidecar.client_transport.time.monotonic", lambda: now + limits.IDLE_S - 0.5)
        side.fetch(client)
        assert server.connections == 2


def test_a_slow_answer_arrives(tmp_path: Path) -> None:
    """An answer that dribbles in is the same as one that comes at once."""
    side = Side.make(tmp_path)
    with side.serving(Step(side.whole(), piece=7)) as (_, client):
        assert side.fetch(client) == GIVEN


def test_the_largest_answer_arrives(tmp_path: Path) -> None:
    """A body of exactly the schema's response limit is taken and read; a byte more is refused unread."""
    side = Side.make(tmp_path)
    large: dict[str, bytes | str] = {"bundle": "b" * limits.BUNDLE_BYTES, "second": "\x01" * limits.VALUE_BYTES}
    room = limits.RESPONSE_BYTES_V2 - len(side.content(first="", **large))
    controls, plain = divmod(room, 6)
    exact = side.content(first="\x02" * controls + "p" * plain, **large)
    assert len(exact) == limits.RESPONSE_BYTES_V2
    with side.serving(Step(ok(exact)), Step(ok(exact + b" "))) as (_, client):
        assert [len(value) for value in side.fetch(client)] == [controls + plain, 16384, 98304]
        mapped = client._core._pool.mapped_bytes
        assert isinstance(side.error(client), UnexpectedAnswer)
        assert client._core._pool.mapped_bytes == mapped


def test_memory_is_used_again(tmp_path: Path) -> None:
    """Fetch after fetch uses the same memory, unless a view of it is kept: that memory serves nobody any more."""
    side = Side.make(tmp_path)
    with side.serving() as (_, client):
        side.fetch(client)
        mapped = client._core._pool.mapped_bytes
        for _ in range(5):
            side.fetch(client)
        assert client._core._pool.mapped_bytes == mapped
        with client.fetch(side.offer()) as secrets:
            kept = secrets["SECRET_0"][:]
        side.fetch(client)
        assert bytes(kept) == b"\0" * 7


def test_an_error_in_the_block_wipes(tmp_path: Path) -> None:
    """Whatever ends the caller's block, the values are wiped and the caller's error passes."""
    side = Side.make(tmp_path)
    seen: list[Secrets] = []
    with side.serving() as (_, client):
        with pytest.raises(KeyError), client.fetch(side.offer()) as secrets:
            seen.append(secrets)
            raise KeyError
        with pytest.raises(ValueError, match="released"):
            bytes(seen[0]["SECRET_0"])
        assert client._core._pool.outstanding == 0


def test_repr_shows_nothing(tmp_path: Path) -> None:
    """Neither an offer nor secrets show anything of themselves, and secrets are never serialised."""
    side = Side.make(tmp_path)
    assert repr(side.offer()) == "Offer(redacted)"
    with side.serving() as (_, client), client.fetch(side.offer()) as secrets:
        assert repr(secrets) == "<Secrets of 3>"
        with pytest.raises(TypeError, match="never serialised"):
            pickle.dumps(secrets)


# --- on an event loop --------------------------------------------------------------------------------------------


def _client(side: Side, port: int) -> Client:
    return Client(f"https://localhost:{port}", **side.files.identity())


async def test_fetches_side_by_side(tmp_path: Path) -> None:
    """Fetches run side by side on connections of their own, which are kept for the next ones."""
    side = Side.make(tmp_path)
    server = Scripted([Step(side.whole(), pause=0.05)])
    with server.run(tmp_path):
        async with _client(side, server.port) as client:

            async def fetch() -> bytes:
                async with client.fetch(side.offer()) as secrets:
                    return bytes(secrets["SECRET_0"])

            for _ in range(2):
                assert await asyncio.gather(*(fetch() for _ in range(4))) == GIVEN[:1] * 4
            assert server.connections == 4
            assert client._core._pool.outstanding == 0


async def test_faults_and_time_on_a_loop(tmp_path: Path) -> None:
    """Retries, denials and deadlines are the same on the event loop, which is never blocked."""
    side = Side.make(tmp_path)
    server = Scripted([Step(refusal(503), "close"), Step(side.whole()), Step(refusal(409), "close"), Step(b"", "hang")])
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    with server.run(tmp_path):
        async with _client(side, server.port) as client:
            ticking = asyncio.create_task(tick())
            async with client.fetch(side.offer()) as secrets:
                assert bytes(secrets["SECRET_0"]) == GIVEN[0]
            with pytest.raises(Denied):
                await client.fetch(side.offer()).__aenter__()
            with pytest.raises(OutOfTime):
                await client.fetch(side.offer(), deadline=time.monotonic() + 0.5).__aenter__()
            ticking.cancel()
            assert ticks > 10


async def test_an_unknown_host_on_a_loop(tmp_path: Path) -> None:
    """A name that does not resolve is a connection fault; the look-up does not block the loop."""
    side = Side.make(tmp_path)
    client = Client("https://a.invalid:1", **side.files.identity())
    with pytest.raises(Unavailable):
        await client.fetch(side.offer(), deadline=time.monotonic() + 0.2).__aenter__()


async def test_a_cancelled_fetch_leaves_nothing(tmp_path: Path) -> None:
    """Cancelling a fetch, wherever it waits, closes its connection and wipes its memory."""
    side = Side.make(tmp_path)
    whole = side.whole()
    for data in (whole[:300], whole[:60], b""):
        server = Scripted([Step(data, "hang")])
        with server.run(tmp_path):
            async with _client(side, server.port) as client:
                task = asyncio.create_task(client.fetch(side.offer()).__aenter__())
                await asyncio.to_thread(server.arrived.wait, 20)
                await asyncio.sleep(0.05)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert client._core._pool.outstanding == 0
                assert client._core._idle == []


async def test_blocking_inside_a_loop(tmp_path: Path) -> None:
    """The blocking client needs no event loop and does not mind one that runs."""
    side = Side.make(tmp_path)
    with side.serving() as (_, client):
        assert side.fetch(client) == GIVEN


@pytest.mark.parametrize("module", ["sidecar.client", "sidecar.client_blocking", "sidecar.cli.fetch"])
def test_nothing_of_the_server_is_imported(module: str) -> None:
    """A worker needs the standard library alone; the blocking client and `fetch` not even an event loop."""
    program = f"import sys, {module}; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    unwanted = {"aiohttp", "prometheus_client", "cryptography", "watchfiles", "sqlite3", "yarl", "multidict"}
    if module != "sidecar.client":
        unwanted.add("asyncio")
    assert unwanted.isdisjoint(found)
    ours = {name for name in found if name.startswith("sidecar.") and not name.startswith("sidecar.client")}
    assert ours <= {"sidecar.cli", "sidecar.cli.common", "sidecar.cli.fetch", "sidecar.cli.worker", "sidecar.ids"}
