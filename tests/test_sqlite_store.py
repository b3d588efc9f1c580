"""The embedded store, serve side: the conformance suite, and what only SQLite has."""

import asyncio
import math
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from provider.outcomes import Reason, Refused
from provider.ports import AuditRecord
from sidecar.stores import sqlite_lock
from sidecar.stores.faults import StoreFault, StoreFaultKind
from sidecar.stores.sqlite import SqliteStore
from tests.conformance.store_suite import RECEIPTS, StoreSuite, ask, deadline, refusal
from tests.kit.folders import quick_path
from tests.kit.mounting import mounted
from tests.kit.waiting import wait_for
from tests.kit.world import CREDENTIAL_ID, World, build_world

__all__ = ["quick_path"]  # a fixture, found by its name


class SqliteBed:
    """A SQLite file with a valid world, served; the outside hand is another connection."""

    untyped = True

    def __init__(self, path: Path, template: World) -> None:
        """Copy the template's file and open the copy."""
        shutil.copy(template.path, path)
        self.world = replace(template, path=path)
        self.store = SqliteStore(str(path), receipts=True)
        self.store.open()

    async def change(self, table: str, **columns: object) -> None:
        """Change columns of every row."""
        self.world.change(table, **columns)

    async def insert(self, table: str, **row: object) -> None:
        """Insert a row."""
        marks = ", ".join("?" * len(row))
        self.world.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))

    async def delete(self, table: str) -> None:
        """Delete every row."""
        self.world.execute(f"DELETE FROM {table}")

    async def rows(self, table: str) -> list[dict[str, object]]:
        """Return every row, in the order they were written."""
        with closing(sqlite3.connect(self.world.path)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(f"SELECT * FROM {table} ORDER BY rowid")]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A valid world, made once: each making waits for the disk."""
    return build_world(tmp_path_factory.mktemp("template") / "store.db", receipts=True)


@pytest.fixture
def bed(quick_path: Path, template: World) -> Iterator[SqliteBed]:
    """A served valid world, closed at the end."""
    made = SqliteBed(quick_path / "store.db", template)
    yield made
    made.store.close()


class TestConformance(StoreSuite):
    """The suite over SQLite."""


ALLOWED = "allowed"

_HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
"""


@contextmanager
def another_writer(world: World) -> Iterator[None]:
    """Another process holds the store's write lock while the block runs."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(world.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"held\n"
            yield
        finally:
            process.stdin.close()


@asynccontextmanager
async def heartbeat() -> AsyncIterator[list[float]]:
    """A task that wants to run every 5 ms; the list gets the seconds between its beats."""
    gaps: list[float] = []
    loop = asyncio.get_running_loop()

    async def beat() -> None:
        last = loop.time()
        while True:
            await asyncio.sleep(0.005)
            now = loop.time()
            gaps.append(now - last)
            last = now

    task = asyncio.create_task(beat())
    yield gaps
    task.cancel()


def free(bed: SqliteBed) -> bool:
    """Whether no request holds or waits for anything."""
    means = bed.store.hold(bed.world.principal(), bed.world.command(), 0, slow_material=False)._means
    return len(means.places) == 0 and means.lock.idle and not means.connection.in_transaction


async def test_the_loop_goes_on_while_another_process_writes(bed: SqliteBed) -> None:
    """While another process holds the write lock, credentials are read, the loop runs, and waiting ends with 2.5 s."""
    loop = asyncio.get_running_loop()
    with another_writer(bed.world):
        async with heartbeat() as gaps:
            began = loop.time()
            results = await asyncio.gather(
                ask(bed),
                bed.store.record(AuditRecord("request", ALLOWED, bed.world.principal())),
                return_exceptions=True,
            )
            waited = loop.time() - began
            newest, _ = await bed.store.newest(CREDENTIAL_ID)
            assert newest is not None
    reasons = [result.reason if isinstance(result, Refused) else result for result in results]
    assert reasons == [Reason.AUTHORITY_STORE, Reason.AUDIT_STORE]
    assert 2.5 <= waited < 10
    # A wait inside SQLite would be one gap of 2.5 s; a loaded machine makes gaps of a few hundredths.
    assert max(gaps) < 0.5
    assert bed.store.stats.lock_waits == 2
    assert bed.store.stats.lock_wait_s >= 5
    assert free(bed)
    await ask(bed)


async def test_a_lock_that_comes_free_is_taken(bed: SqliteBed) -> None:
    """A request that waits for another process's write goes on as soon as that has ended, and sees what it wrote."""
    writer = sqlite3.connect(bed.world.path, isolation_level=None)
    with closing(writer):
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE runs SET cancel_requested_at_ms = 1")
        waiting = asyncio.create_task(refusal(bed))
        record = asyncio.create_task(bed.store.record(AuditRecord("request", ALLOWED, bed.world.principal())))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        writer.execute("COMMIT")
        assert await waiting is Reason.AUTHORITY_MISMATCH
        await record
    assert len(bed.world.audit()) == 1


