"""A PostgreSQL that is slow, gone, failing over or lying: each ends in the contract's answer, and nothing is left."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provider.authority import Hold, commit, verify
from provider.outcomes import Reason, Refused
from provider.ports import AuditRecord
from sidecar.postgres_config import Password
from sidecar.stores import postgres_hold, postgres_pool
from sidecar.stores.faults import StoreFault, StoreFaultKind
from sidecar.stores.postgres_rights import RightsFaultKind
from tests.conformance.store_suite import RECEIPTS, ask, deadline
from tests.kit.postgres import ROLE_PASSWORD, Database, Postgres, PostgresWorld
from tests.kit.postgres_bed import PostgresBed, login, open_every_session, served, until
from tests.kit.tcpproxy import TcpProxy
from tests.kit.world import CREDENTIAL_ID

STORE, CREDENTIAL, AUDIT = Reason.AUTHORITY_STORE, Reason.CREDENTIAL_STORE, Reason.AUDIT_STORE


async def reason(call: Awaitable[object]) -> Reason | None:
    """Return why a call was refused, None when it was not."""
    try:
        await call
    except Refused as refused:
        return refused.reason
    return None


async def newest(bed: PostgresBed) -> Reason | None:
    """Look the credential up."""
    return await reason(bed.store.newest(CREDENTIAL_ID))


async def record(bed: PostgresBed) -> Reason | None:
    """Write an audit row."""
    return await reason(bed.store.record(AuditRecord("request", "allowed", bed.world.principal())))


async def all_three(bed: PostgresBed) -> list[Reason | None]:
    """Do everything that a request does, one after the other, and return why each was refused."""
    return [await newest(bed), await record(bed), await reason(ask(bed))]


async def gather(*calls: Awaitable[Reason | None]) -> list[Reason | None]:
    """Run calls beside each other."""
    return list(await asyncio.gather(*calls))


async def well_again(bed: PostgresBed, seconds: float = 20) -> None:
    """Wait until the store is healthy; then the very next request of each kind is served."""
    await until(lambda: bed.store.health() == "ok", seconds)
    assert await all_three(bed) == [None, None, None]


def write_private(path: Path, text: str) -> None:
    """Replace a file that only its owner may read."""
    temporary = path.with_suffix(".new")
    temporary.touch(0o600)
    temporary.write_text(text)
    temporary.rename(path)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call's time is short, so that tests of silence are short."""
    monkeypatch.setattr(postgres_hold, "CALL_S", 0.5)
    monkeypatch.setattr("sidecar.stores.postgres.CALL_S", 0.5)
    monkeypatch.setattr(postgres_pool, "_ROLL_BACK_S", 0.3)


@pytest.fixture
async def bed(database: Database) -> AsyncIterator[PostgresBed]:
    """A served valid world."""
    async with served(database) as made:
        yield made


@asynccontextmanager
async def behind_proxy(database: Database, connections: int = 4) -> AsyncIterator[tuple[PostgresBed, TcpProxy]]:
    """A served valid world whose network is ours."""
    with TcpProxy(database.server.port) as proxy:
        async with served(database, login(database, connections=connections, port=proxy.port)) as bed:
            yield bed, proxy


@pytest.mark.parametrize("mode", ["immediate", "fast"])
async def test_a_killed_server_is_unavailable_and_comes_back(bed: PostgresBed, server: Postgres, mode: str) -> None:
    """While it is down everything is refused at once, readiness shows it within 3 s; then all is served as before."""
    await open_every_session(bed.store)
    # This server forgets the last moments before a crash; the world has to outlive it.
    await asyncio.to_thread(server.psql, "CHECKPOINT")
    began = time.monotonic()
    await asyncio.to_thread(server.stop, mode)
    try:
        gone = time.monotonic()
        assert await all_three(bed) == [CREDENTIAL, AUDIT, STORE]
        assert time.monotonic() - gone < 2
        await until(lambda: bed.store.health() == "failed", began + 6 - time.monotonic())
    finally:
        await asyncio.to_thread(server.start)
    await well_again(bed)


