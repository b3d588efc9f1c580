"""One authority transaction of the embedded store: places, BEGIN IMMEDIATE, one read, COMMIT (contract 6)."""

import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from provider.authority import Authority, Permit, Tenure
from provider.outcomes import Reason, Refused
from provider.receipts import Receipt
from provider.snapshot import Attempt, Credential, Lease, Revision, Run, Session, Snapshot
from sidecar.stores.places import Places, Taken
from sidecar.stores.sqlite_lock import WriteLock, roll_back
from sidecar.stores.sqlite_rows import Rows

# One statement, so one state of the store. A table's key stands first of its columns: NULL there means no such row. No
# attempt, no row at all. What is there twice makes a second row here.
READ: Final = """
SELECT take(
       a.run_id, a.status, a.executor_type, a.worker_id, a.worker_session_id, a.worker_generation,
       a.lease_generation, a.lease_version, a.lease_token_digest, a.offer_id,
       r.id, r.project_id, r.task_id, r.task_revision, r.status, r.execution_owner, r.cancel_requested_at_ms,
       l.attempt_id, l.run_id, l.status, l.version, l.lease_generation, l.worker_id, l.worker_session_id,
       l.worker_generation, l.lease_token_digest, l.offer_id, l.expires_at_ms,
       s.worker_id, s.session_id, s.generation, s.status, s.lease_expires_at_ms,
       t.project_id, t.source_revision, t.source_content_digest, t.plan_schema, t.plan_json, t.content_digest,
       c.credential_id, c.version, c.worker_id, c.state, c.not_before_at_ms, c.expires_at_ms
)
FROM run_attempts AS a
LEFT JOIN runs AS r ON r.id = a.run_id
LEFT JOIN run_dispatch_leases AS l ON l.attempt_id = a.id
LEFT JOIN worker_sessions AS s ON s.worker_id = l.worker_id
LEFT JOIN task_execution_revisions AS t ON t.project_id = r.project_id AND t.task_id = r.task_id
     AND t.task_revision = r.task_revision AND t.executor_type = 'remote_worker'
LEFT JOIN worker_credentials AS c ON c.credential_id = ?2
     AND c.version = (SELECT max(version) FROM worker_credentials WHERE credential_id = ?2)
WHERE a.id = ?1
LIMIT 2
"""
_BEGIN: Final = "BEGIN IMMEDIATE"
_as: Final = tuple.__new__  # a named tuple's own constructor is a function in Python
RECEIPT: Final = (
    "INSERT INTO receipts (receipt_id, kind, attempt_id, worker_id, credential_id, credential_version, file_name, mark,"
    " occurred_at_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


@dataclass(frozen=True, slots=True)
class Means:
    """What every hold of a store works with."""

    connection: sqlite3.Connection
    rows: Rows
    places: Places
    lock: WriteLock
    clock: Callable[[], int]
    in_place: Callable[[], bool]
    """Whether the file of the store's name is still the one that is open."""
    note: Callable[[BaseException], None]
    """Counts a failed write."""
    wrote: Callable[[], None]
    """Says that something was committed."""


class SqliteHold:
    """The attempt's lock, as an async context manager. SQLite's write lock is every attempt's lock at once.

    Entering raises `Refused(AUTHORITY_STORE)`, or `Refused(DEADLINE)` when the request's deadline comes first. Leaving
    without `commit`, in whatever way, rolls back, frees every place and closes the tenure; nothing there suspends.
    """

    __slots__ = ("_asked", "_deadline", "_locked", "_means", "_slow", "_taken", "snapshot", "tenure")

    def __init__(self, means: Means, attempt_id: str, credential_id: str, deadline: float, *, slow: bool) -> None:
        """Prepare; nothing is taken before entering. `slow`: the material will suspend (contract 6, material place)."""
        self._means = means
        self._asked = (attempt_id, credential_id)
        self._deadline = deadline
        self._slow = slow
        self._taken: Taken | None = None
        self._locked = False
        self.tenure = Tenure()
        self.snapshot: Snapshot

    async def __aenter__(self) -> Self:
        means = self._means
        try:
            self._taken = await means.places.take(self._asked[0], self._deadline, slow_material=self._slow)
            if not means.lock.take_now(means.connection, _BEGIN):
                await means.lock.take(means.connection, _BEGIN, deadline=self._deadline)
            self._locked = True
            self.snapshot = self._read()
        except (sqlite3.Error, TimeoutError) as error:
            self._end()
            late = isinstance(error, TimeoutError) and asyncio.get_running_loop().time() >= self._deadline
            raise Refused(Reason.DEADLINE if late else Reason.AUTHORITY_STORE) from None
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    async def commit(self, authority: Authority, receipts: tuple[Receipt, ...]) -> None:
        """Insert the receipts `released` and COMMIT. Raises `Refused(AUTHORITY_STORE)` unless SQLite confirmed it."""
        means = self._means
        if not self.tenure.open:
            raise Refused(Reason.AUTHORITY_STORE)
        try:
            if receipts:
                insert_receipts(means.connection, "released", authority, receipts, means.clock())
            means.connection.execute("COMMIT")
        except sqlite3.Error as error:
            means.note(error)
            raise Refused(Reason.AUTHORITY_STORE) from None
        finally:
            self.tenure.open = False
        if receipts:
            means.wrote()

    def _read(self) -> Snapshot:
        means = self._means
        # A backup copy moved into place while we run would be read by nobody: the open file is the old one.
        if not means.in_place():
            raise Refused(Reason.AUTHORITY_STORE)
        read_at = asyncio.get_running_loop().time()
        now_ms = means.clock()
        rows = means.rows.read(READ, self._asked)
        if not rows:
            return Snapshot(now_ms, read_at, None, None, None, None, None, None)
        row = rows[0]
        return Snapshot(
            now_ms=now_ms,
            read_at=read_at,
            attempt=_as(Attempt, row[0:10]),
            run=None if row[10] is None else _as(Run, row[11:17]),
            lease=None if row[17] is None else _as(Lease, row[18:28]),
            session=None if row[28] is None else _as(Session, row[29:33]),
            revision=None if row[33] is None else _as(Revision, row[34:39]),
            credential=None if row[39] is None else _as(Credential, row[40:45]),
            second_row=len(rows) > 1,
        )

    def _end(self) -> None:
        self.tenure.open = False
        if self._locked:
            self._locked = False
            roll_back(self._means.connection)
            self._means.lock.give_back()
        if self._taken is not None:
            self._taken.give_back()
            self._taken = None


def insert_receipts(
    connection: sqlite3.Connection, kind: str, whose: Authority | Permit, receipts: tuple[Receipt, ...], now_ms: int
) -> None:
    """Insert one row for each receipt (contract 6, step 8) in the open transaction. Raises sqlite3.Error."""
    holder = (whose.attempt_id, whose.worker_id, whose.credential_id, whose.credential_version)
    row = ("released", "delivered").index(kind)
    rows = [(item.ids[row], kind, *holder, item.file_name, item.mark, now_ms) for item in receipts]
    connection.executemany(RECEIPT, rows)
