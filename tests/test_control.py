"""The control plane over the embedded store, and what only that store has: the file's lock, and pruning."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path

import pytest

from provider.ports import AuditRecord
from sidecar.stores import control
from sidecar.stores.faults import StoreFault, StoreFaultKind
from sidecar.stores.sqlite import SqliteStore
from sidecar.stores.sqlite_control import BATCH_ROWS, SqliteControl, SqliteTx
from sidecar.stores.sqlite_make import create
from tests.conformance.control_suite import HOUR, PLAN, ControlSuite, do, with_session
from tests.kit.folders import quick_path
from tests.kit.world import facts

DAY = 86_400_000

__all__ = ["quick_path"]  # a fixture, found by its name


class SqlitePlane:
    """An empty SQLite store, served and written by two connections, as two programs would."""

    def __init__(self, path: Path) -> None:
        """Make the file and open it twice."""
        create(str(path))
        self.path = path
        self.store = SqliteStore(str(path))
        self.store.open()
        self.control = SqliteControl(str(path))

    def transaction(self, *, write: bool = True) -> AbstractAsyncContextManager[SqliteTx]:
        """Open a transaction."""
        return self.control.transaction(write=write)

    async def change(self, table: str, **columns: object) -> None:
        """Change columns of every row."""
        names = ", ".join(f"{name} = ?" for name in columns)
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute(f"UPDATE {table} SET {names}", tuple(columns.values()))

    async def dump(self) -> object:
        """Return every row of the six tables."""
        with closing(sqlite3.connect(self.path)) as connection:
            return {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in facts(0, ())}

    def close(self) -> None:
        """Close both."""
        self.control.__exit__(None, None, None)
        self.store.close()


@pytest.fixture
def plane(quick_path: Path) -> Iterator[SqlitePlane]:
    """An empty store."""
    made = SqlitePlane(quick_path / "store.db")
    yield made
    made.close()


class TestConformance(ControlSuite):
    """The suite over SQLite."""


@asynccontextmanager
async def audited(plane: SqlitePlane, ages_ms: list[int]) -> AsyncIterator[SqlitePlane]:
    """Audit rows of these ages, in this order."""
    with closing(sqlite3.connect(plane.path)) as connection, connection:
        now_ms = plane.store._clock()
        rows = [(f"request-{number}", now_ms - age) for number, age in enumerate(ages_ms)]
        connection.executemany("INSERT INTO security_audit_events (request_id, occurred_at_ms) VALUES (?, ?)", rows)
    yield plane


def left(plane: SqlitePlane) -> list[str]:
    """Return the request ids of the audit rows that are left."""
    with closing(sqlite3.connect(plane.path)) as connection:
        return [row[0] for row in connection.execute("SELECT request_id FROM security_audit_events ORDER BY rowid")]


async def test_prune_deletes_what_is_older_and_nothing_else(plane: SqlitePlane) -> None:
    """Rows go by their own age, also where the clock was stepped back between them."""
    ages = [95 * DAY, 91 * DAY, 10 * DAY, 92 * DAY, 0]
    async with audited(plane, ages):
        assert plane.control.audit_rows() == 5
        assert sum(deleted for _, deleted in plane.control.prune_audit(90 * DAY)) == 3
        assert left(plane) == ["request-2", "request-4"]
        assert list(plane.control.prune_audit(90 * DAY)) == []


async def test_prune_works_in_batches(plane: SqlitePlane) -> None:
    """One transaction deletes a thousand rows at most; a request gets its turn between two of them."""
    async with audited(plane, [100 * DAY] * (2 * BATCH_ROWS + 1) + [0]):
        progress = []
        for passed, deleted in plane.control.prune_audit(90 * DAY):
            progress.append((passed, deleted))
            await plane.store.record(AuditRecord(f"between-{len(progress)}", "authentication_rejected", None))
        assert progress == [(BATCH_ROWS, BATCH_ROWS), (2 * BATCH_ROWS, BATCH_ROWS), (2 * BATCH_ROWS + 1, 1)]
        assert left(plane) == [f"request-{2 * BATCH_ROWS + 1}", "between-1", "between-2", "between-3"]


async def test_an_empty_audit_is_pruned_too(plane: SqlitePlane) -> None:
    """There is nothing to do and nothing to fail."""
    assert plane.control.audit_rows() == 0
    assert list(plane.control.prune_audit(0)) == []


async def test_a_held_lock_is_named_as_such(plane: SqlitePlane, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that did not get the write lock in time says so; reading does not wait for it."""
    plane.control._connection.execute("PRAGMA busy_timeout = 20")
    with closing(sqlite3.connect(plane.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreFault) as caught:
            await with_session(plane)
        assert caught.value.kind is StoreFaultKind.LOCKED
        async with plane.transaction(write=False) as tx:
            assert (await control.show(tx, None))["workers"] == []
    await with_session(plane)


async def test_reading_writes_nothing(plane: SqlitePlane) -> None:
    """What `show` uses takes no write lock, so it never holds up a request."""
    async with plane.transaction(write=False) as tx:
        await control.show(tx, None)
        await plane.store.record(AuditRecord("request", "authentication_rejected", None))
    assert left(plane) == ["request"]


async def test_a_cancelled_step_rolls_back(plane: SqlitePlane) -> None:
    """A step that is cancelled half way leaves nothing and no lock."""
    await with_session(plane)
    before = await plane.dump()

    async def step() -> None:
        async with plane.transaction() as tx:
            await control.dispatch(tx, "worker", PLAN, HOUR)
            await asyncio.sleep(60)

    task = asyncio.create_task(step())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await plane.dump() == before
    await do(plane, lambda tx: control.dispatch(tx, "worker", PLAN, HOUR))


async def test_a_number_that_is_none_stops_a_step(plane: SqlitePlane) -> None:
    """A version or generation of a wrong type is not counted on from."""
    await with_session(plane)
    await plane.change("worker_sessions", generation="one")
    with pytest.raises(control.ControlRefused) as caught:
        await do(plane, lambda tx: control.open_session(tx, "worker", HOUR))
    assert caught.value.kind is control.Wrong.STATE


def test_the_table_of_receipts_is_made_once(plane: SqlitePlane) -> None:
    """`add_receipts` says whether it made the table."""
    assert plane.control.add_receipts()
    assert not plane.control.add_receipts()


def test_a_store_that_does_not_do_is_not_opened(quick_path: Path) -> None:
    """The control plane judges the file as `serve` does, but for reading every page."""
    with pytest.raises(StoreFault) as caught:
        SqliteControl(str(quick_path / "missing.db"))
    assert caught.value.kind is StoreFaultKind.MISSING