async def test_a_lost_server_shows_within_three_seconds(database: Database) -> None:
    """A network that swallows everything shows in readiness, though no connection ends; and is recovered from."""
    async with behind_proxy(database) as (bed, proxy):
        assert bed.store.health() == "ok"
        proxy.deaf = True
        began = time.monotonic()
        await until(lambda: bed.store.health() == "failed", 5)
        assert time.monotonic() - began < 3
        proxy.deaf = False
        proxy.cut()
        await well_again(bed)


@pytest.mark.usefixtures("impatient")
async def test_a_paused_server_holds_nobody(bed: PostgresBed, server: Postgres) -> None:
    """A server that was stopped where it is: every wait has an end, and sessions without an answer are closed."""
    world = bed.world
    async with bed.store.hold(world.principal(), world.command(), deadline(), slow_material=False) as hold:
        authority = verify(world.principal(), world.session_id, world.command(), hold)
        await asyncio.to_thread(server.pause)
        try:
            began = time.monotonic()
            results = await gather(
                newest(bed), record(bed), reason(commit(hold, authority, RECEIPTS)), *(newest(bed) for _ in range(8))
            )
            assert results == [CREDENTIAL, AUDIT, STORE, *[CREDENTIAL] * 8]
            assert time.monotonic() - began < 5
            await until(lambda: bed.store.health() == "failed", 6)
        finally:
            await asyncio.to_thread(server.resume)
    await well_again(bed)
    assert bed.store.stats.pool.broken > 0


@pytest.mark.usefixtures("impatient")
async def test_a_deadline_during_silence_is_the_deadlines_answer(database: Database) -> None:
    """Where the request's own time runs out while the server is silent, that is the reason."""
    async with behind_proxy(database) as (bed, proxy):
        world = bed.world
        proxy.deaf = True
        hold = bed.store.hold(world.principal(), world.command(), deadline(0.1), slow_material=False)
        assert await reason(hold.__aenter__()) is Reason.DEADLINE
        proxy.deaf = False
        proxy.cut()
        await well_again(bed)
        async with bed.store.hold(world.principal(), world.command(), deadline(5), slow_material=False) as late:
            authority = verify(world.principal(), world.session_id, world.command(), late)
            proxy.deaf = True
            late._deadline = deadline(0.1)
            assert await reason(commit(late, authority, ())) is Reason.DEADLINE
        proxy.deaf = False
        proxy.cut()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("how", ["cut", "deaf"])
async def test_a_network_lost_in_the_transaction(database: Database, how: str) -> None:
    """A connection that ends, or goes silent, between read and COMMIT: no permit, no lock; the next one is served."""
    async with behind_proxy(database) as (bed, proxy):
        world = bed.world
        async with bed.store.hold(world.principal(), world.command(), deadline(), slow_material=False) as hold:
            authority = verify(world.principal(), world.session_id, world.command(), hold)
            if how == "cut":
                proxy.cut()
            else:
                proxy.deaf = True
            assert await reason(commit(hold, authority, RECEIPTS)) is STORE
        proxy.deaf = False
        proxy.cut()
        await bed.settled()
        await well_again(bed)
        # Only the later request's receipts are there, and it had none.
        assert await bed.rows("receipts") == []


@pytest.mark.usefixtures("impatient")
async def test_a_lost_answer_to_commit_is_no_commit(database: Database) -> None:
    """The server commits and its word of it is lost: there is no permit, though the receipts say `released`."""
    async with behind_proxy(database) as (bed, proxy):
        world = bed.world

        def sent(data: bytes) -> None:
            if b"COMMIT\0" in data:
                proxy.mute_server = True

        proxy.sent = sent
        async with bed.store.hold(world.principal(), world.command(), deadline(), slow_material=False) as hold:
            authority = verify(world.principal(), world.session_id, world.command(), hold)
            assert await reason(commit(hold, authority, RECEIPTS)) is STORE
        proxy.sent, proxy.mute_server = (lambda _data: None), False
        assert [row["kind"] for row in await bed.rows("receipts")] == ["released", "released"]
        proxy.cut()
        await well_again(bed)


async def test_a_commit_that_rolls_back_is_no_commit(bed: PostgresBed) -> None:
    """PostgreSQL answers COMMIT of a failed transaction with the tag ROLLBACK and no error: there is no permit."""
    world = bed.world
    async with bed.store.hold(world.principal(), world.command(), deadline(), slow_material=False) as hold:
        authority = verify(world.principal(), world.session_id, world.command(), hold)
        assert hold._session is not None
        with pytest.raises(Exception, match="division"):
            await hold._session._connection.execute("SELECT 1 / 0")
        assert await reason(commit(hold, authority, ())) is STORE


