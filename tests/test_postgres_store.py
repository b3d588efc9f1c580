"""The PostgreSQL store, serve side, on a real server: the conformance suite."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from sidecar.stores.postgres_session import connect
from sidecar.stores.postgres_wire import READ_BYTES
from tests.conformance.store_suite import StoreSuite
from tests.kit.postgres import Database, Postgres
from tests.kit.postgres_bed import PostgresBed, login, served


@pytest.fixture(scope="module")
def shared(server: Postgres) -> Iterator[Database]:
    """A database for all tests that leave its tables as they are."""
    with server.database() as made:
        yield made


@pytest.fixture
async def bed(shared: Database) -> AsyncIterator[PostgresBed]:
    """A served valid world."""
    async with served(shared) as made:
        yield made


class TestConformance(StoreSuite):
    """The suite over PostgreSQL."""


async def test_a_session_reads_little_at_once(shared: Database) -> None:
    """A session's transport has the bound that asyncio goes by, and a long answer comes whole."""
    session = await connect(login(shared), None, asyncio.get_running_loop().time() + 20)
    try:
        driver = session._connection
        asked: list[int] = []
        real = driver._transport._sock

        class Sock:
            def __getattr__(self, name: str) -> object:
                return getattr(real, name)

            def recv(self, size: int) -> bytes:
                asked.append(size)
                return bytes(real.recv(size))

        driver._transport._sock = Sock()
        assert await driver.fetchval("SELECT repeat('x', 100000)") == "x" * 100_000
        driver._transport._sock = real
        assert set(asked) == {READ_BYTES}
    finally:
        session.close()
