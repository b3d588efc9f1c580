"""Any bytes on a worker's TLS connection end in answers of the table or in a close, and leave nothing behind.

The serving half runs in this process, over real sockets and TLS, so that after each example all of it can be looked at.
"""

import asyncio
import fcntl
import os
import re
import socket
import termios
from array import array
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from provider import limits
from provider.outcomes import DELIVERED, Code
from sidecar.connection import Connection, Phase
from sidecar.exchange import AppLimits
from sidecar.metrics import UNANSWERED
from sidecar.shield import ShieldLimits
from tests.kit import valid
from tests.kit.edge import TARGET, Client, Edge, edge, request
from tests.kit.stand import Answer, parse_answer
from tests.test_openapi import DOCUMENT, Validator, answered, headers_fit

GOOD: Final = request()
PARTS: Final = [
    GOOD,
    request(valid.body_v1()),
    request(b"{}"),
    request(b"{"),
    request(b"", authorization=None),
    request(valid.body(leaseGeneration=1)),
    request(b"", method="HEAD"),
    request(b"", method="GET", target="/"),
    request(b"", target=TARGET + "?"),
    request(b"5\r\nhello\r\n0\r\n\r\n", content_length=None, transfer_encoding="chunked"),
    request(b"", expect="100-continue"),
    request(b"", content_length=str(limits.BODY_BYTES + 1)),
    request(b"", method="PUT"),
    request(content_type="text/plain"),
    b"\r\n\r\n",
    b"\n\n",
    b"\0",
    b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"x" * limits.HEADER_BLOCK_BYTES,
]
"""What bytes are built from: requests that end in different rows, and what is hardly one."""
JUNK: Final = st.binary(min_size=1, max_size=40)


@st.composite
def spoilt(draw: st.DrawFn) -> bytes:
    """A request with a stretch of it taken away, doubled, or replaced."""
    data = draw(st.sampled_from(PARTS[:14]))
    start = draw(st.integers(0, len(data)))
    end = draw(st.integers(start, min(len(data), start + 40)))
    between = draw(st.one_of(st.just(b""), st.just(data[start:end] * 2), JUNK, st.sampled_from([b"\r\n", b"\n", b" "])))
    return data[:start] + between + data[end:]


STREAMS: Final = st.lists(st.one_of(spoilt(), st.sampled_from(PARTS), JUNK), max_size=4).map(b"".join)
CUTS: Final = st.lists(st.integers(0, 20_000), max_size=4)