async def test_a_role_out_of_connections(server: Postgres, database: Database) -> None:
    """A role that may open no more sessions is served on those it has, and by the next ones when it may again."""
    async with served(database) as bed:
        database.psql("ALTER ROLE ql3_secret_sidecar CONNECTION LIMIT 1")
        try:
            results = await gather(*(call(bed) for _ in range(3) for call in (newest, record)))
            assert set(results) <= {None, CREDENTIAL, AUDIT}
            assert bed.store.stats.pool.open_failures > 0
            assert await all_three(bed) == [None, None, None]
        finally:
            database.psql("ALTER ROLE ql3_secret_sidecar CONNECTION LIMIT -1")
        assert await gather(*(call(bed) for _ in range(3) for call in (newest, record))) == [None] * 6


SETTINGS = {
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "statement_timeout": "21s",
    "lock_timeout": "22s",
    "idle_in_transaction_session_timeout": "23s",
    "search_path": "nowhere",
    "synchronous_commit": "off",
    "standard_conforming_strings": "off",
    "datestyle": "German",
}
EXPECTED = {
    "transaction_isolation": "read committed",
    "transaction_read_only": "on",
    "statement_timeout": "5s",
    "lock_timeout": "1s",
    "idle_in_transaction_session_timeout": "10s",
    "synchronous_commit": "on",
}


@pytest.mark.parametrize("scope", ["SYSTEM", "DATABASE {}", "ROLE ql3_secret_sidecar", "ROLE {role} IN DATABASE {}"])
async def test_settings_of_server_database_and_role_do_not_matter(database: Database, scope: str) -> None:
    """Isolation, read-only, time limits, search path, durability: no default that anybody set changes anything here."""
    where = scope.format(database.name, role="ql3_secret_sidecar")
    bed = PostgresBed(database, receipts=False)

    def alter(change: Callable[[str, str], str]) -> None:
        statements = [f"ALTER {where} {change(*setting)};" for setting in SETTINGS.items()]
        script = "\n".join(["SET default_transaction_read_only = off;", *statements, "SELECT pg_reload_conf();"])
        database.psql(script)
        time.sleep(0.2)

    await asyncio.to_thread(alter, lambda name, value: f"SET {name} = '{value}'")
    try:
        await bed.store.open()
        assert await all_three(bed) == [None, None, None]
        world = bed.world
        async with bed.store.hold(world.principal(), world.command(), deadline(), slow_material=False) as hold:
            assert hold._session is not None
            connection = hold._session._connection
            shown = {name: await connection.fetchval(f"SHOW {name}") for name in EXPECTED}
        assert shown == EXPECTED
        await bed.settled()
    finally:
        await asyncio.to_thread(alter, lambda name, _value: f"RESET {name}")
        bed.store.close()


async def test_a_server_in_recovery_is_unavailable_until_it_is_promoted(database: Database, server: Postgres) -> None:
    """A standby authenticates nobody: its rows are older, its locks its own. Promoted, it serves."""

    def fail_over() -> None:
        server.stop()
        signal = server.data / "standby.signal"
        signal.touch()
        owner = server.data.stat()
        os.chown(signal, owner.st_uid, owner.st_gid)
        server.start()

    # Without receipts: a transaction that may write is refused there by the server itself.
    async with served(database, receipts=False) as bed:
        await asyncio.to_thread(fail_over)
        try:
            for _ in range(2):
                assert await all_three(bed) == [CREDENTIAL, AUDIT, STORE]
            await asyncio.sleep(1)
            assert bed.store.health() == "failed"
            assert (bed.faults, bed.wrong) == ([], [])
        finally:
            await asyncio.to_thread(server.psql, "SELECT pg_promote()")
        await well_again(bed)


