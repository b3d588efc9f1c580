"""A PostgreSQL database as the control plane writes it: one short transaction a command, and only in our own schema.

Writing commands take turns (one advisory lock for all of them), so each sees what the one before did, as on SQLite;
requests do not take that lock and wait only for the lock of their attempt.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import lru_cache
from types import TracebackType
from typing import Any, Final, Self

import asyncpg

from sidecar.postgres_config import Postgres
from sidecar.stores.control_db import Row, Value
from sidecar.stores.faults import StoreFault, StoreFaultKind
from sidecar.stores.postgres_connect import connect
from sidecar.stores.postgres_schema import AUDIT_TABLE, MARKER_TABLE, SCHEMA, VERSION

_NOW_MS: Final = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('ql3-attempt-authority:' || $1, 0))"
_TURN: Final = "SELECT pg_advisory_xact_lock(hashtextextended('secret-sidecar-control-plane', 0))"
# The whole search path is ours: pg_temp last, so that no temporary table takes a name's place.
_SETTINGS: Final = (
    f"SET LOCAL search_path = {SCHEMA}, pg_temp; SET LOCAL lock_timeout = '5s'; SET LOCAL statement_timeout = '30s';"
    " SET LOCAL idle_in_transaction_session_timeout = '60s'"
)
_WRITE: Final = f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {_SETTINGS}"
_READ: Final = f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {_SETTINGS}"
_OLD: Final = (
    f"DELETE FROM {AUDIT_TABLE} WHERE event_id IN"  # noqa: S608 - of constants
    f" (SELECT event_id FROM {AUDIT_TABLE} WHERE occurred_at_ms < $1 ORDER BY occurred_at_ms LIMIT $2)"
)
_CLOSE_S: Final = 5.0
BATCH_ROWS: Final = 1000
"""Audit rows deleted in one transaction."""


class PostgresTx:
    """An open transaction of the database; see the protocol `control_db.Tx`."""

    def __init__(self, connection: Any) -> None:
        """Made by `PostgresControl.transaction`."""
        self._connection = connection

    async def now_ms(self) -> int:
        """Return the server's clock in ms."""
        return int(await self._connection.fetchval(_NOW_MS))

    async def lock(self, attempt_id: str) -> None:
        """Wait for the attempt's lock, at most 5 s."""
        await self._connection.execute(_LOCK, attempt_id)

    async def fetch(self, statement: str, *values: Value) -> list[Row]:
        """Run a statement that returns rows."""
        return [tuple(row) for row in await self._connection.fetch(numbered(statement), *values)]

    async def execute(self, statement: str, *values: Value) -> int:
        """Run a statement that changes rows and return their number, which ends the server's word of it."""
        return int((await self._connection.execute(numbered(statement), *values)).rpartition(" ")[2])


class PostgresControl:
    """A connection for commands, to be used as an async context manager. Every method raises StoreFault."""

    def __init__(self, postgres: Postgres) -> None:
        """Remember where the database is; nothing is connected yet."""
        self._postgres = postgres
        self.connection: Any = None
        """The driver's connection, for those who make and migrate schemas."""

    async def __aenter__(self) -> Self:
        self.connection = await connect(self._postgres)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
            await self.connection.close(timeout=_CLOSE_S)

    @asynccontextmanager
    async def transaction(self, *, write: bool = True) -> AsyncIterator[PostgresTx]:
        """Open a transaction; writing, it waits for its turn first. See the protocol `control_db.ControlDb`."""
        async with self.turn(write=write):
            if write:
                await self.require_ours()
            yield PostgresTx(self.connection)

    @asynccontextmanager
    async def turn(self, *, write: bool = True) -> AsyncIterator[None]:
        """Open a transaction whatever the schema is. Leaving commits, leaving by an exception rolls back."""
        with store_fault():
            await self.connection.execute(_WRITE if write else _READ)
            try:
                if write:
                    await self.connection.execute(_TURN)
                yield
            except Exception:
                with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
                    await self.connection.execute("ROLLBACK")
                raise
            except BaseException:
                # Cancelled: what the connection is doing is not known, so it goes, and the server rolls back.
                self.connection.terminate()
                raise
            if await self.connection.execute("COMMIT") != "COMMIT":
                raise StoreFault(StoreFaultKind.LOCKED, "PostgreSQL did not commit.", "Try again.")

    async def require_ours(self) -> None:
        """Raise StoreFault unless our migrations made the schema, up to the present version."""
        version = await self.version()
        if version is None:
            raise StoreFault(
                StoreFaultKind.FOREIGN,
                f"The schema {SCHEMA} of this database was not made by `secret-sidecar authority init`.",
                "Where QL3 keeps it, QL3 alone writes it; a database of ours is made with `authority init`.",
            )
        if version < VERSION:
            raise StoreFault(
                StoreFaultKind.OLDER, "The schema is of an older version.", "Run `secret-sidecar authority migrate`."
            )
        if version > VERSION:
            raise StoreFault(
                StoreFaultKind.NEWER, "The schema is of a newer version.", "Use the secret-sidecar that made it."
            )

    async def version(self) -> int | None:
        """Return the version that our migrations have brought the schema to, None where they did not make it."""
        marker = f"{SCHEMA}.{MARKER_TABLE}"
        if await self.connection.fetchval("SELECT to_regclass($1) IS NULL", marker):
            return None
        return int(await self.connection.fetchval(f"SELECT version FROM {marker}"))  # noqa: S608 - a constant

    async def prune_audit(self, older_than_ms: int) -> AsyncIterator[int]:
        """Delete audit rows older than `older_than_ms`, a transaction for each batch; yield how many each deleted."""
        before: int | None = None
        while True:
            async with self.transaction() as tx:
                before = await tx.now_ms() - older_than_ms if before is None else before
                deleted = await tx.execute(_OLD, before, BATCH_ROWS)
            if not deleted:
                return
            yield deleted


@lru_cache(maxsize=256)
def numbered(statement: str) -> str:
    """Return a portable statement with PostgreSQL's `$1`, `$2`, ... in place of each `?`."""
    first, *rest = statement.split("?")
    return first + "".join(f"${number}{part}" for number, part in enumerate(rest, start=1))


@contextmanager
def store_fault() -> Iterator[None]:
    """Tell what the server or the way to it refuses as a StoreFault, in words without a row."""
    try:
        yield
    except (asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError, asyncpg.DeadlockDetectedError):
        raise StoreFault(
            StoreFaultKind.LOCKED, "Another program holds a lock for too long.", "Try again when it is done."
        ) from None
    except asyncpg.InsufficientPrivilegeError:
        raise StoreFault(
            StoreFaultKind.RIGHTS,
            "This login has not the rights for it.",
            f"Use the owner of the schema {SCHEMA}; to make one, the owner of the database.",
        ) from None
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError, asyncpg.InvalidSchemaNameError):
        raise StoreFault(
            StoreFaultKind.NOT_A_STORE,
            f"The database has no schema {SCHEMA} with the tables of the contract.",
            "Name the right database, or make them with `secret-sidecar authority init`.",
        ) from None
    except asyncpg.ReadOnlySQLTransactionError:
        raise StoreFault(
            StoreFaultKind.LOCKED, "The server is in recovery or read-only.", "Name the primary, or wait for it."
        ) from None
    except (asyncpg.DiskFullError, asyncpg.OutOfMemoryError):
        raise StoreFault(StoreFaultKind.FULL, "The server has run out of room.", "Make room there.") from None
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
        raise StoreFault(
            StoreFaultKind.UNREACHABLE, "PostgreSQL failed in the middle of it.", "Nothing was changed; try again."
        ) from None
