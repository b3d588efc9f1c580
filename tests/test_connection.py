"""A connection: what happens to a request at every place where it waits, and when its bounds come."""

import asyncio
import socket
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from provider.outcomes import Close
from sidecar.connection import Phase
from sidecar.exchange import AppLimits, Exchange
from sidecar.tlswire import Transport
from tests.kit import valid
from tests.kit.edge import Client, Edge, edge, request
from tests.kit.fakes import STEPS
from tests.kit.reach import leads_to

BEFORE_THE_ANSWER = [step for step in STEPS if step not in ("body", "send", "acknowledge")]
STAGE_OF = {
    "newest": "authentication",
    "record": "audit",
    "lock": "authority",
    "resolve": "provider",
    "resolving": "provider",
    "commit": "authority",
    "close": "authority",
}
SHORT = AppLimits(65_536, 64, 8, 0.3, binding=False)


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What arrives after an early answer is awaited for a moment; tests/test_phases.py has the bounds as they are."""
    monkeypatch.setattr("provider.limits.DISCARD_S", 0.1)


def hang(running: Edge, step: str) -> None:
    """Let the next request hang at `step`."""
    running.scene.steps.plans[step] = None


class Pause:
    """A step that waits until it is let go."""

    def __init__(self) -> None:
        self.reached, self.let_go = asyncio.Event(), asyncio.Event()
        self.finished = False

    async def __call__(self, *_: Any) -> None:
        self.reached.set()
        await self.let_go.wait()
        self.finished = True


async def test_a_request_is_delivered_and_told_once(tmp_path: Path) -> None:
    """The valid request is answered with the values, counted and told once, on a connection that goes on."""
    async with edge(tmp_path) as running:
        client = await running.client()
        for count in (1, 2):
            answer = await client.ask()
            assert (answer.status, answer.header("connection")) == (200, None)
            assert answer.json()["values"][0]["secretRef"] == valid.TOKEN.text
            assert running.told() == [("delivered", "delivery")] * count
        assert running.metrics.requests["delivered"] == 2


@pytest.mark.parametrize("step", BEFORE_THE_ANSWER)
async def test_a_reset_ends_the_request_wherever_it_waits(step: str, tmp_path: Path) -> None:
    """A peer that goes away while its request waits leaves nothing behind, and the request is told once, unanswered."""
    async with edge(tmp_path) as running:
        hang(running, step)
        client = await running.client()
        client.send(request())
        await running.scene.steps.reached.wait()
        client.reset()
        await running.until_told(1)
        await running.until(running.is_empty)
        assert running.told() == [("unanswered", STAGE_OF[step])]
        assert running.metrics.requests["unanswered"] == 1


async def test_a_reset_while_the_body_is_awaited(tmp_path: Path) -> None:
    """A peer that goes away in the middle of its body leaves nothing behind."""
    async with edge(tmp_path) as running:
        client = await running.client()
        client.send(request()[:-10])
        await running.until(lambda: "record" in running.scene.touched)
        await asyncio.sleep(0.02)
        client.reset()
        await running.until_told(1)
        await running.until(running.is_empty)
        assert running.told() == [("unanswered", "body")]


async def test_a_request_whose_peer_went_at_once_is_told_all_the_same(tmp_path: Path) -> None:
    """A request that arrives together with the end of its connection is told once, and asks nothing of any store."""
    async with edge(tmp_path) as running:
        await running.client()
        connection = running.connection
        await asyncio.sleep(0.01)
        connection.data_received(request())
        connection.connection_lost()
        await running.until_told(1)
        assert running.told() == [("unanswered", "parse")]
        assert running.scene.touched == []


@pytest.mark.parametrize("step", BEFORE_THE_ANSWER)
async def test_the_deadline_ends_the_request_wherever_it_waits(step: str, tmp_path: Path) -> None:
    """When time runs out before the first byte, the answer is 504 and the end of the connection."""
    async with edge(tmp_path, limits=SHORT) as running:
        hang(running, step)
        client = await running.client()
        answer = await client.ask()
        assert (answer.status, answer.code, answer.header("connection")) == (504, "request_timeout", "close")
        assert await client.ended() == b""
        assert running.told() == [("request_timeout", "deadline")]
        await running.until(running.is_empty)


def hang_before_the_answer(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Have a request hang where it lets others by before its answer, the second time that it does; return the sign."""
    reached, calls = asyncio.Event(), count(1)

    async def give_way(_exchange: Exchange) -> None:
        if next(calls) == 2:
            reached.set()
            await asyncio.Event().wait()

    monkeypatch.setattr(Exchange, "give_way", give_way)
    return reached


