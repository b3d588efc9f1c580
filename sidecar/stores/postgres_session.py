"""One session of the PostgreSQL store: every await has an end, and one whose state is unknown is never used again.

Asyncpg is the driver. Of what it can do by itself only the protocol is used: no pool, no transaction objects, no
time limits (they would ask a server that does not answer to cancel), no cache of statements (its life is limited).
"""

import asyncio
import ssl
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

import asyncpg

from sidecar.postgres_config import Postgres
from sidecar.secret_file import SecretFileFault
from sidecar.stores import postgres_rights
from sidecar.stores.alarm import NEVER, Alarm
from sidecar.stores.postgres_rights import RightsFault, RightsFaultKind
from sidecar.stores.postgres_sql import (
    ACKNOWLEDGE,
    AUDIT,
    BEGIN_READING,
    BEGIN_WRITING,
    DURABLE,
    LOCK,
    NAMES,
    NEWEST,
    READ,
    RELEASE,
)
from sidecar.stores.postgres_wire import read_little, run

_SETTINGS: Final = {
    # What a client says at the start of a session stands above what server, database and role have set.
    "statement_timeout": "5000",
    "lock_timeout": "1000",
    "idle_in_transaction_session_timeout": "10000",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    "search_path": "pg_catalog",
    # What is prepared is planned once: for a list, the server would otherwise plan for the length of each.
    "plan_cache_mode": "force_generic_plan",
}
_GAVE_UP: Final = (asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError)
_LOGIN: Final = asyncpg.InvalidAuthorizationSpecificationError
_LACKING: Final = (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError, asyncpg.InvalidSchemaNameError)
_LACKS: Final = RightsFault(
    RightsFaultKind.TABLE_MISSING,
    "A table lacks a column of the contract, or is itself missing.",
    "Name the database of QL3, or bring the schema up to date with `secret-sidecar authority migrate`.",
)


class Unusable(Exception):
    """The server gave no usable answer in time. It says nothing more, since an error's text may hold a row."""


class WrongRights(Unusable):
    """The server answers, but its schema or the role's rights are not those of the contract."""

    def __init__(self, faults: tuple[RightsFault, ...]) -> None:
        """Raise for these faults, at least one."""
        super().__init__()
        self.faults = faults


class _Bound:
    """What holds for every call of a session: it ends in time, and any end but a good one ends the session.

    Raises Unusable in place of whatever the driver makes of a server that lies: it is no answer.
    """

    __slots__ = ("_alarm", "_session")

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._alarm = Alarm(lambda _at: session.close())

    def by(self, until: float) -> Self:
        """Say when, on the loop's clock, the session is closed if the block has not ended."""
        self._alarm.set(until)
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._alarm.until = NEVER
        if kind is None:
            return
        if not issubclass(kind, _GAVE_UP):  # there the server gave up waiting, and says so: it is as good as before
            self._session.close()
        if issubclass(kind, Exception):
            raise Unusable from None


class Session:
    """A connection and what is prepared on it. Used by one request at a time.

    Any end of a call but a good one closes the session, except where the server itself gave up waiting.
    """

    __slots__ = ("_bound", "_connection", "_statements")

    def __init__(self, connection: Any) -> None:
        """Take a new connection of asyncpg."""
        self._connection = connection
        self._statements: dict[str, Any] = {}
        self._bound = _Bound(self)

    @property
    def closed(self) -> bool:
        """Whether the session is over, by either side."""
        return bool(self._connection.is_closed())

    @property
    def in_transaction(self) -> bool:
        """Whether the server said, with its last answer, that a transaction is open or has failed."""
        return not self.closed and bool(self._connection.is_in_transaction())

    def close(self) -> None:
        """End the session at once, without a word to the server. Idempotent."""
        self._connection.terminate()

    async def judge(self, until: float, *, receipts: bool, columns: bool) -> None:
        """Judge schema and rights; `columns`: also whether every column is there, which waits for locks on any table.

        Raises WrongRights, and Unusable when it takes until `until` on the loop's clock.
        """
        with self._bound.by(until):
            faults = await self._judge(receipts=receipts, columns=columns)
        if faults:
            self.close()
            raise WrongRights(faults)

    async def _judge(self, *, receipts: bool, columns: bool) -> tuple[RightsFault, ...]:
        await self._connection.execute(DURABLE)
        faults = await postgres_rights.judge(self._connection, receipts=receipts)
        if faults or not columns:
            return faults
        try:
            for statement in (NEWEST, AUDIT, READ, *((RELEASE, ACKNOWLEDGE) if receipts else ())):
                await self._prepare(statement)
        except _LACKING:
            return (_LACKS,)
        return ()

    async def fetch(self, statement: str, until: float, *values: object) -> Sequence[Sequence[Any]]:
        """Run a statement, prepared when this session first sees it, and return its rows. Raises Unusable."""
        with self._bound.by(until):
            prepared = self._statements.get(statement) or await self._prepare(statement)
            rows: Sequence[Sequence[Any]] = await prepared.fetch(*values)
        return rows

    async def begin(self, attempt_id: str, until: float, *values: object, write: bool) -> Sequence[Sequence[Any]]:
        """Open a transaction, take the attempt's lock, then run READ, and return its rows. Raises Unusable.

        Three statements in one round trip: READ is no part of the one that waits, so it sees what was committed before
        the lock was had; and where the lock was not had it is not run.
        """
        opening = BEGIN_WRITING if write else BEGIN_READING
        with self._bound.by(until):
            for statement in (opening, LOCK, READ):
                if statement not in self._statements:
                    await self._prepare(statement)
            # The driver's own next message follows at once: nothing is awaited between them.
            self._connection._transport.write(run(opening) + run(LOCK, attempt_id))
            rows: Sequence[Sequence[Any]] = await self._statements[READ].fetch(*values)
        return rows

    async def tell(self, statement: str, until: float) -> str:
        """Run a statement without values, not prepared; return its tag. Raises Unusable."""
        with self._bound.by(until):
            tag = await self._connection.execute(statement)
        return str(tag)

    async def _prepare(self, statement: str) -> Any:
        # Without a name of ours, and without its cache, the driver would have it parsed again each time.
        prepared = await self._connection.prepare(statement, name=NAMES[statement])
        # The driver sends no Sync after that, and what BEGIN opens is not to be the transaction that prepared it.
        await self._connection.execute("SELECT")
        self._statements[statement] = prepared
        return prepared


async def connect(postgres: Postgres, tls: ssl.SSLContext | None, until: float) -> Session:
    """Open a connection, its password file read just now; after a refused login once more, the file read again.

    `tls` None: without TLS; otherwise there is no connection without it. Raises Unusable, at `until` on the loop's
    clock at the latest.
    """
    for attempt in (1, 2):
        try:
            connection = await asyncpg.connect(
                host=postgres.host,
                port=postgres.port,
                database=postgres.database,
                user=postgres.user,
                password=postgres.password.read(),
                ssl="disable" if tls is None else tls,
                timeout=max(0.001, until - asyncio.get_running_loop().time()),
                server_settings={"application_name": postgres.application_name, **_SETTINGS},
                statement_cache_size=0,
                # Named only so that no PG* variable is looked at.
                target_session_attrs="any",
                direct_tls=False,
            )
        except _LOGIN:
            # The login may have been rotated between our look at the file and the server's.
            if attempt == 1:
                continue
            raise Unusable from None
        except SecretFileFault:
            raise Unusable from None
        except Exception:  # noqa: BLE001 - no connection, whatever the driver calls it
            raise Unusable from None
        read_little(connection)
        return Session(connection)
    raise Unusable
