"""What a delivery sees of PostgreSQL: everything committed before it had the lock, at the server's own time."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from provider.authority import commit, verify
from provider.outcomes import Reason, Refused
from provider.ports import AuditRecord
from sidecar.stores import postgres_session, postgres_sql
from sidecar.stores.postgres_session import Unusable, connect
from tests.conformance.store_suite import deadline
from tests.kit.postgres import Database
from tests.kit.postgres_bed import PostgresBed, login, served, until
from tests.kit.tcpproxy import TcpProxy
from tests.kit.world import CREDENTIAL_ID

FENCED = Reason.AUTHORITY_MISMATCH
LEVELS = ("read committed", "repeatable read", "serializable")


async def outcome(bed: PostgresBed) -> Reason | None:
    """Do what a request does; return why it was refused, None when it was granted and the permit held."""
    world = bed.world
    try:
        async with bed.store.hold(world.principal(), world.command(), deadline(), slow_material=False) as hold:
            authority = verify(world.principal(), world.session_id, world.command(), hold)
            permit = await commit(hold, authority, ())
        permit.check(asyncio.get_running_loop().time())
    except Refused as refused:
        return refused.reason
    return None


@asynccontextmanager
async def writing(bed: PostgresBed, statement: str) -> AsyncIterator[threading.Event]:
    """A writer holds the attempt's lock and has changed something; it commits once the event is set."""
    held, go = threading.Event(), threading.Event()
    key = f"ql3-attempt-authority:{bed.world.attempt_id}"

    async def write(connection: Any) -> None:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", key)
            await connection.execute(statement)
            held.set()
            await asyncio.to_thread(go.wait, 30)

    writer = asyncio.create_task(asyncio.to_thread(bed.database.run, write))
    await asyncio.to_thread(held.wait, 20)
    try:
        yield go
    finally:
        go.set()
        await writer


async def one_waits(bed: PostgresBed) -> bool:
    """Tell whether somebody waits for an advisory lock of this database."""
    rows = await bed.execute(
        "SELECT 1 FROM pg_locks JOIN pg_database AS d ON d.oid = database"
        " WHERE locktype = 'advisory' AND NOT granted AND d.datname = current_database()"
    )
    return bool(rows)


CHANGES = {
    "cancel": "UPDATE ql3.runs SET cancel_requested_at_ms = 1",
    "new credential": "INSERT INTO ql3.worker_credentials SELECT credential_id, 2, worker_id, secret_digest, state,"
    " not_before_at_ms, expires_at_ms FROM ql3.worker_credentials",
    "renewed": "UPDATE ql3.run_dispatch_leases SET version = version + 1",
}


async def fenced_by(database: Database, level: str, change: str, *, receipts: bool) -> Reason | None:
    """Return why a delivery was refused that waited for a writer with this change, at this default isolation level."""
    await asyncio.to_thread(
        database.psql, f"ALTER DATABASE {database.name} SET default_transaction_isolation = '{level}'"
    )
    async with served(database, receipts=receipts) as bed, writing(bed, change) as go:
        waiting = asyncio.create_task(outcome(bed))
        while not await one_waits(bed):
            assert not waiting.done()
        go.set()
        return await waiting


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("change", CHANGES)
async def test_what_commits_while_a_delivery_waits_wins(database: Database, level: str, change: str) -> None:
    """A writer with the lock changes a fact and commits while the delivery waits: it is fenced, at every default."""
    # With receipts the transaction may write, without them it only reads: either waits for the lock and then reads.
    assert await fenced_by(database, level, CHANGES[change], receipts=change != "renewed") is FENCED


async def test_a_writer_that_rolls_back_changes_nothing(database: Database) -> None:
    """The twin: without a commit the waiting delivery is granted."""
    async with served(database) as bed, writing(bed, "SELECT 1") as go:
        waiting = asyncio.create_task(outcome(bed))
        while not await one_waits(bed):
            assert not waiting.done()
        go.set()
        assert await waiting is None