@pytest.mark.parametrize(("body", "stage"), [(None, "delivery"), (b"[", "body")], ids=["delivery", "refusal"])
async def test_a_reset_while_others_are_let_by(
    body: bytes | None, stage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A peer that goes away just before its answer, a refusal too, leaves nothing behind and is told as unanswered."""
    async with edge(tmp_path) as running:
        reached = hang_before_the_answer(monkeypatch)
        client = await running.client()
        client.send(request(body))
        await reached.wait()
        client.reset()
        await running.until_told(1)
        await running.until(running.is_empty)
        assert running.told() == [("unanswered", stage)]


@pytest.mark.parametrize("body", [None, b"["], ids=["delivery", "refusal"])
async def test_the_deadline_while_others_are_let_by(
    body: bytes | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A request whose time ends just before its answer, a refusal too, is answered 504."""
    async with edge(tmp_path, limits=SHORT) as running:
        hang_before_the_answer(monkeypatch)
        client = await running.client()
        answer = await client.ask(request(body))
        assert (answer.status, answer.code) == (504, "request_timeout")
        assert running.told() == [("request_timeout", "deadline")]
        await running.until(running.is_empty)


async def test_the_deadline_while_the_body_is_awaited(tmp_path: Path) -> None:
    """The deadline of the whole request bounds the wait for its body too."""
    async with edge(tmp_path, limits=SHORT) as running:
        client = await running.client()
        answer = await client.ask(request()[:-1])
        assert answer.code == "request_timeout"
        assert await client.ended() == b""


async def test_a_deadline_that_comes_with_the_request_is_answered(tmp_path: Path) -> None:
    """A request whose time is over before its task ran gets the same 504, not silence."""
    async with edge(tmp_path) as running:
        hang(running, "newest")
        client = await running.client()
        await asyncio.sleep(0.01)
        connection = running.connection
        connection.data_received(request())
        connection.due = 0.0
        for _ in range(3):
            connection.sweep(asyncio.get_running_loop().time())
            assert not connection.timed_out
        answer = await client.answer()
        assert answer.code == "request_timeout"


@pytest.mark.parametrize("step", BEFORE_THE_ANSWER)
async def test_what_still_runs_when_draining_ends_is_reset_and_wiped(step: str, tmp_path: Path) -> None:
    """A request that hangs beyond the drain limit is reset, told unanswered, and leaves nothing in any buffer."""
    async with edge(tmp_path) as running:
        hang(running, step)
        client = await running.client()
        client.send(request())
        await running.scene.steps.reached.wait()
        await running.listener.drain(0.05)
        await running.listener.stop()
        assert running.told() == [("unanswered", STAGE_OF[step])]
        assert running.metrics.closes[Close.DRAIN_RESET] == 1
        assert running.scene.is_clean
        assert await client.ended() == b"RESET"


async def test_draining_lets_a_running_request_finish(tmp_path: Path) -> None:
    """A request that finishes inside the drain limit is delivered, and draining ends with it."""
    async with edge(tmp_path) as running:
        pause = Pause()
        running.scene.store.acknowledge = pause  # type: ignore[assignment, method-assign]
        hang(running, "commit")
        client = await running.client()
        client.send(request())
        await running.scene.steps.reached.wait()
        drained = asyncio.create_task(running.listener.drain(20))
        await asyncio.sleep(0.05)
        assert not drained.done()
        # The hanging step is over: as if the store had answered.
        (task,) = running.listener._serving
        task.cancel()
        await drained
        assert running.metrics.closes[Close.DRAIN_RESET] == 0


async def test_a_record_after_the_answer_does_not_hold_up_the_next_request(tmp_path: Path) -> None:
    """What a peer sends after a whole answer is its next request, though the first one's record is still written."""
    async with edge(tmp_path, receipts=True) as running:
        pause = Pause()
        running.scene.store.acknowledge = pause  # type: ignore[assignment, method-assign]
        client = await running.client()
        assert (await client.ask()).status == 200
        await pause.reached.wait()
        client.send(request())
        await running.until(lambda: running.connection.requests == 2)
        pause.let_go.set()
        answer = await client.answer()
        assert (answer.status, answer.header("connection")) == (200, None)
        assert running.metrics.pipelined == 0
        await running.until_told(2)
        assert running.told() == [("delivered", "delivery")] * 2


async def test_a_peer_that_leaves_with_its_answer_does_not_cost_the_record(tmp_path: Path) -> None:
    """A worker that closes as soon as it has its values is told as served, and its receipt is written."""
    async with edge(tmp_path, receipts=True) as running:
        pause = Pause()
        running.scene.store.acknowledge = pause  # type: ignore[assignment, method-assign]
        client = await running.client()
        assert (await client.ask()).status == 200
        await pause.reached.wait()
        client.reset()
        await running.until(lambda: not running.listener.connections)
        pause.let_go.set()
        await running.until_told(1)
        assert pause.finished
        assert running.told() == [("delivered", "delivery")]


async def test_stopping_waits_for_the_record_of_an_answer(tmp_path: Path) -> None:
    """The store is not taken away from a record that is being written."""
    async with edge(tmp_path, receipts=True) as running:
        pause = Pause()
        running.scene.store.acknowledge = pause  # type: ignore[assignment, method-assign]
        client = await running.client()
        assert (await client.ask()).status == 200
        await pause.reached.wait()
        asyncio.get_running_loop().call_later(0.2, pause.let_go.set)
        await running.listener.stop()
        assert pause.finished


async def test_the_deadline_does_not_cut_a_record(tmp_path: Path) -> None:
    """The deadline bounds a request until its answer; it cancels nothing afterwards, nor for a request that waits."""
    async with edge(tmp_path, receipts=True, limits=SHORT) as running:
        pause = Pause()
        running.scene.store.acknowledge = pause  # type: ignore[assignment, method-assign]
        client = await running.client()
        assert (await client.ask()).status == 200
        await pause.reached.wait()
        hang(running, "newest")
        client.send(request())
        await asyncio.sleep(0.5)
        assert not running.connection.timed_out
        pause.let_go.set()
        # The second request was out of time before it could begin.
        assert (await client.answer()).code == "request_timeout"
        assert pause.finished
        assert running.told() == [("delivered", "delivery"), ("request_timeout", "deadline")]


async def test_nothing_of_a_request_stays_on_an_idle_connection(tmp_path: Path) -> None:
    """Once a request is answered, neither its credential nor its lease token can be reached from the connection."""
    token = valid.AUTHORIZATION.decode().removeprefix("Worker ")
    async with edge(tmp_path) as running:
        client = await running.client()
        assert (await client.ask()).status == 200
        await running.until_told(1)
        await asyncio.sleep(0.01)
        assert running.connection.phase is Phase.HEAD
        assert not leads_to(running.connection, token, valid.LEASE_TOKEN)
        # The same look finds them while the request runs.
        hang(running, "newest")
        client.send(request())
        await running.scene.steps.reached.wait()
        assert leads_to(running.connection, token)
        assert leads_to(running.connection, valid.LEASE_TOKEN)


async def test_nothing_of_a_refused_request_stays_while_the_connection_ends(tmp_path: Path) -> None:
    """After an early answer the body, and the lease token in it, is gone although the rest is still awaited."""
    async with edge(tmp_path) as running:
        client = await running.client()
        running.scene.credentials.row = None
        assert (await client.ask(request()[:-1])).status == 401
        await running.until_told(1)
        await asyncio.sleep(0.01)
        assert running.connection.phase is Phase.DISCARD
        assert not leads_to(running.connection, valid.LEASE_TOKEN)


async def test_what_arrives_after_an_early_answer_is_let_in_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 KiB after an early answer are let in; one byte more ends the connection, long before its time is over."""
    monkeypatch.setattr("provider.limits.DISCARD_S", 60.0)
    async with edge(tmp_path) as running:
        running.scene.credentials.row = None
        client = await running.client()
        answer = await client.ask(request(b"", content_length="1000000"))
        assert answer.status == 401
        client.send(bytes(65_536))
        await asyncio.sleep(0.2)
        assert running.connection.phase is Phase.DISCARD
        client.send(b"x")
        assert await client.ended() == b""


async def test_pipelined_requests_end_with_the_first_answer(tmp_path: Path) -> None:
    """Bytes beyond a request before its answer end the connection after that answer, counted once."""
    async with edge(tmp_path) as running:
        client = await running.client()
        client.send(request() + request())
        answer = await client.answer()
        assert (answer.status, answer.header("connection")) == (200, "close")
        assert await client.ended() == b""
        assert running.metrics.pipelined == 1
        assert running.told() == [("delivered", "delivery")]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"nonsense\r\n\r\n" + b"x" * 100, id="malformed"),
        pytest.param(request(b"5\r\nhello\r\n", content_length=None, transfer_encoding="chunked"), id="chunked"),
        pytest.param(request(expect="100-continue"), id="expect"),
        pytest.param(request(authorization=None), id="early answer with its body"),
    ],
)
async def test_a_body_that_is_not_wanted_is_no_pipelining(data: bytes, tmp_path: Path) -> None:
    """A refused request's own body, declared or not, is not counted as a second request."""
    async with edge(tmp_path) as running:
        client = await running.client()
        assert (await client.ask(data)).header("connection") == "close"
        assert await client.ended() == b""
        assert running.metrics.pipelined == 0


async def fill(running: Edge, monkeypatch: pytest.MonkeyPatch) -> Client:
    """Return a client that got an answer of which, as far as the server can tell, nothing was taken."""
    client = await running.client()
    assert (await client.ask()).status == 200
    monkeypatch.setattr(Transport, "untaken", 1)
    return client


async def test_a_peer_that_asks_on_without_reading_is_not_served_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a part of an answer is still held here it is not complete: what arrives then is pipelined."""
    async with edge(tmp_path) as running:
        client = await running.client()
        assert (await client.ask()).status == 200
        monkeypatch.setattr(Transport, "unsent", 1)
        client.send(request())
        await running.until(lambda: running.metrics.pipelined == 1)
        assert await client.ended() == b""
        assert running.told() == [("delivered", "delivery")]


async def test_a_slow_reader_is_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer not taken within its time ends in a reset, and the idle time does not run before."""
    monkeypatch.setattr("provider.limits.IDLE_S", 0.1)
    monkeypatch.setattr("provider.limits.RESPONSE_S", 0.8)
    async with edge(tmp_path) as running:
        began = asyncio.get_running_loop().time()
        client = await fill(running, monkeypatch)
        assert await client.ended() == b"RESET"
        assert asyncio.get_running_loop().time() - began >= 0.8
        assert running.metrics.closes[Close.RESPONSE_TIMEOUT] == 1
        assert running.metrics.closes[Close.IDLE_TIMEOUT] == 0


async def test_a_slow_reader_of_the_last_answer_is_dropped_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that ends is not closed over an answer on its way, and not left open for it either."""
    monkeypatch.setattr("provider.limits.RESPONSE_S", 0.8)
    async with edge(tmp_path) as running:
        monkeypatch.setattr(Transport, "untaken", 1)
        client = await running.client()
        assert (await client.ask(request(connection="close"))).status == 200
        await running.until(lambda: running.connection.phase is Phase.CLOSING)
        assert await client.ended() == b"RESET"
        assert running.metrics.closes[Close.RESPONSE_TIMEOUT] == 1


async def test_after_the_deadline_an_answer_on_its_way_is_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole request's time bounds the taking of its answer too."""
    async with edge(tmp_path, limits=AppLimits(65_536, 64, 8, 0.7, binding=False)) as running:
        client = await fill(running, monkeypatch)
        assert await client.ended() == b"RESET"
        assert running.metrics.closes[Close.DEADLINE_RESET] == 1
        assert running.metrics.closes[Close.RESPONSE_TIMEOUT] == 0


async def test_a_busy_peer_far_away_is_no_slow_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer has its own time: that some answer is always on its way means nothing."""
    monkeypatch.setattr("provider.limits.RESPONSE_S", 0.6)
    async with edge(tmp_path) as running:
        client = await fill(running, monkeypatch)
        for _ in range(15):
            assert (await client.ask()).status == 200
            await asyncio.sleep(0.1)
        assert running.metrics.closes[Close.RESPONSE_TIMEOUT] == 0


async def test_a_peer_may_end_the_connection_with_its_request(tmp_path: Path) -> None:
    """`Connection: close` of a request is honoured: its answer says so and the connection ends."""
    async with edge(tmp_path) as running:
        client = await running.client()
        answer = await client.ask(request(connection="close"))
        assert (answer.status, answer.header("connection")) == (200, "close")
        assert await client.ended() == b""


async def test_half_a_connection_is_none(tmp_path: Path) -> None:
    """A peer that closes its sending side has left: TLS here has no half-closed state, and its request is wiped."""
    async with edge(tmp_path) as running:
        hang(running, "lock")
        client = await running.client()
        client.send(request())
        await running.scene.steps.reached.wait()
        sock = client.writer.get_extra_info("socket")
        sock.shutdown(1)
        assert await client.ended() == b""
        await running.until_told(1)
        assert running.told() == [("unanswered", "authority")]


@pytest.mark.parametrize("when", ["before", "while writing"])
async def test_what_reached_nobody_is_not_told_as_delivered(when: str, tmp_path: Path) -> None:
    """An answer for a connection that is lost, or that is lost with it, is no delivery."""
    async with edge(tmp_path) as running:
        client = await running.client()
        transport = running.connection.transport
        # As when the kernel refuses the bytes.
        lose = transport.abort if when == "before" else partial(transport._socket.shutdown, socket.SHUT_WR)
        running.scene.steps.plans["close"] = lose
        client.send(request())
        await running.until_told(1)
        assert running.told() == [("unanswered", "delivery")]
        assert running.metrics.requests["delivered"] == 0
        await client.ended()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(request(), id="pipelined"),
        pytest.param(request(content_length=str(1 << 40)), id="a body without end"),
        pytest.param(request(content_length=None, transfer_encoding="chunked"), id="chunks without end"),
    ],
)
async def test_a_flood_is_left_to_the_kernel(data: bytes, tmp_path: Path) -> None:
    """While a request waits, what nobody wants is read up to a bound and no further, and its answer still comes."""
    async with edge(tmp_path) as running:
        pause = Pause()
        record = running.scene.audit.record

        async def slow(row: Any) -> None:
            await pause()
            await record(row)

        running.scene.audit.record = slow  # type: ignore[assignment, method-assign]
        client = await running.client()
        client.send(data)
        await pause.reached.wait()
        sent = 0
        for _ in range(200):
            client.send(bytes(65_536))
            sent += 65_536
            await asyncio.sleep(0.001)
        received = running.connection.framer.received
        # At most what TLS hands over at once lies above the bound.
        assert received <= 65_536 + 2 * 262_144 < sent
        pause.let_go.set()
        answer = await client.answer()
        assert answer.header("connection") == "close"
        await client.ended()
        await running.until(lambda: not running.listener.connections)


async def test_a_failed_engine_keeps_no_plaintext(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When TLS could not encrypt what it was given, the connection is reset and nothing counts as delivered."""
    async with edge(tmp_path) as running:
        monkeypatch.setattr(Transport, "write", lambda *_: False)
        client = await running.client()
        client.send(request())
        await running.until_told(1)
        assert running.told() == [("unanswered", "delivery")]
        await running.until(lambda: not running.listener.connections)
        await client.ended()


async def test_a_request_in_many_pieces_is_one_request(tmp_path: Path) -> None:
    """Head and body may arrive a byte at a time."""
    async with edge(tmp_path) as running:
        client = await running.client()
        data = request()
        for at in range(0, len(data), 97):
            client.send(data[at : at + 97])
            await asyncio.sleep(0.001)
        assert (await client.answer()).status == 200


async def test_a_body_that_arrives_while_the_request_waits_elsewhere(tmp_path: Path) -> None:
    """A body may arrive before it is asked for, whatever the request waits for then."""
    async with edge(tmp_path) as running:
        gate = asyncio.Event()
        newest = running.scene.credentials.newest

        async def wait(credential_id: str) -> Any:
            await gate.wait()
            return await newest(credential_id)

        running.scene.credentials.newest = wait  # type: ignore[method-assign]
        client = await running.client()
        data = request()
        client.send(data[:-300])
        await running.until(lambda: running.connection.phase is Phase.RUNNING)
        client.send(data[-300:])
        await running.until(lambda: running.connection.framer.complete)
        gate.set()
        assert (await client.answer()).status == 200
