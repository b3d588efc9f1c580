"""A PostgreSQL store under test: a database with a valid world, served by the role, and an outside hand."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from sidecar.postgres_config import Password
from sidecar.postgres_config import Postgres as Login
from sidecar.stores.faults import StoreFault
from sidecar.stores.postgres import PostgresStore
from sidecar.stores.postgres_rights import RightsFaultKind
from sidecar.stores.postgres_schema import ROLE
from tests.kit.postgres import ROLE_PASSWORD, Database, PostgresWorld
from tests.kit.world import facts


def login(database: Database, *, connections: int = 4, port: int | None = None) -> Login:
    """Return what serve would read of its variables for this database."""
    return Login(
        host="127.0.0.1",
        port=port or database.server.port,
        database=database.name,
        user=ROLE,
        password=Password(ROLE_PASSWORD, None),
        tls=None,
        application_name="tests",
        max_connections=connections,
        connection_timeout_ms=5000,
    )


class PostgresBed:
    """A database with a valid world, served by the role; the outside hand is the superuser's connection."""

    untyped = False

    def __init__(self, database: Database, where: Login | None = None, *, receipts: bool = True) -> None:
        """Write the world in place of what the database holds; nothing is open yet."""
        self.database = database
        tables = ", ".join([*facts(0, ()), "security_audit_events", "secret_sidecar.receipts"])
        database.execute(f"TRUNCATE {tables}")
        self.world: PostgresWorld = database.build_world()
        self.faults: list[StoreFault] = []
        self.wrong: list[RightsFaultKind] = []
        self.store = PostgresStore(
            where or login(database), receipts=receipts, on_fault=self.faults.append, on_wrong=self.wrong.append
        )

    async def execute(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        """Run a statement as the superuser, while the loop goes on."""
        return await asyncio.to_thread(self.database.execute, statement, values)

    async def change(self, table: str, **columns: object) -> None:
        """Change columns of every row."""
        names = ", ".join(f"{name} = ?" for name in columns)
        await self.execute(f"UPDATE {table} SET {names}", *columns.values())

    async def insert(self, table: str, **row: object) -> None:
        """Insert a row."""
        marks = ", ".join("?" * len(row))
        await self.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", *row.values())

    async def delete(self, table: str) -> None:
        """Delete every row."""
        await self.execute(f"DELETE FROM {table}")

    async def rows(self, table: str) -> list[dict[str, object]]:
        """Return every row, oldest first: rows here are never changed after they are written."""
        name = "secret_sidecar.receipts" if table == "receipts" else table
        columns = await self.execute(
            "SELECT attname::text FROM pg_attribute WHERE attrelid = ?::text::regclass AND attnum > 0 ORDER BY attnum",
            name,
        )
        names = [str(column[0]) for column in columns]
        found = await self.execute(f"SELECT {', '.join(names)} FROM {name} ORDER BY xmin::text::bigint, ctid")
        return [dict(zip(names, row, strict=True)) for row in found]

    def free(self) -> bool:
        """Whether no request holds a session or waits for anything."""
        return self.store._pool.stats.used == 0 and len(self.store._means.places) == 0

    async def settled(self) -> None:
        """Wait until everything was given back."""
        await until(self.free)

    async def locks(self) -> int:
        """Return how many advisory locks anybody holds or waits for in this database."""
        rows = await self.execute(
            "SELECT 1 FROM pg_locks JOIN pg_database AS d ON d.oid = database"
            " WHERE locktype = 'advisory' AND d.datname = current_database()"
        )
        return len(rows)


async def open_every_session(store: PostgresStore) -> None:
    """Have the pool open as many sessions as it may."""
    deadline = asyncio.get_running_loop().time() + 20
    sessions = [await store._pool.take(deadline) for _ in range(store._postgres.max_connections)]
    for session in sessions:
        store._pool.give_back(session)


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until a function returns true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def served(
    database: Database, where: Login | None = None, *, receipts: bool = True
) -> AsyncIterator[PostgresBed]:
    """Serve a valid world; at the end nothing is held any more, in this process and in the server."""
    bed = PostgresBed(database, where, receipts=receipts)
    await bed.store.open()
    try:
        yield bed
        await bed.settled()
        assert await bed.locks() == 0
    finally:
        bed.store.close()