@pytest.mark.parametrize("level", LEVELS[1:])
async def test_a_plain_begin_would_not_see_it(database: Database, monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    """The twin that must fail: with the default level of such a database the delivery would be granted too late."""
    plain = f"BEGIN ISOLATION LEVEL {level.upper()} READ WRITE"
    monkeypatch.setattr(postgres_session, "BEGIN_WRITING", plain)
    monkeypatch.setitem(postgres_sql.NAMES, plain, "plain")
    async with served(database) as bed, writing(bed, CHANGES["cancel"]) as go:
        waiting = asyncio.create_task(outcome(bed))
        while not await one_waits(bed):
            assert not waiting.done()
        go.set()
        assert await waiting is None


async def test_a_writer_waits_for_a_delivery(database: Database) -> None:
    """The lock is held from the read to COMMIT: a cancel that comes between them commits after it, not before."""
    async with served(database) as bed:
        world, key = bed.world, f"ql3-attempt-authority:{bed.world.attempt_id}"
        free = "SELECT pg_try_advisory_xact_lock(hashtextextended(?, 0))"
        async with bed.store.hold(world.principal(), world.command(), deadline(), slow_material=False) as hold:
            authority = verify(world.principal(), world.session_id, world.command(), hold)
            assert await bed.execute(free, key) == [(False,)]
            await commit(hold, authority, ())
            assert await bed.execute(free, key) == [(True,)]


@pytest.mark.parametrize("text", ["plain", "it's \\' \\\\ $1 %s ; --", "ünï©ode-🔑", "x" * 36])
async def test_the_lock_is_the_attempts_own(database: Database, text: str) -> None:
    """Whatever characters an attempt id has, the lock is that of the contract's formula over this very text."""
    async with served(database) as bed:
        command = bed.world.command(attemptId=text)
        async with bed.store.hold(bed.world.principal(), command, deadline(), slow_material=False):
            rows = await bed.execute(
                "SELECT classid::bigint << 32 | objid::bigint = hashtextextended('ql3-attempt-authority:' || ?, 0)"
                " FROM pg_locks WHERE locktype = 'advisory' AND granted",
                text,
            )
            assert rows == [(True,)]


TABLES = {"lease": ("run_dispatch_leases", "expires_at_ms"), "session": ("worker_sessions", "lease_expires_at_ms")}
TABLES["credential"] = ("worker_credentials", "expires_at_ms")


@pytest.mark.parametrize("what", TABLES)
@pytest.mark.parametrize("day", [-1, 0, 1])
async def test_the_servers_clock_alone_counts(
    database: Database, monkeypatch: pytest.MonkeyPatch, what: str, day: int
) -> None:
    """50 ms before the end it is granted and 50 ms after it fenced, whatever day this process's clock shows."""
    table, column = TABLES[what]
    real = time.time_ns
    async with served(database) as bed:
        monkeypatch.setattr(time, "time_ns", lambda: real() + day * 86_400_000_000_000)
        monkeypatch.setattr(time, "time", lambda: time.time_ns() / 1e9)
        assert await outcome(bed) is None  # everything is prepared
        connection = await asyncpg.connect(database.url)
        now = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
        try:
            # On a busy machine 50 ms may be over before the read; some attempt is in time.
            for _ in range(200):
                await connection.execute(f"UPDATE ql3.{table} SET {column} = {now} + 50")
                if await outcome(bed) is None:
                    break
            else:
                pytest.fail("never granted before the end")
            await connection.execute(f"UPDATE ql3.{table} SET {column} = {now} - 50")
            assert await outcome(bed) is FENCED
        finally:
            await connection.close()


async def test_an_end_that_comes_while_material_is_read(database: Database) -> None:
    """Granted 50 ms before the end; the permit is no longer good 50 ms later, by elapsed time alone."""
    async with served(database) as bed:
        world = bed.world
        now = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
        # The update's way back takes time, too: as long as the read was before the end, the outcome is told here.
        for _ in range(50):
            await bed.execute(f"UPDATE run_dispatch_leases SET expires_at_ms = {now} + 150")
            try:
                async with bed.store.hold(world.principal(), world.command(), deadline(), slow_material=False) as hold:
                    authority = verify(world.principal(), world.session_id, world.command(), hold)
                    permit = await commit(hold, authority, ())
            except Refused:
                continue
            left_s = (authority.expires_at_ms - authority.now_ms) / 1000
            permit.check(authority.read_at + left_s - 0.05)
            for late in (0.0, 0.05):
                with pytest.raises(Refused):
                    permit.check(authority.read_at + left_s + late + 1e-6)
            return
        pytest.fail("never read before the end")


async def test_a_plan_is_handed_over_as_text(database: Database) -> None:
    """Whatever jsonb holds arrives as JSON text for the one parser of plans, SQL NULL as None."""
    async with served(database) as bed:
        world = bed.world
        for value, expected in (('{"a": [1, "é"]}', '{"a": [1, "é"]}'), ("null", "null"), (None, None)):
            await bed.execute("UPDATE task_execution_revisions SET plan_json = ?::text::jsonb", value)
            async with bed.store.hold(world.principal(), world.command(), deadline(), slow_material=False) as hold:
                assert hold.snapshot.revision is not None
                assert hold.snapshot.revision.plan_json == expected


async def test_round_trips(database: Database) -> None:
    """A delivery costs four: credential, audit row, begin with lock and read, COMMIT. Counted on the wire.

    Each ends with the one message that has the server answer, Sync or a simple query. That BEGIN and lock are sent
    ahead of the driver's own messages is nothing the driver offers: this holds as long as it is this one.
    """
    sent = bytearray()
    with TcpProxy(database.server.port) as proxy:
        async with served(database, login(database, connections=2, port=proxy.port)) as bed:
            assert await outcome(bed) is None  # statements are prepared
            await until(bed.free)
            bed.store._watch.stop()
            await bed.store.record(AuditRecord("request", "allowed", bed.world.principal()))
            proxy.sent = sent.extend
            await bed.store.newest(CREDENTIAL_ID)
            await bed.store.record(AuditRecord("request", "allowed", bed.world.principal()))
            assert await outcome(bed) is None
            proxy.sent = lambda _data: None
    assert messages(sent) == "BES" + "BES" + "BEBEBES" + "Q"


async def test_round_trips_are_shared(database: Database) -> None:
    """Nine that authenticate at once cost two round trips, and so do their nine audit rows."""
    sent = bytearray()
    with TcpProxy(database.server.port) as proxy:
        async with served(database, login(database, connections=2, port=proxy.port)) as bed:
            record = AuditRecord("request", "allowed", bed.world.principal())
            for _ in range(2):  # statements are prepared
                await bed.store.newest(CREDENTIAL_ID)
                await bed.store.record(record)
            bed.store._watch.stop()
            proxy.sent = sent.extend
            await asyncio.gather(*(bed.store.newest(CREDENTIAL_ID) for _ in range(9)))
            await asyncio.gather(*(bed.store.record(record) for _ in range(9)))
            proxy.sent = lambda _data: None
            assert len(await bed.rows("security_audit_events")) == 11
    assert messages(sent) == "BES" * 4


def messages(sent: bytearray) -> str:
    """The kinds of the messages of a stream."""
    kinds = ""
    while sent:
        kinds += chr(sent[0])
        del sent[: 1 + int.from_bytes(sent[1:5])]
    return kinds


async def test_a_lock_that_is_not_had_is_all_that_runs(database: Database) -> None:
    """Where the lock is not had in time nothing is read after it, and the session is as good as before."""
    async with served(database) as bed, writing(bed, "SELECT 1"):
        session = await connect(login(database), None, deadline())
        attempt = bed.world.attempt_id
        with pytest.raises(Unusable):
            await session.begin(attempt, deadline(), attempt, CREDENTIAL_ID, write=False)
        failed = session.in_transaction
        last = "SELECT query FROM pg_stat_activity WHERE state = 'idle in transaction (aborted)' AND datname = ?"
        assert await bed.execute(last, database.name) == [(postgres_sql.LOCK,)]
        await session.tell("ROLLBACK", deadline())
        assert (failed, session.in_transaction) == (True, False)
        session.close()