async def test_audit_rows_are_not_starved_by_slow_deliveries(bed: SqliteBed) -> None:
    """An audit row that came while one slow delivery held the lock is written before the next one gets it."""
    order: list[str] = []

    async def deliver(name: str) -> None:
        command = bed.world.command(attemptId=name)
        async with bed.store.hold(bed.world.principal(), command, deadline(), slow_material=True):
            order.append(name)
            await asyncio.sleep(0.03)

    async def audit() -> None:
        await bed.store.record(AuditRecord("request", ALLOWED, bed.world.principal()))
        order.append("audit")

    slow = [asyncio.create_task(deliver(f"attempt-{number}")) for number in range(3)]
    await asyncio.sleep(0.01)
    await asyncio.gather(*(audit() for _ in range(4)), *slow)
    assert order == ["attempt-0", *["audit"] * 4, "attempt-1", "attempt-2"]


async def test_a_credential_is_read_while_a_delivery_holds_the_lock(bed: SqliteBed) -> None:
    """A held authority transaction keeps nobody from authenticating, against the newest rows."""
    async with bed.store.hold(bed.world.principal(), bed.world.command(), deadline(), slow_material=True):
        newest, _ = await bed.store.newest(CREDENTIAL_ID)
    assert newest is not None


async def test_a_request_without_contention_never_suspends(bed: SqliteBed) -> None:
    """While nothing is in the way, audit, hold and COMMIT complete without the loop running anything else."""
    others: list[int] = []
    asyncio.get_running_loop().call_soon(others.append, 1)
    await bed.store.newest(CREDENTIAL_ID)
    await bed.store.record(AuditRecord("request", ALLOWED, bed.world.principal()))
    await ask(bed)
    assert others == []


@pytest.mark.parametrize("beats", range(1, 8))
@pytest.mark.parametrize("blocked", ["attempt", "transaction", "material", "line", "lock", "held"])
async def test_a_cancel_at_any_wait_leaves_nothing(bed: SqliteBed, blocked: str, beats: int) -> None:
    """Whatever a request waits for when it is cancelled, no transaction is open, no place taken, nobody in line."""
    world, store = bed.world, bed.store
    command = world.command() if blocked == "attempt" else world.command(attemptId="another")
    means = store.hold(world.principal(), command, 0, slow_material=True)._means
    writer = sqlite3.connect(world.path, isolation_level=None)

    async def request() -> None:
        async with store.hold(world.principal(), command, deadline(), slow_material=True):
            await asyncio.sleep(60)

    with closing(writer):
        unblock: Callable[[], object] = bool
        if blocked in ("attempt", "transaction"):
            unblock = (await means.places.take(world.attempt_id, deadline(), slow_material=False)).give_back
        elif blocked == "material":
            assert means.places._materials.take_now()
            unblock = means.places._materials.give_back
        elif blocked == "line":
            await means.lock.take(means.connection, "SELECT 1")
            unblock = means.lock.give_back
        elif blocked == "lock":
            writer.execute("BEGIN IMMEDIATE")
            unblock = writer.rollback
        task = asyncio.create_task(request())
        for _ in range(beats):
            await asyncio.sleep(0.001)
        # What it waits for comes free after the cancel, in the same moment before it, or in the same moment after it.
        if beats % 3 == 1:
            unblock()
        task.cancel()
        if beats % 3 == 2:
            unblock()
        with pytest.raises(asyncio.CancelledError):
            await task
        if beats % 3 == 0:
            unblock()
    assert free(bed)
    await ask(bed)


async def test_a_cancelled_audit_row_leaves_the_line(bed: SqliteBed) -> None:
    """A request that is cancelled while its audit row waits for the lock leaves neither a row nor a place in line."""
    with another_writer(bed.world):
        task = asyncio.create_task(bed.store.record(AuditRecord("request", ALLOWED, bed.world.principal())))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert free(bed)
    assert bed.world.audit() == []


