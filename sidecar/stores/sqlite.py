"""The embedded authority store, serve side: credentials, audit rows and authority under the write lock (contract 6).

Every call runs on the event loop's thread and takes microseconds. None waits for a lock inside SQLite: while another
process holds the write lock, the loop goes on, for at most 2.5 s.

There is one connection: each commit of a second one would empty the first one's page cache, which costs more than all
the rest of a request. A credential may be read on it while an authority transaction is open: that transaction holds the
write lock, so what it sees is what is newest. Audit rows stand in the line of writers, and so wait for the lock alone.
"""

import math
import os
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from typing import Final

from provider.authority import Permit
from provider.command import Command
from provider.credential import CredentialRow, Principal
from provider.outcomes import Reason, Refused
from provider.ports import AuditRecord
from provider.receipts import Receipt
from sidecar.ids import uuid4
from sidecar.stores.faults import StoreFault, StoreFaultKind
from sidecar.stores.places import Places
from sidecar.stores.sqlite_checkpoint import Checkpointer
from sidecar.stores.sqlite_file import connect, judge, wall_ms
from sidecar.stores.sqlite_hold import READ, RECEIPT, Means, SqliteHold, insert_receipts
from sidecar.stores.sqlite_lock import WriteLock, is_full, roll_back
from sidecar.stores.sqlite_rows import Rows
from sidecar.stores.sqlite_schema import VERSION

_NEWEST: Final = (
    "SELECT take(credential_id, version, worker_id, secret_digest, state, not_before_at_ms, expires_at_ms)"
    " FROM worker_credentials WHERE credential_id = ? ORDER BY version DESC LIMIT 1"
)
_AUDIT: Final = (
    "INSERT INTO security_audit_events (event_id, request_id, operation_id, outcome, subject_type, subject_id,"
    " authentication_id, reasons, occurred_at_ms) VALUES (?, ?, 'worker.secrets', ?, ?, ?, ?, ?, ?)"
)
_OLDEST: Final = "SELECT occurred_at_ms FROM security_audit_events ORDER BY rowid LIMIT 1"


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What metrics show of the store: NaN for what cannot be read now. Counters count since it was opened."""

    store_bytes: float
    """The file and its write-ahead log."""
    oldest_audit_age_s: float
    """Age of the oldest audit row, 0 when there is none."""
    free_bytes: float
    """Free bytes of the store's file system for this user."""
    lock_waits: int
    """Writes that had to wait for the write lock."""
    lock_wait_s: float
    """Seconds that they waited, all together."""
    lost_acknowledgements: int
    """Receipts `delivered` that could not be written."""
    full_disk_failures: int
    """Writes that failed because the file system was full."""
    checkpoint_failures: int
    """Moves of the log into the file that failed; each is tried again after the next write."""