@asynccontextmanager
async def attempts_locked(bed: PostgresBed, attempts: list[str]) -> AsyncIterator[None]:
    """Another replica holds the locks of these attempts."""
    held, release = threading.Event(), threading.Event()

    async def hold_locks(connection: Any) -> None:
        async with connection.transaction():
            for attempt in attempts:
                key = f"ql3-attempt-authority:{attempt}"
                await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", key)
            held.set()
            await asyncio.to_thread(release.wait, 30)

    holder = asyncio.create_task(asyncio.to_thread(bed.database.run, hold_locks))
    await asyncio.to_thread(held.wait, 20)
    try:
        yield
    finally:
        release.set()
        await holder


async def test_lock_waiters_leave_a_session_for_the_others(bed: PostgresBed) -> None:
    """Sixteen attempts that all wait for their locks never have the last session: others authenticate meanwhile."""
    world = bed.world
    attempts = [f"attempt-{number}" for number in range(16)]

    async def wait(attempt: str) -> Reason | None:
        hold = bed.store.hold(world.principal(), world.command(attemptId=attempt), deadline(), slow_material=False)
        return await reason(hold.__aenter__())

    async with attempts_locked(bed, attempts):
        waiting = [asyncio.create_task(wait(attempt)) for attempt in attempts]
        await until(lambda: bed.store.stats.pool.used >= 3)
        for _ in range(10):
            at = time.monotonic()
            assert [await newest(bed), await record(bed)] == [None, None]
            assert time.monotonic() - at < 0.5
        assert await asyncio.gather(*waiting) == [STORE] * 16
    assert bed.store.stats.pool.broken == 0


async def test_an_attempt_locked_by_another_replica_is_busy_for_itself_alone(bed: PostgresBed) -> None:
    """Somebody holds one attempt's lock: it is 503 within its time; others are delivered or fenced as before."""
    world = bed.world
    other = world.command(attemptId="018f0000-0000-7000-8000-0000000000ee")
    for table, key in (("run_attempts", "id"), ("run_dispatch_leases", "attempt_id")):
        await bed.execute(
            f"INSERT INTO {table} SELECT (jsonb_populate_record(t, jsonb_build_object('{key}', ?::text))).*"
            f" FROM {table} AS t",
            other.attempt_id,
        )
    unknown = world.command(attemptId="018f0000-0000-7000-8000-0000000000ff")
    async with attempts_locked(bed, [world.attempt_id]):
        began = time.monotonic()
        busy = [asyncio.create_task(reason(ask(bed))) for _ in range(16)]
        await asyncio.sleep(0.1)
        for _ in range(5):
            at = time.monotonic()
            assert await gather(newest(bed), record(bed)) == [None, None]
            async with bed.store.hold(world.principal(), unknown, deadline(), slow_material=True) as hold:
                assert hold.snapshot.attempt is None
            async with bed.store.hold(world.principal(), other, deadline(), slow_material=True) as hold:
                authority = verify(world.principal(), world.session_id, other, hold)
                (await commit(hold, authority, ())).check(asyncio.get_running_loop().time())
            assert time.monotonic() - at < 1
        assert bed.store.health() == "ok"
        assert await asyncio.gather(*busy) == [STORE] * 16
        assert time.monotonic() - began < 4
    await ask(bed)


async def test_cancels_at_every_await_leave_nothing(bed: PostgresBed) -> None:
    """A request whose client goes at any moment leaves no session, no place and no lock, and the next one is served."""
    world = bed.world

    async def request() -> None:
        await bed.store.newest(CREDENTIAL_ID)
        await bed.store.record(AuditRecord("request", "allowed", world.principal()))
        _, permit = await ask(bed, slow=True, receipts=RECEIPTS)
        await bed.store.acknowledge(permit, RECEIPTS)

    for step in range(40):
        task = asyncio.create_task(request())
        for _ in range(step):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    for pause in range(30):
        tasks = [asyncio.create_task(request()) for _ in range(3)]
        await asyncio.sleep(pause / 2000)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await bed.settled()
    assert await all_three(bed) == [None, None, None]
    assert not bed.store._pool._rolling_back


