"""One authority transaction of the PostgreSQL store: places, BEGIN with lock and read, COMMIT (contract 6)."""

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from provider.authority import Authority, Permit, Tenure
from provider.outcomes import Reason, Refused
from provider.receipts import Receipt
from provider.snapshot import Attempt, Credential, Lease, Revision, Run, Session, Snapshot
from sidecar.stores import postgres_session
from sidecar.stores.places import Places, Taken
from sidecar.stores.postgres_pool import Pool
from sidecar.stores.postgres_session import Unusable
from sidecar.stores.postgres_sql import RELEASE

_as: Final = tuple.__new__  # a named tuple's own constructor is a function in Python
CALL_S: Final = 6.0
"""Having a session, and each statement on it: a little more than the server's own limit of 5 s."""


@dataclass(frozen=True, slots=True)
class Means:
    """What every hold of a store works with."""

    pool: Pool
    places: Places
    receipts: bool
    """Whether transactions may write."""


class PostgresHold:
    """The attempt's lock, as an async context manager.

    Entering raises `Refused(AUTHORITY_STORE)`, or `Refused(DEADLINE)` when the request's deadline comes first. Leaving
    without `commit`, in whatever way, closes the tenure at once; the transaction is rolled back behind the caller's
    back, and its session and places are free after that.
    """

    __slots__ = ("_asked", "_deadline", "_means", "_session", "_slow", "_taken", "snapshot", "tenure")

    def __init__(self, means: Means, attempt_id: str, credential_id: str, deadline: float, *, slow: bool) -> None:
        """Prepare; nothing is taken before entering. `slow`: the material will suspend (contract 6, material place)."""
        self._means = means
        self._asked = (attempt_id, credential_id)
        self._deadline = deadline
        self._slow = slow
        self._taken: Taken | None = None
        self._session: postgres_session.Session | None = None
        self.tenure = Tenure()
        self.snapshot: Snapshot

    async def __aenter__(self) -> Self:
        means = self._means
        try:
            self._taken = await means.places.take(self._asked[0], self._deadline, slow_material=self._slow)
            self._session = await means.pool.take(self._until())
            self.snapshot = await self._begin(self._session)
        except Unusable:
            self._end()
            raise Refused(self._why()) from None
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    async def commit(self, authority: Authority, receipts: tuple[Receipt, ...]) -> None:
        """Insert the receipts `released` and COMMIT.

        Raises `Refused(AUTHORITY_STORE)`, or `Refused(DEADLINE)`, unless the server confirmed it in time.
        """
        session = self._session
        if not self.tenure.open or session is None:
            raise Refused(Reason.AUTHORITY_STORE)
        tag = ""
        try:
            if receipts:
                await session.fetch(RELEASE, self._until(), *receipt_rows(authority, receipts))
            tag = await session.tell("COMMIT", self._until())
        except Unusable:
            raise Refused(self._why()) from None
        finally:
            self.tenure.open = False
        # A transaction that has failed is ended by COMMIT, too, with another tag.
        if tag != "COMMIT":
            raise Refused(Reason.AUTHORITY_STORE)

    async def _begin(self, session: postgres_session.Session) -> Snapshot:
        # The clock is read before the lock is waited for: what time that takes counts as elapsed, never the reverse.
        read_at = asyncio.get_running_loop().time()
        attempt_id, credential_id = self._asked
        write = self._means.receipts
        rows = await session.begin(attempt_id, self._until(), attempt_id, credential_id, write=write)
        # The locks of a server in recovery are not the primary's, and its rows are older.
        if not rows or rows[0][1]:
            raise Refused(Reason.AUTHORITY_STORE)
        row = rows[0]
        return Snapshot(
            now_ms=row[0],
            read_at=read_at,
            attempt=None if row[2] is None else _as(Attempt, row[3:13]),
            run=None if row[13] is None else _as(Run, row[14:20]),
            lease=None if row[20] is None else _as(Lease, row[21:31]),
            session=None if row[31] is None else _as(Session, row[32:36]),
            revision=None if row[36] is None else _as(Revision, row[37:42]),
            credential=None if row[42] is None else _as(Credential, row[43:48]),
            second_row=len(rows) > 1,
        )

    def _why(self) -> Reason:
        late = asyncio.get_running_loop().time() >= self._deadline
        return Reason.DEADLINE if late else Reason.AUTHORITY_STORE

    def _until(self) -> float:
        return min(self._deadline, asyncio.get_running_loop().time() + CALL_S)

    def _end(self) -> None:
        self.tenure.open = False
        session, taken = self._session, self._taken
        self._session = self._taken = None
        pool, give_back = self._means.pool, taken.give_back if taken is not None else _nothing
        if session is not None and session.in_transaction:
            # The places are held until the lock is free: nobody of this process is to wait for it in the database.
            pool.roll_back(session, give_back)
            return
        if session is not None:
            pool.give_back(session)
        give_back()


def _nothing() -> None:
    """Give back no place."""


def receipt_rows(whose: Authority | Permit, receipts: tuple[Receipt, ...]) -> tuple[object, ...]:
    """Return the values of RELEASE, which an authority makes, or of ACKNOWLEDGE, for which there is a permit."""
    row = 0 if isinstance(whose, Authority) else 1
    return (
        whose.attempt_id,
        whose.worker_id,
        whose.credential_id,
        whose.credential_version,
        [receipt.ids[row] for receipt in receipts],
        [receipt.file_name for receipt in receipts],
        [receipt.mark for receipt in receipts],
    )