async def test_a_full_store_refuses_and_recovers(bed: SqliteBed) -> None:
    """Without room, audit rows and receipts are refused and counted; with room again, all is as before."""
    connection = bed.store._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(Refused) as caught:
        for number in range(1000):
            await bed.store.record(AuditRecord(f"request-{number}", ALLOWED, bed.world.principal()))
    assert caught.value.reason is Reason.AUDIT_STORE
    with pytest.raises(Refused) as caught:
        await ask(bed, receipts=RECEIPTS * 100)
    assert caught.value.reason is Reason.AUTHORITY_STORE
    _, permit = await ask(bed)
    await bed.store.acknowledge(permit, RECEIPTS * 100)
    stats = bed.store.stats
    assert (stats.full_disk_failures, stats.lost_acknowledgements) == (3, 200)
    assert await bed.rows("receipts") == []
    connection.execute("PRAGMA max_page_count = 1000000")
    await bed.store.record(AuditRecord("request", ALLOWED, bed.world.principal()))
    await ask(bed, receipts=RECEIPTS)
    assert free(bed)


@pytest.mark.root
async def test_a_full_disk_refuses_and_recovers(quick_path: Path) -> None:
    """On a file system without room audit rows are refused; once there is room they are written, without a restart."""
    with mounted("tmpfs", quick_path, "tmpfs", data="size=1m"):
        world = build_world(quick_path / "store.db")
        store = SqliteStore(str(world.path))
        store.open()
        filler = quick_path / "filler"
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(bytes(4096))
        with pytest.raises(Refused) as caught:
            for number in range(1000):
                await store.record(AuditRecord(f"request-{number}", ALLOWED, world.principal()))
        assert caught.value.reason is Reason.AUDIT_STORE
        assert store.stats.full_disk_failures == 1
        filler.unlink()
        await store.record(AuditRecord("request", ALLOWED, world.principal()))
        assert store.health() == "ok"
        store.close()


async def test_a_store_that_was_replaced_is_not_trusted(bed: SqliteBed) -> None:
    """Once another file has the store's name, nothing is granted from the open one and health says so."""
    assert bed.store.health() == "ok"
    copy = bed.world.path.with_suffix(".copy")
    shutil.copy(bed.world.path, copy)
    os.replace(copy, bed.world.path)
    assert bed.store.health() == "failed"
    assert await refusal(bed) is Reason.AUTHORITY_STORE
    bed.world.path.unlink()
    assert bed.store.health() == "failed"
    assert free(bed)


async def test_a_store_migrated_meanwhile_is_not_healthy(bed: SqliteBed) -> None:
    """A schema of another version under a running store shows in its health."""
    bed.world.execute("PRAGMA user_version = 99")
    assert bed.store.health() == "failed"


async def test_a_failing_store_is_a_refusal_everywhere(bed: SqliteBed) -> None:
    """An error of SQLite is one of the contract's refusals, whichever call meets it."""
    _, permit = await ask(bed)
    for table in ("worker_credentials", "security_audit_events", "run_attempts", "receipts"):
        bed.world.execute(f"ALTER TABLE {table} RENAME TO gone_{table}")
    with pytest.raises(Refused) as caught:
        await bed.store.newest(CREDENTIAL_ID)
    assert caught.value.reason is Reason.CREDENTIAL_STORE
    assert caught.value.__cause__ is None
    with pytest.raises(Refused) as caught:
        await bed.store.record(AuditRecord("request", ALLOWED, bed.world.principal()))
    assert caught.value.reason is Reason.AUDIT_STORE
    assert await refusal(bed) is Reason.AUTHORITY_STORE
    await bed.store.acknowledge(permit, RECEIPTS)
    assert bed.store.stats.lost_acknowledgements == 2
    assert free(bed)


async def test_a_closed_store_refuses(bed: SqliteBed) -> None:
    """A request that comes after the store was closed gets an answer of the contract."""
    store = SqliteStore(str(bed.world.path))
    store.open()
    store.close()
    with pytest.raises(Refused) as caught:
        await store.newest(CREDENTIAL_ID)
    assert caught.value.reason is Reason.CREDENTIAL_STORE
    assert store.health() == "failed"
    assert math.isnan(store.stats.oldest_audit_age_s)


async def test_stats_tell_of_the_store(bed: SqliteBed) -> None:
    """Sizes count the log too, and the age is that of the oldest audit row on the store's clock."""
    stats = bed.store.stats
    assert stats.oldest_audit_age_s == 0
    assert stats.free_bytes > 0
    await bed.insert("security_audit_events", occurred_at_ms=bed.world.now_ms - 60_000)
    await bed.store.record(AuditRecord("request", ALLOWED, bed.world.principal()))
    grown = bed.store.stats
    assert grown.oldest_audit_age_s >= 60
    assert grown.store_bytes > bed.world.path.stat().st_size


