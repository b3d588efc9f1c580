"""The store on servers of other versions: 16, and the system's where there is one."""

from collections.abc import AsyncIterator, Iterator

import pytest

from provider.outcomes import Reason
from tests.conformance.store_suite import StoreSuite
from tests.kit.postgres import Database, Postgres
from tests.kit.postgres_bed import PostgresBed, served
from tests.kit.postgres_versions import another
from tests.test_postgres_snapshot import CHANGES, LEVELS, fenced_by


@pytest.fixture(scope="module", params=[pytest.param("16", marks=pytest.mark.soak), "system"])
def other(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """A server of another version."""
    with another(request.param) as made:
        yield made


@pytest.fixture(scope="module")
def elsewhere(other: Postgres) -> Iterator[Database]:
    """A database for all tests that leave its tables as they are."""
    with other.database() as made:
        yield made


@pytest.fixture
async def bed(elsewhere: Database) -> AsyncIterator[PostgresBed]:
    """A served valid world."""
    async with served(elsewhere) as made:
        yield made


class TestConformance(StoreSuite):
    """The suite over another version."""


@pytest.mark.parametrize("level", LEVELS)
async def test_what_commits_while_a_delivery_waits_wins(other: Postgres, level: str) -> None:
    """There, too, the lock's statement and the read's have each a snapshot of its own, at every default level."""
    with other.database() as database:
        assert await fenced_by(database, level, CHANGES["cancel"], receipts=False) is Reason.AUTHORITY_MISMATCH
