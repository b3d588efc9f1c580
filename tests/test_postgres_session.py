"""A session's limit in time, and what it sends ahead of the driver's own messages."""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.stores.postgres_session import Session, Unusable
from sidecar.stores.postgres_sql import LOCK, NAMES
from sidecar.stores.postgres_wire import READ_BYTES, read_little, run


class Driver:
    """As much of a connection as `tell` uses; every call ends as `act` does."""

    def __init__(self, act: Callable[[], Awaitable[object]]) -> None:
        """`act` is awaited by each call."""
        self.act = act
        self.over = asyncio.Event()

    async def execute(self, _statement: str) -> object:
        """Do what is to be done, unless the connection is closed first."""
        done, rest = await asyncio.wait(
            [asyncio.ensure_future(self.act()), asyncio.ensure_future(self.over.wait())],
            return_when=asyncio.FIRST_COMPLETED,
        )
        for task in rest:
            task.cancel()
        if self.over.is_set():
            raise ConnectionError
        return done.pop().result()

    def terminate(self) -> None:
        """Close it."""
        self.over.set()

    def is_closed(self) -> bool:
        """Tell whether it is closed."""
        return self.over.is_set()


async def at_once() -> str:
    """Answer at once."""
    return "SELECT 1"


async def never() -> str:
    """Answer after every test is over."""
    await asyncio.sleep(3600)
    return ""


def now() -> float:
    """Return the loop's time."""
    return asyncio.get_running_loop().time()


async def late(session: Session, until: float) -> float:
    """Run a call that is not answered; return how long after its limit it ended, which closed the session."""
    with pytest.raises(Unusable):
        await session.tell("SELECT", until)
    assert session.closed
    return now() - until


async def test_a_call_ends_at_its_limit() -> None:
    """Without an answer the session is closed when its time is over, neither before nor much later."""
    assert 0 <= await late(Session(Driver(never)), now() + 0.05) + 0.001 < 3


async def test_each_call_has_its_own_limit() -> None:
    """A call that is over leaves its limit to no later one."""
    driver = Driver(at_once)
    session = Session(driver)
    await session.tell("SELECT", now() + 0.05)
    driver.act = never
    assert 0 <= await late(session, now() + 0.3) + 0.001 < 3


async def test_an_idle_session_outlives_its_last_limit() -> None:
    """What was answered in time is not closed when that time is over."""
    session = Session(Driver(at_once))
    await session.tell("SELECT", now() + 0.02)
    await asyncio.sleep(0.1)
    assert not session.closed
    assert await session.tell("SELECT", now() + 5) == "SELECT 1"


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40))
def test_what_is_sent_ahead(value: str) -> None:
    """Bind names the statement and holds the value as text, Execute has it run whole; nothing else is sent."""
    sent, text = run(LOCK, value), value.encode()
    assert sent[:1] == b"B"
    length = struct.unpack("!i", sent[1:5])[0]
    name = NAMES[LOCK].encode()
    counts = struct.pack("!hhi", 0, 1, len(text))
    assert sent[5 : 1 + length] == b"\0" + name + b"\0" + counts + text + struct.pack("!h", 0)
    assert sent[1 + length :] == b"E" + struct.pack("!i", 9) + b"\0" + struct.pack("!i", 0)


def test_little_is_read_at_once_with_tls_and_without() -> None:
    """Both halves of a TLS transport, and a plain one alone, are told how much to read."""
    plain = SimpleNamespace(max_size=0)
    both = SimpleNamespace(max_size=0, _ssl_protocol=SimpleNamespace(max_size=0))
    for transport in (plain, both):
        read_little(SimpleNamespace(_transport=transport))
    assert plain.max_size == both.max_size == both._ssl_protocol.max_size == READ_BYTES
