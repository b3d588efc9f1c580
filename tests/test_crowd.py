"""Slow clients of every kind, many at once, on a real `serve`: they hold up nobody, and are cut off one by one."""

import asyncio
import random
import socket
import ssl
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from provider.credential import make_token
from tests.kit.crowd import KINDS, Crowd
from tests.kit.stand import Stand, make_stand, parse_answer
from tests.kit.waiting import wait_for

PAUSE_S: Final = 0.1
"""Between two requests of a good client; a third more or less, so that they do not march in step."""
P99_S: Final = 0.050
CREDENTIALS: Final = len(KINDS) + 8
"""One for each kind, the others for the good: what one credential holds in flight is bounded for itself."""
CUT: Final = {
    "handshake": 'silent_closes_total{cause="handshake_evicted"}',
    "head": 'silent_closes_total{cause="headers_timeout"}',
    "body": 'refusals_total{reason="body_timeout"}',
    "answer": 'silent_closes_total{cause="response_timeout"}',
    "idle": 'silent_closes_total{cause="idle_timeout"}',
}
"""What shows that clients of a kind are cut off."""


@dataclass
class Good:
    """Workers that ask now and then, on connections they keep; each request's time, and every other answer."""

    stand: Stand
    tokens: list[str]
    seconds: list[float] = field(default_factory=list)
    other: Counter[str] = field(default_factory=Counter)
    _context: ssl.SSLContext = field(init=False)

    async def ask_for(self, clients: int, seconds: float) -> None:
        """Let so many of them ask for so long, all connected before the first one asks."""
        self._context = self.stand.pki.client_context(self.stand.pki.client, self.stand.directory)
        connected = [await self._connect(number) for number in range(clients)]
        end = time.monotonic() + seconds
        await asyncio.gather(*(self._live(number, *first, end) for number, first in enumerate(connected)))

    async def _live(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, end: float) -> None:
        chance = random.Random(number)
        data = self.stand.request(token=self.tokens[number % len(self.tokens)])
        # Nor do they begin together: one volley of all of them would be more than a hundredth of what is measured.
        await asyncio.sleep(PAUSE_S * chance.random())
        while True:
            try:
                # A pace, no wait for anything.
                while time.monotonic() < end and await self._ask(reader, writer, data):  # noqa: ASYNC110
                    await asyncio.sleep(PAUSE_S * chance.uniform(0.67, 1.33))
            except (OSError, EOFError) as error:
                self.other[type(error).__name__] += 1
            finally:
                writer.transport.abort()
            if time.monotonic() >= end:
                return
            try:
                reader, writer = await self._connect(number)
            except OSError as error:
                self.other[f"{type(error).__name__} while connecting"] += 1
                return

    async def _connect(self, number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        sock = socket.socket()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind((f"127.0.9.{number % 8 + 1}", 0))
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.stand.port))
        return await asyncio.open_connection(
            sock=sock, ssl=self._context, server_hostname="localhost", ssl_shutdown_timeout=1
        )

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bool:
        """Ask once; tell whether the connection goes on."""
        began = time.monotonic()
        writer.write(data)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.partition(b"content-length: ")[2].partition(b"\r")[0])
        answer, _ = parse_answer(head + await reader.readexactly(length))
        self.seconds.append(time.monotonic() - began)
        if answer.status != 200:
            self.other[answer.code] += 1
        return answer.header("connection") is None

    def percentile(self, share: float) -> float:
        """Return the time within which this share of the requests was answered."""
        return sorted(self.seconds)[int(share * (len(self.seconds) - 1))]

    def __str__(self) -> str:
        shares = (0.5, 0.99, 0.999, 1.0)
        return " ".join(f"p{100 * share:g} {self.percentile(share) * 1000:.1f}" for share in shares)


@contextmanager
def serving(directory: Path) -> Iterator[tuple[Stand, list[str]]]:
    """Run a sidecar at its defaults, whose worker has several credentials; at the end it is as at the start."""
    with make_stand(directory / "stand") as stand:
        world, tokens = stand.world, []
        for ref in world.refs:
            stand.put(ref, b"v" * 8192)
        for number in range(CREDENTIALS):
            name, secret = f"worker_{number}", bytes([number + 1]) * 31 + b"\x01"
            row = dict(world.rows["worker_credentials"]) | {
                "credential_id": name,
                "secret_digest": world.peppers.current.digest(name, secret),
            }
            marks = ", ".join("?" * len(row))
            world.execute(f"INSERT INTO worker_credentials ({', '.join(row)}) VALUES ({marks})", [*row.values()])
            tokens.append(make_token(name, secret))
        stand.start()
        stand.ask()
        before = stand.metric("open_descriptors")
        yield stand, tokens
        wait_for(lambda: stand.metric("connections") == stand.metric("handshaking_connections") == 0)
        # The store opens a file of its own with its first checkpoint.
        wait_for(lambda: stand.metric("open_descriptors") <= before + 1)
        assert stand.metric("in_flight") == stand.metric("buffers_outstanding") == 0
        assert stand.metric('refusals_total{reason="internal"}') == 0
        assert stand.stderr() == ""


async def test_a_mixed_crowd_holds_up_nobody(tmp_path: Path) -> None:
    """Ten slow clients of each kind: every good client is served all the while, and those are cut off who may be."""
    with serving(tmp_path) as (stand, tokens):
        good = Good(stand, tokens[len(KINDS) :])
        with Crowd(stand, tokens[: len(KINDS)], **dict.fromkeys(KINDS, 10)):
            await good.ask_for(8, 7.0)
        assert not good.other
        assert len(good.seconds) >= 8
        for kind in ("body", "idle"):
            assert stand.metric(CUT[kind]) > 0, kind


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
async def test_five_hundred_of_a_kind_hold_up_nobody(kind: str, tmp_path: Path) -> None:
    """Five hundred slow clients of a kind, from sixteen addresses: 32 good ones are served, p99 under 50 ms (issue 4).

    They gather over some seconds and come again as they are cut off; a volley of fresh handshakes is listed as not
    bounded. A machine on which the good ones alone take half of that is too busy to tell.
    """
    with serving(tmp_path) as (stand, tokens):
        alone, beside = Good(stand, tokens[len(KINDS) :]), Good(stand, tokens[len(KINDS) :])
        await alone.ask_for(32, 4.0)
        if alone.percentile(0.99) > P99_S / 2:
            pytest.skip(f"too busy a machine: without a crowd p99 is {alone.percentile(0.99) * 1000:.0f} ms")
        with Crowd(stand, tokens[:1], **{kind: 500}):
            await beside.ask_for(32, 15.0)
            held = stand.metric("connections") + stand.metric("handshaking_connections")
        print(f"500 slow clients ({kind}), {held:.0f} connections held; ms alone {alone}, beside them {beside}")
        assert not alone.other + beside.other
        assert len(beside.seconds) > 1000
        assert stand.metric(CUT[kind]) > 0
        assert beside.percentile(0.99) < P99_S, str(beside)