async def test_a_slow_statement_is_ended_by_the_server(bed: PostgresBed) -> None:
    """A table that somebody has locked costs a request 1 s and its session nothing."""

    async def lock_tables(connection: Any) -> None:
        async with connection.transaction():
            await connection.execute("LOCK TABLE ql3.runs, ql3.security_audit_events IN ACCESS EXCLUSIVE MODE")
            held.set()
            await asyncio.to_thread(release.wait, 30)

    held, release = threading.Event(), threading.Event()
    holder = asyncio.create_task(asyncio.to_thread(bed.database.run, lock_tables))
    await asyncio.to_thread(held.wait, 20)
    try:
        began = time.monotonic()
        assert await gather(reason(ask(bed)), record(bed), newest(bed)) == [STORE, AUDIT, None]
        assert 0.9 < time.monotonic() - began < 4
    finally:
        release.set()
        await holder
    assert bed.store.stats.pool.broken == 0
    assert await all_three(bed) == [None, None, None]


async def test_rights_that_become_wrong_stop_everything_until_they_are_right(bed: PostgresBed) -> None:
    """A right taken away shows with the next refusal, one event tells of it, and mending it is enough."""
    bed.database.psql("REVOKE SELECT ON ql3.worker_credentials FROM ql3_secret_sidecar")
    await until(lambda: bed.store.health() == "failed")
    assert await newest(bed) is CREDENTIAL
    await asyncio.sleep(1.5)
    assert bed.wrong == [RightsFaultKind.RIGHT_MISSING]
    assert bed.faults == []
    bed.database.psql("GRANT SELECT ON ql3.worker_credentials TO ql3_secret_sidecar")
    await well_again(bed)


async def test_a_right_too_much_is_seen_by_the_next_session(bed: PostgresBed) -> None:
    """A right that nobody may have is found when a session is opened, and no request is served then."""
    bed.database.psql("GRANT UPDATE ON ql3.runs TO PUBLIC")
    bed.store._pool.drop_idle()
    assert await newest(bed) is CREDENTIAL
    assert await newest(bed) is CREDENTIAL
    assert bed.store.health() == "failed"
    assert bed.wrong == [RightsFaultKind.RIGHT_TOO_MUCH]
    bed.database.psql("REVOKE UPDATE ON ql3.runs FROM PUBLIC")
    await well_again(bed)


async def test_a_session_in_use_when_rights_became_wrong_is_not_used_again(bed: PostgresBed) -> None:
    """It was judged before; kept, it would hide for ever that the rights are right again."""
    world = bed.world
    async with bed.store.hold(world.principal(), world.command(), deadline(), slow_material=False):
        bed.database.psql("GRANT UPDATE ON ql3.runs TO PUBLIC")
        bed.store._pool.drop_idle()
        assert await newest(bed) is CREDENTIAL
    await bed.settled()
    assert bed.store.stats.pool.sessions == 0
    bed.database.psql("REVOKE UPDATE ON ql3.runs FROM PUBLIC")
    await well_again(bed)


@pytest.mark.parametrize(
    ("script", "kind", "mend"),
    [
        ("DROP SCHEMA ql3 CASCADE", StoreFaultKind.NOT_A_STORE, "authority init"),
        ("ALTER TABLE ql3.runs DROP COLUMN execution_owner", StoreFaultKind.NOT_A_STORE, "migrate"),
        (
            "REVOKE INSERT ON ql3.security_audit_events FROM ql3_secret_sidecar",
            StoreFaultKind.RIGHTS,
            "GRANT INSERT ON ql3.security_audit_events TO ql3_secret_sidecar;",
        ),
        (
            "GRANT DELETE ON ql3.runs TO ql3_secret_sidecar",
            StoreFaultKind.RIGHTS,
            "REVOKE DELETE ON ql3.runs FROM ql3_secret_sidecar;",
        ),
        ("DROP SCHEMA secret_sidecar CASCADE", StoreFaultKind.NOT_A_STORE, "init --receipts"),
    ],
    ids=["no schema", "no column", "no right", "a right too much", "no receipts"],
)
async def test_the_first_answer_decides(database: Database, script: str, kind: StoreFaultKind, mend: str) -> None:
    """A schema or role that is not the contract's is told at the first look, with the statement that mends it."""
    bed = PostgresBed(database)
    database.psql(script)
    with pytest.raises(StoreFault) as caught:
        await bed.store.open()
    assert caught.value.kind is kind
    assert mend in caught.value.mend
    assert bed.wrong == []
    bed.store.close()


