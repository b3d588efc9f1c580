"""The PostgreSQL store, serve side, on a real server: the conformance suite."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.conformance.store_suite import StoreSuite
from tests.kit.postgres import Database, Postgres
from tests.kit.postgres_bed import PostgresBed, served


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
