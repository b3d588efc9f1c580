"""The statements of a delivery on one driver, measured; a process of `bench.drivers`, with few imports of its own.

Told what to do as JSON on stdin (`Told`); writes what a delivery cost.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sidecar.ids import uuid4
from sidecar.postgres_config import Password, Postgres
from sidecar.stores.postgres_session import connect
from sidecar.stores.postgres_sql import AUDIT, BEGIN_READING, LOCK, NEWEST, READ, SEPARATOR

PATIENCE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Told:
    """What to measure. The attempt is read under the lock of another one for each session."""

    driver: str
    port: int
    database: str
    user: str
    password: str
    attempt_id: str
    credential_id: str
    sessions: int
    deliveries: int

    def login(self) -> Postgres:
        """Return the login as the store has it."""
        return Postgres(
            "127.0.0.1", self.port, self.database, self.user, Password(self.password, None), None, "bench", 16, 5000
        )


Deliver = Callable[[str], Awaitable[object]]
"""Send what a delivery sends, under the lock of this attempt; all read the same one."""


def audit_row(credential_id: str) -> str:
    """Return the values of one audit row."""
    subject = ("worker", "worker-1", f"worker_credential:{credential_id}:1")
    return SEPARATOR.join((uuid4(), "request", "allowed", *subject, '["worker_credential"]'))


async def plain(told: Told) -> Deliver:
    """Asyncpg's own methods, its cache of statements, five round trips: BEGIN and lock travel by themselves."""
    import asyncpg

    connection = await asyncpg.connect(
        host="127.0.0.1", port=told.port, database=told.database, user=told.user, password=told.password
    )

    async def deliver(attempt: str) -> object:
        await connection.fetch(NEWEST, told.credential_id, timeout=6)
        await connection.fetch(AUDIT, audit_row(told.credential_id), timeout=6)
        key = f"convert_from(decode('{attempt.encode().hex()}', 'hex'), 'UTF8')"
        await connection.execute(f"{BEGIN_READING}; {LOCK.replace('$1::text', key)}", timeout=6)
        rows = await connection.fetch(READ, told.attempt_id, told.credential_id, timeout=6)
        await connection.execute("COMMIT", timeout=6)
        return rows

    return deliver


async def ours(told: Told) -> Deliver:
    """The session of the store, without pool and places: four round trips."""
    loop = asyncio.get_running_loop()
    session = await connect(told.login(), None, loop.time() + PATIENCE_S)

    async def deliver(attempt: str) -> object:
        await session.fetch(NEWEST, loop.time() + 6, told.credential_id)
        await session.fetch(AUDIT, loop.time() + 6, audit_row(told.credential_id))
        rows = await session.begin(attempt, loop.time() + 6, told.attempt_id, told.credential_id, write=False)
        await session.tell("COMMIT", loop.time() + 6)
        return rows

    return deliver


async def psycopg(told: Told) -> Deliver:
    """Psycopg 3 with its C module, prepared statements and pipeline mode: four round trips."""
    from psycopg import AsyncConnection, AsyncRawCursor

    connection = await AsyncConnection.connect(
        host="127.0.0.1", port=told.port, dbname=told.database, user=told.user, password=told.password,
        autocommit=True, prepare_threshold=0, cursor_factory=AsyncRawCursor,
    )  # fmt: skip

    async def run(statement: str, values: Sequence[object]) -> Any:
        cursor = connection.cursor(binary=True)
        return await cursor.execute(statement.encode(), values)

    async def deliver(attempt: str) -> object:
        async with asyncio.timeout(6):
            await (await run(NEWEST, (told.credential_id,))).fetchall()
        async with asyncio.timeout(6):
            await run(AUDIT, (audit_row(told.credential_id),))
        async with asyncio.timeout(6):
            async with connection.pipeline():
                await run(BEGIN_READING, ())
                await run(LOCK, (attempt,))
                read = await run(READ, (told.attempt_id, told.credential_id))
            rows = await read.fetchall()
        async with asyncio.timeout(6):
            await connection.execute(b"COMMIT")
        return rows

    return deliver


DRIVERS: Final[dict[str, Callable[[Told], Awaitable[Deliver]]]] = {"asyncpg": plain, "ours": ours, "psycopg": psycopg}


async def carried_out(told: Told) -> dict[str, float]:
    """Send so many deliveries on so many sessions; return what one cost, in microseconds."""
    sessions = told.sessions
    deliver = [await DRIVERS[told.driver](told) for _ in range(sessions)]

    async def some(number: int, count: int) -> None:
        for _ in range(count):
            rows: Any = await deliver[number](f"attempt-{number}")
            assert len(rows) == 1 and rows[0][2] == told.attempt_id

    await asyncio.gather(*(some(number, 10) for number in range(sessions)))  # everything is prepared
    cpu, began = time.process_time(), time.perf_counter()
    await asyncio.gather(*(some(number, told.deliveries // sessions) for number in range(sessions)))
    cpu, took = time.process_time() - cpu, time.perf_counter() - began
    done = told.deliveries // sessions * sessions
    return {"cpu_us": cpu / done * 1e6, "wall_us": took / done * 1e6}


if __name__ == "__main__":
    json.dump(asyncio.run(carried_out(Told(**json.load(sys.stdin)))), sys.stdout)
