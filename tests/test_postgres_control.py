"""The control plane over PostgreSQL: the suite of both stores, and what only that store has."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import asyncpg
import pytest
import pytest_asyncio

from sidecar.config import store_from_environment
from sidecar.postgres_config import Postgres, PostgresTls
from sidecar.stores import control, postgres_control
from sidecar.stores.control import Tx
from sidecar.stores.faults import StoreFault, StoreFaultKind
from sidecar.stores.postgres import PostgresStore
from sidecar.stores.postgres_connect import connect
from sidecar.stores.postgres_control import PostgresControl, numbered, store_fault
from tests.conformance.control_suite import HOUR, PEPPER, PLAN, ControlSuite, do, enrolled, with_session
from tests.kit.environments import GATE
from tests.kit.postgres import Database
from tests.kit.postgres_bed import login
from tests.kit.world import SECRET, facts


def owner(database: Database) -> Postgres:
    """Return the database as its owner reaches it."""
    store = store_from_environment(GATE | database.environment(), admin_url=database.admin_url)
    assert store.postgres is not None
    return store.postgres


class PostgresPlane:
    """An empty database, served by the role and written by the owner."""

    def __init__(self, database: Database) -> None:
        """Remember the database; nothing is connected yet."""
        self.database = database
        self.store = PostgresStore(login(database), receipts=False, on_fault=print, on_wrong=print)
        self.control = PostgresControl(owner(database))

    def transaction(self, *, write: bool = True) -> AbstractAsyncContextManager[Tx]:
        """Open a transaction."""
        return self.control.transaction(write=write)

    async def change(self, table: str, **columns: object) -> None:
        """Change columns of every row."""
        names = ", ".join(f"{name} = ?" for name in columns)
        await asyncio.to_thread(self.database.execute, f"UPDATE {table} SET {names}", tuple(columns.values()))

    async def dump(self) -> object:
        """Return every row of the six tables."""
        return {
            table: await asyncio.to_thread(self.database.execute, f"SELECT * FROM {table} AS t ORDER BY t::text")
            for table in facts(0, ())
        }


@pytest_asyncio.fixture
async def plane(database: Database) -> AsyncIterator[PostgresPlane]:
    """An empty store."""
    made = PostgresPlane(database)
    await made.store.open()
    async with made.control:
        yield made
    made.store.close()


class TestConformance(ControlSuite):
    """The suite over PostgreSQL."""


async def test_commands_take_turns(plane: PostgresPlane, database: Database) -> None:
    """Two commands at once are one after the other: each of many enrolments gets a version of its own."""

    async def one() -> int:
        async with PostgresControl(owner(database)) as own, own.transaction() as tx:
            return (await control.enroll(tx, "worker", "credential", PEPPER.digest("credential", SECRET), HOUR)).number

    assert sorted(await asyncio.gather(*(one() for _ in range(8)))) == list(range(1, 9))


async def test_a_long_turn_of_another_is_named_as_such(
    plane: PostgresPlane, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command whose turn does not come says so and changes nothing; reading waits for nobody."""
    monkeypatch.setattr(postgres_control, "_WRITE", postgres_control._WRITE.replace("'5s'", "'100ms'"))
    async with PostgresControl(owner(database)) as other, other.transaction():
        with pytest.raises(StoreFault) as caught:
            await enrolled(plane)
        assert caught.value.kind is StoreFaultKind.LOCKED
        async with plane.transaction(write=False) as tx:
            assert (await control.show(tx, None))["workers"] == []
    await enrolled(plane)


async def test_reading_may_not_write(plane: PostgresPlane) -> None:
    """The transaction of a command that only reads is read-only."""
    with pytest.raises(StoreFault):
        async with plane.transaction(write=False) as tx:
            await tx.execute("UPDATE runs SET status = ?", "x")


async def test_a_cancelled_step_leaves_nothing(plane: PostgresPlane, database: Database) -> None:
    """A step that is cancelled half way leaves nothing and no lock."""
    await with_session(plane)
    before = await plane.dump()
    began = asyncio.Event()

    async def step() -> None:
        async with PostgresControl(owner(database)) as own, own.transaction() as tx:
            await control.dispatch(tx, "worker", PLAN, HOUR)
            began.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(step())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await plane.dump() == before
    await do(plane, lambda tx: control.dispatch(tx, "worker", PLAN, HOUR))