class SqliteStore:
    """The store of one replica; implements the ports CredentialStore, AuditLog and AuthorityStore."""

    _connection: sqlite3.Connection
    _rows: Rows
    _means: Means

    def __init__(self, path: str, *, receipts: bool = False, clock: Callable[[], int] = wall_ms) -> None:
        """Serve from the file at `path`. `clock` is the store's clock in ms, the machine's except in tests."""
        self._path = path
        self._receipts = receipts
        self._clock = clock
        self._lock = WriteLock()
        self._checkpointer = Checkpointer(path)
        self._identity: tuple[int, int] | None = None
        self._lost_acknowledgements = 0
        self._full_disk_failures = 0

    def open(self) -> None:
        """Judge the file and open it, on the event loop's thread.

        Raises StoreFault; nothing is created or changed then.
        """
        judge(self._path)
        with ExitStack() as opened:
            try:
                self._identity = self._file_identity()
                self._connection = opened.enter_context(closing(self._connect()))
                self._rows = Rows(self._connection)
                # These name every table and column that a request needs, so that a store without one is found now.
                self._rows.read(READ, ("", ""))
                self._rows.read(_NEWEST, ("",))
                self._connection.execute(f"EXPLAIN {_AUDIT}", ("",) * 8).fetchall()
            except sqlite3.Error:
                raise StoreFault(
                    StoreFaultKind.CORRUPT,
                    "The authority store lacks a table or column, or changed while it was opened.",
                    "Put a backup copy in its place, or start anew with `secret-sidecar authority init`.",
                ) from None
            try:
                if self._receipts:
                    self._connection.execute(f"EXPLAIN {RECEIPT}", ("",) * 9).fetchall()
            except sqlite3.Error:
                raise StoreFault(
                    StoreFaultKind.NO_RECEIPTS,
                    "Receipts are on, but the authority store has no table for them.",
                    "Make it with `secret-sidecar authority init --receipts`, or turn receipts off.",
                ) from None
            opened.pop_all()
        self._means = Means(
            connection=self._connection,
            rows=self._rows,
            places=Places(transactions=1, materials=1),
            lock=self._lock,
            clock=self._clock,
            in_place=self._in_place,
            note=self._note,
            wrote=self._checkpointer.wrote,
        )
        self._checkpointer.start()

    def close(self) -> None:
        """Close every connection; the log is moved into the file. A request that still comes is refused."""
        self._checkpointer.stop()
        self._connection.close()

    async def newest(self, credential_id: str) -> tuple[CredentialRow | None, int]:
        """Return the newest version's row and the store's clock in ms, or raise `Refused(CREDENTIAL_STORE)`."""
        try:
            rows = self._rows.read(_NEWEST, (credential_id,))
        except sqlite3.Error:
            raise Refused(Reason.CREDENTIAL_STORE) from None
        return (CredentialRow(*rows[0]) if rows else None), self._clock()

    async def record(self, record: AuditRecord) -> None:
        """Commit one audit row, or raise `Refused(AUDIT_STORE)`; the write lock is waited for 2.5 s at most."""
        principal = record.principal
        if principal is None:
            subject: tuple[str | None, ...] = (None, None, None, f'["{record.outcome}"]')
        else:
            subject = ("worker", principal.worker_id, principal.authentication_id, '["worker_credential"]')
        event = (uuid4(), record.request_id, record.outcome, *subject, self._clock())
        try:
            if not self._lock.take_now(self._connection, _AUDIT, event):
                await self._lock.take(self._connection, _AUDIT, event)
        except (sqlite3.Error, TimeoutError) as error:
            self._note(error)
            raise Refused(Reason.AUDIT_STORE) from None
        self._lock.give_back()
        self._checkpointer.wrote()

    def hold(self, principal: Principal, command: Command, deadline: float, *, slow_material: bool) -> SqliteHold:
        """Take places and write lock and read, as an async context manager; leaving without `commit` rolls back.

        Raises `Refused(AUTHORITY_STORE)`, or `Refused(DEADLINE)` when the loop's clock shows `deadline` first.
        """
        return SqliteHold(self._means, command.attempt_id, principal.credential_id, deadline, slow=slow_material)

    async def acknowledge(self, permit: Permit, given: tuple[Receipt, ...]) -> None:
        """Write the receipts `delivered`, best effort: what cannot be written is counted."""
        written = False
        try:
            await self._lock.take(self._connection, "BEGIN IMMEDIATE")
            try:
                insert_receipts(self._connection, "delivered", permit, given, self._clock())
                self._connection.execute("COMMIT")
                written = True
            finally:
                roll_back(self._connection)
                self._lock.give_back()
            self._checkpointer.wrote()
        except (sqlite3.Error, TimeoutError) as error:
            self._note(error)
        finally:
            if not written:
                self._lost_acknowledgements += len(given)

    def health(self) -> str:
        """Return `ok` or `failed`: the file is still the one opened, of this version, and can be read."""
        try:
            version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        except sqlite3.Error:
            version = None
        return "ok" if version == VERSION and self._in_place() else "failed"

    @property
    def stats(self) -> StoreStats:
        """Read sizes and ages now, and return them with the counters; on the event loop's thread."""
        size = free = age = math.nan
        with suppress(OSError):
            system = os.statvfs(self._path)
            free = system.f_bavail * system.f_frsize
            size = os.stat(self._path).st_size
            size += os.stat(f"{self._path}-wal").st_size
        with suppress(sqlite3.Error):
            now_ms = self._clock()
            rows = self._connection.execute(_OLDEST).fetchall()
            oldest = rows[0][0] if rows and isinstance(rows[0][0], int) else now_ms
            age = max(0.0, (now_ms - oldest) / 1000)
        return StoreStats(
            store_bytes=size,
            oldest_audit_age_s=age,
            free_bytes=free,
            lock_waits=self._lock.waits,
            lock_wait_s=self._lock.wait_s,
            lost_acknowledgements=self._lost_acknowledgements,
            full_disk_failures=self._full_disk_failures,
            checkpoint_failures=self._checkpointer.failures,
        )

    def _connect(self) -> sqlite3.Connection:
        connection = connect(self._path, wait_s=0)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # the checkpointer's thread does it
        return connection

    def _file_identity(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _in_place(self) -> bool:
        return self._identity is not None and self._file_identity() == self._identity

    def _note(self, error: BaseException) -> None:
        if is_full(error):
            self._full_disk_failures += 1