async def test_the_first_answer_decides_also_when_it_comes_late(database: Database) -> None:
    """A server that is not there at the start is waited for; when it comes and is wrong, that is told once."""
    database.psql("REVOKE SELECT ON ql3.runs FROM ql3_secret_sidecar")
    with TcpProxy(database.server.port) as proxy:
        proxy.refuses = True
        bed = PostgresBed(database, login(database, port=proxy.port))
        await bed.store.open()
        assert bed.store.health() == "failed"
        assert await newest(bed) is CREDENTIAL
        proxy.refuses = False
        await until(lambda: bool(bed.faults))
        await asyncio.sleep(1)
        assert [fault.kind for fault in bed.faults] == [StoreFaultKind.RIGHTS]
        assert await newest(bed) is CREDENTIAL
        bed.store.close()


async def test_a_rotated_login(database: Database, tmp_path: Path) -> None:
    """The password file is read for each new session, once more after a refusal; nothing is started again."""
    file = tmp_path / "password"
    write_private(file, ROLE_PASSWORD)
    where = replace(login(database), password=Password(None, str(file)))
    async with served(database, where) as bed:
        database.psql("ALTER ROLE ql3_secret_sidecar PASSWORD 'another-pw-7Yh'")
        try:
            assert await newest(bed) is None  # on a session that was open
            bed.store._pool.drop_idle()
            assert await newest(bed) is CREDENTIAL
            write_private(file, "another-pw-7Yh\n")
            await well_again(bed)
        finally:
            database.psql(f"ALTER ROLE ql3_secret_sidecar PASSWORD '{ROLE_PASSWORD}'")


async def test_a_password_read_too_early_is_read_again(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login that changes between our look at the file and the server's is tried once more, and not a third time."""
    reads: list[str] = []

    def read(_self: Password) -> str:
        reads.append("read")
        return "wrong" if len(reads) == 1 or database.name in reads else ROLE_PASSWORD

    monkeypatch.setattr(Password, "read", read)
    async with served(database) as bed:
        assert await newest(bed) is None
        assert len(reads) == 2
        reads.append(database.name)
        bed.store._pool.drop_idle()
        before = len(reads)
        assert await newest(bed) is CREDENTIAL
        assert len(reads) >= before + 2
        reads.remove(database.name)
        await well_again(bed)


async def test_a_closed_store_refuses(database: Database) -> None:
    """A request that comes after the store was closed gets an answer of the contract."""
    async with served(database) as bed:
        bed.store.close()
        assert await all_three(bed) == [CREDENTIAL, AUDIT, STORE]
        assert bed.store.health() == "failed"


async def test_an_acknowledgement_that_is_lost_is_counted(bed: PostgresBed) -> None:
    """The row after the last byte is best effort: what cannot be written is counted, and nothing is raised."""
    _, permit = await ask(bed, receipts=RECEIPTS)
    bed.store.close()
    await bed.store.acknowledge(permit, RECEIPTS)
    assert bed.store.stats.lost_acknowledgements == 2


async def test_receipts_that_cannot_be_written_permit_no_byte(bed: PostgresBed) -> None:
    """No row, no byte: the table refuses, so there is no COMMIT."""
    bed.database.psql("ALTER TABLE secret_sidecar.receipts ADD CHECK (mark <> repeat('1', 64))")
    assert await reason(ask(bed, receipts=RECEIPTS)) is STORE
    assert await bed.rows("receipts") == []


async def test_sixty_four_at_once(bed: PostgresBed) -> None:
    """Sixty-four deliveries of one attempt, and of sixty-four attempts, all end; none is refused but for waiting."""
    world = bed.world
    assert await gather(*(reason(ask(bed)) for _ in range(64))) == [None] * 64

    async def other(number: int) -> Reason | None:
        command = world.command(attemptId=f"attempt-{number}")
        async with bed.store.hold(world.principal(), command, deadline(), slow_material=number % 2 == 0) as hold:
            return await reason(_verified(world, hold))

    assert await gather(*(other(number) for number in range(64))) == [Reason.AUTHORITY_MISMATCH] * 64
    assert bed.store.stats.pool.opened <= 4


async def _verified(world: PostgresWorld, hold: Hold) -> None:
    verify(world.principal(), world.session_id, world.command(), hold)