async def test_a_table_on_the_way_takes_nobodys_place(plane: PostgresPlane, database: Database) -> None:
    """Tables of the same name in `public`, or first on the owner's own search path, are not what is written."""
    database.psql(
        "CREATE TABLE public.worker_credentials AS SELECT * FROM ql3.worker_credentials;"
        " GRANT ALL ON public.worker_credentials TO PUBLIC;"
        f" ALTER DATABASE {database.name} SET search_path = public, ql3"
    )
    async with PostgresControl(owner(database)) as fresh, fresh.transaction() as tx:
        await control.enroll(tx, "worker", "credential", "0" * 64, HOUR)
    assert database.psql("SELECT count(*) FROM public.worker_credentials") == "0"
    assert database.psql("SELECT count(*) FROM ql3.worker_credentials") == "1"


async def test_settings_of_the_database_decide_nothing(plane: PostgresPlane, database: Database) -> None:
    """Neither another isolation level nor read-only by default, set on the database, changes what a command does."""
    database.psql(
        f"ALTER DATABASE {database.name} SET default_transaction_isolation = 'serializable';"
        f" ALTER DATABASE {database.name} SET default_transaction_read_only = on"
    )
    async with PostgresControl(owner(database)) as fresh, fresh.transaction() as tx:
        assert await tx.fetch("SELECT current_setting('transaction_isolation')") == [("read committed",)]
        await control.enroll(tx, "worker", "credential", "0" * 64, HOUR)


async def test_a_lost_connection_is_told(plane: PostgresPlane, database: Database) -> None:
    """A session that the server ends in the middle of a step is a fault at run time, and nothing was changed."""
    before = await plane.dump()
    with pytest.raises(StoreFault) as caught:
        async with plane.transaction() as tx:
            await control.enroll(tx, "worker", "credential", "0" * 64, HOUR)
            (pid,) = (await tx.fetch("SELECT pg_backend_pid()"))[0]
            database.psql(f"SELECT pg_terminate_backend({pid})")
            await control.open_session(tx, "worker", HOUR)
    assert caught.value.kind is StoreFaultKind.UNREACHABLE
    assert await plane.dump() == before


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (asyncpg.DeadlockDetectedError, StoreFaultKind.LOCKED),
        (asyncpg.QueryCanceledError, StoreFaultKind.LOCKED),
        (asyncpg.ReadOnlySQLTransactionError, StoreFaultKind.LOCKED),
        (asyncpg.DiskFullError, StoreFaultKind.FULL),
        (asyncpg.InsufficientPrivilegeError, StoreFaultKind.RIGHTS),
        (asyncpg.UndefinedTableError, StoreFaultKind.NOT_A_STORE),
        (asyncpg.UniqueViolationError, StoreFaultKind.UNREACHABLE),
        (asyncpg.InterfaceError, StoreFaultKind.UNREACHABLE),
        (ConnectionResetError, StoreFaultKind.UNREACHABLE),
        (TimeoutError, StoreFaultKind.UNREACHABLE),
    ],
)
def test_what_the_server_refuses_is_told_in_our_words(error: type[Exception], kind: StoreFaultKind) -> None:
    """Each error of driver or way becomes a fault of a closed set; its own text, which may hold a row, goes."""
    with pytest.raises(StoreFault) as caught, store_fault():
        raise error("Key (secret_digest)=(c0ffee)")
    assert caught.value.kind is kind
    assert caught.value.__suppress_context__
    assert "c0ffee" not in caught.value.wrong + caught.value.mend


async def test_a_server_without_tls_is_not_talked_to(database: Database) -> None:
    """Where TLS is not disabled, a server that has none gets no login: there is no way back to plain text."""
    verifying = replace(owner(database), tls=PostgresTls("db.example.test", None))
    with pytest.raises(StoreFault) as caught:
        await connect(verifying)
    assert caught.value.kind is StoreFaultKind.UNREACHABLE


def test_values_are_numbered() -> None:
    """Each `?` becomes the next `$n`."""
    assert numbered("SELECT 1") == "SELECT 1"
    assert numbered("a = ? AND b IN (?, ?)") == "a = $1 AND b IN ($2, $3)"