async def test_the_clock_is_the_stores(quick_path: Path, template: World) -> None:
    """Credential, snapshot, audit row and receipts all have the store's clock, whatever the machine's shows."""
    shutil.copy(template.path, quick_path / "store.db")
    store = SqliteStore(str(quick_path / "store.db"), clock=lambda: 1234)
    store.open()
    world = replace(template, path=quick_path / "store.db")
    assert (await store.newest("nobody"))[1] == 1234
    await store.record(AuditRecord("request", ALLOWED, world.principal()))
    async with store.hold(world.principal(), world.command(), deadline(), slow_material=False) as hold:
        assert hold.snapshot.now_ms == 1234
    store.close()
    assert world.audit()[0]["occurred_at_ms"] == 1234


async def test_the_log_is_moved_into_the_file(bed: SqliteBed) -> None:
    """What is committed stands in the store file itself within seconds, without a request waiting for it."""
    before = bed.world.path.stat().st_mtime_ns
    await bed.store.record(AuditRecord("request", ALLOWED, bed.world.principal()))
    wait_for(lambda: bed.world.path.stat().st_mtime_ns != before)
    assert bed.store.stats.checkpoint_failures == 0


async def test_a_long_log_is_cut(bed: SqliteBed, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a burst the log does not keep its size for ever."""
    monkeypatch.setattr("sidecar.stores.sqlite_checkpoint._TRUNCATE_BYTES", 1 << 16)
    log = bed.world.path.with_name("store.db-wal")
    for number in range(100):
        await bed.store.record(AuditRecord(f"request-{number}", ALLOWED, bed.world.principal()))
    wait_for(lambda: log.stat().st_size == 0)
    assert len(bed.world.audit()) == 100


async def test_a_failed_checkpoint_is_counted(bed: SqliteBed) -> None:
    """A log that cannot be moved is counted and tried again; requests go on."""
    bed.world.path.rename(bed.world.path.with_suffix(".moved"))
    await bed.store.record(AuditRecord("request", ALLOWED, bed.world.principal()))
    wait_for(lambda: bed.store.stats.checkpoint_failures > 0)


def test_a_killed_sidecar_loses_no_committed_row(quick_path: Path) -> None:
    """What was committed before the process was killed is there when the store is opened again."""
    world = build_world(quick_path / "store.db")
    script = """
import asyncio, os, signal, sys
from pathlib import Path
from provider.ports import AuditRecord
from sidecar.stores.sqlite import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1])
    store.open()
    for number in range(50):
        await store.record(AuditRecord(f"request-{number}", "authentication_rejected", None))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script, str(world.path)], check=False)
    assert done.returncode == -9
    store = SqliteStore(str(world.path))
    store.open()
    store.close()
    assert len(world.audit()) == 50
    assert sorted(path.name for path in quick_path.iterdir()) == ["store.db"]


def test_receipts_need_their_table(quick_path: Path) -> None:
    """With receipts on, a store without their table does not open, and the fault names the command that makes it."""
    world = build_world(quick_path / "store.db")
    with pytest.raises(StoreFault, match="no table") as caught:
        SqliteStore(str(world.path), receipts=True).open()
    assert caught.value.kind is StoreFaultKind.NO_RECEIPTS
    assert "init --receipts" in caught.value.mend


@pytest.mark.parametrize("statement", ["DROP TABLE worker_sessions", "ALTER TABLE runs DROP COLUMN execution_owner"])
def test_a_store_without_a_table_or_column_does_not_open(quick_path: Path, statement: str) -> None:
    """A file that lacks what a request reads is found at start, not at the first request."""
    world = build_world(quick_path / "store.db")
    world.execute(statement)
    with pytest.raises(StoreFault) as caught:
        SqliteStore(str(world.path)).open()
    assert caught.value.kind is StoreFaultKind.CORRUPT
    assert sorted(path.name for path in quick_path.iterdir()) == ["store.db"]


async def test_busy_and_full_are_told_apart(bed: SqliteBed) -> None:
    """Only a lock is waited for: any other error of the same statement ends it at once."""
    lock = sqlite_lock.WriteLock()
    with closing(sqlite3.connect(bed.world.path, isolation_level=None)) as connection:
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            await lock.take(connection, "INSERT INTO lacking VALUES (1)")
        assert lock.idle
        assert lock.waits == 0