def split(data: bytes) -> tuple[list[Answer], bytes]:
    """Split what arrived into whole answers and a rest; the answer to a HEAD has no body, which begins with a brace."""
    answers = []
    while (head := re.match(rb"HTTP/1\.1 .*?\r\n\r\n", data, re.DOTALL)) is not None:
        if data[head.end() : head.end() + 1] == b"{":
            length = int(head[0].lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            if len(data) < head.end() + length:
                break
            answer, data = parse_answer(data)
        else:
            answer, data = parse_answer(data[: head.end()])[0], data[head.end() :]
        answers.append(answer)
    return answers, data


class Player:
    """The edge on a loop of its own, which turns only while an example is played."""

    def __init__(self, loop: asyncio.AbstractEventLoop, running: Edge) -> None:
        """Take a running edge."""
        self.loop = loop
        self.edge = running
        self.faults: list[dict[str, Any]] = []
        """What the loop would have had to say of a task or callback that died."""
        loop.set_exception_handler(lambda _, context: self.faults.append(context))

    def play(self, data: bytes, cuts: list[int], *, reset: bool) -> list[Answer]:
        """Send bytes in pieces, take the answers, leave; hold what is left to what was there before."""
        before = len(os.listdir("/proc/self/fd"))
        answers = self.loop.run_until_complete(self._play(data, cuts, reset=reset))
        assert self.faults == []
        assert len(os.listdir("/proc/self/fd")) == before
        return answers

    async def _play(self, data: bytes, cuts: list[int], *, reset: bool) -> list[Answer]:
        running = self.edge
        running.events.lines.clear()
        client = await running.client()
        connection = running.connection
        ends = sorted({cut % (len(data) + 1) for cut in cuts} | {len(data)})
        for start, end in zip([0, *ends], ends, strict=False):
            client.send(data[start:end])
            await asyncio.sleep(0)
        await running.until(lambda: is_settled(connection, client))
        told = [code for code, _ in running.told()]
        taken = await self._take(client, sum(code != UNANSWERED for code in told))
        if reset:
            client.reset()
        await client.close()
        running.clients.clear()
        await running.until(lambda: not running.listener.connections)
        # A request that waited for its body is told once its peer is gone.
        assert [code for code, _ in running.told()][: len(told)] == told
        assert {code for code, _ in running.told()[len(told) :]} <= {UNANSWERED}
        told = [code for code in told if code != UNANSWERED]
        assert [one.code for one in taken if one.body] == [
            code for code, one in zip(told, taken, strict=True) if one.body
        ]
        return taken

    async def _take(self, client: Client, count: int) -> list[Answer]:
        data = b""
        async with asyncio.timeout(20):
            while len(split(data)[0]) < count:
                data += await client.reader.read(1 << 16)
        answers, rest = split(data)
        assert (len(answers), rest) == (count, b"")
        return answers


def is_settled(connection: Connection, client: Client) -> bool:
    """Tell whether all was read that was sent, and nothing more happens unless the peer sends or leaves."""
    if connection.phase in (Phase.DISCARD, Phase.CLOSING, Phase.CLOSED):
        return not connection.requests or connection.task.done()
    ours = connection.transport._socket
    # The kernel may wait 40 ms before it says that bytes have arrived, unless it is asked to say so.
    ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    waiter = connection._waiter if connection.phase is Phase.HEAD else connection._body_waiter
    waits = not connection.requests if waiter is None else not waiter.done()
    if not waits or client.untaken():
        return False
    unread = array("i", [0])
    fcntl.ioctl(ours.fileno(), termios.FIONREAD, unread)
    return unread[0] == 0


@contextmanager
def player(directory: Path) -> Iterator[Player]:
    """A player whose edge has no budget of failures, and must be empty at the end."""
    loop = asyncio.new_event_loop()
    context = edge(
        directory,
        shield=ShieldLimits(60, 10**9, 10**9, 4096),
        limits=AppLimits(limits.BODY_BYTES, 64, 8, 15.0, binding=False),
    )
    try:
        running = run(loop, context.__aenter__())
        yield Player(loop, running)
        run(loop, context.__aexit__(None, None, None))
    finally:
        loop.close()


def run(loop: asyncio.AbstractEventLoop, awaited: Coroutine[Any, Any, Any]) -> Any:
    """Run one coroutine to its end."""
    return loop.run_until_complete(awaited)


def judge(answers: list[Answer]) -> None:
    """Hold each answer to the document of the listener; the last one says whether the connection ends."""
    for answer in answers:
        assert headers_fit(answer.status, dict(answer.headers))
        if answer.body:
            (content,) = answered(answer.status)["content"].values()
            assert Validator(DOCUMENT | content["schema"]).is_valid(answer.json())
    assert [one.header("connection") for one in answers[:-1]] == [None] * len(answers[:-1])


def fuzz(directory: Path, examples: int) -> set[str]:
    """Play so many examples; return the codes that were met."""
    met: set[str] = set()
    with player(directory) as one:

        @settings(max_examples=examples)
        @given(STREAMS, CUTS, st.booleans())
        @example(GOOD + GOOD, [], False)
        @example(GOOD * 3, [len(GOOD), 2 * len(GOOD)], True)
        @example(b"\r\n\r\n", [], False)
        @example(b"", [], True)
        @example(GOOD[:-1], [7], False)
        @example(PARTS[9], [], False)
        @example(PARTS[11] + b"x" * 70_000, [], False)
        def any_bytes(data: bytes, cuts: list[int], reset: bool) -> None:
            answers = one.play(data, cuts, reset=reset)
            judge(answers)
            met.update(answer.code for answer in answers if answer.body)

        any_bytes()
    return met


def test_any_bytes_end_in_an_answer_or_a_close(tmp_path: Path) -> None:
    """Whatever is sent, in whatever pieces, is answered from the table or not at all, and nothing of it is left."""
    met = fuzz(tmp_path, 100)
    assert {DELIVERED, "malformed_request", "length_required", "request_too_large"} <= met


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_any_bytes_for_long(tmp_path: Path) -> None:
    """The same with many more examples, which between them meet every code that bytes alone can cause."""
    met = fuzz(tmp_path, 1500)
    assert met - {code.value.code for code in Code} == {DELIVERED}
    assert met >= {
        "malformed_request", "expectation_failed", "not_found", "method_not_allowed", "worker_route_not_found",
        "worker_authentication_required", "length_required", "request_too_large", "unsupported_content_type",
        "invalid_json", "invalid_worker_request", "worker_secret_delivery_fenced",
    }  # fmt: skip
