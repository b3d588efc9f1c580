"""The embedded store as the control plane writes it: one short transaction a command, under the write lock.

Calls block for up to 2.5 s while another program holds the lock, so they belong in a command's process or in a thread,
not on a serving event loop.
"""

import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Final, Self

from sidecar.stores.control_db import Row, Value
from sidecar.stores.sqlite_file import connect, judge, store_fault, wall_ms
from sidecar.stores.sqlite_lock import roll_back
from sidecar.stores.sqlite_schema import add_receipts

_OLD: Final = "SELECT rowid FROM security_audit_events WHERE occurred_at_ms < ? AND rowid >= ? ORDER BY rowid LIMIT ?"
_ENDS: Final = "SELECT (SELECT min(rowid) FROM security_audit_events), (SELECT max(rowid) FROM security_audit_events)"
_DELETE: Final = "DELETE FROM security_audit_events WHERE rowid = ?"
_PAUSE_S: Final = 0.01  # as long as a request may sleep between two tries for the lock, so that it gets its turn
BATCH_ROWS: Final = 1000
"""Audit rows deleted under one hold of the write lock: a few milliseconds, which requests wait."""


class SqliteTx:
    """An open transaction of the embedded store; see the protocol `control_db.Tx`."""

    def __init__(self, connection: sqlite3.Connection, clock: Callable[[], int]) -> None:
        """Made by `SqliteControl.transaction`."""
        self._connection = connection
        self._clock = clock

    async def now_ms(self) -> int:
        """Return the machine's clock in ms."""
        return self._clock()

    async def lock(self, attempt_id: str) -> None:
        """Do nothing: the write lock is every attempt's lock."""

    async def fetch(self, statement: str, *values: Value) -> list[Row]:
        """Run a statement that returns rows."""
        return self._connection.execute(statement, values).fetchall()

    async def execute(self, statement: str, *values: Value) -> int:
        """Run a statement that changes rows and return their number."""
        return self._connection.execute(statement, values).rowcount


class SqliteControl:
    """A store file, open for commands. A context manager. Every method raises StoreFault when the store does not do."""

    def __init__(self, path: str, *, clock: Callable[[], int] = wall_ms) -> None:
        """Judge the file and open it. Raises StoreFault; nothing is created or changed then."""
        judge(path, thorough=False)
        self._clock = clock
        with store_fault():
            self._connection = connect(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    @asynccontextmanager
    async def transaction(self, *, write: bool = True) -> AsyncIterator[SqliteTx]:
        """Open a transaction, for writing under the write lock; see the protocol `control_db.ControlDb`."""
        with store_fault():
            self._connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                yield SqliteTx(self._connection, self._clock)
                self._connection.execute("COMMIT")
            finally:
                roll_back(self._connection)

    def add_receipts(self) -> bool:
        """Make the receipts table unless it is there. Returns whether it was made."""
        with store_fault():
            there = self._connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'receipts'").fetchall()
            if not there:
                add_receipts(self._connection)
        return not there

    def audit_rows(self) -> int:
        """Return about how many audit rows there are: exact unless rows were deleted from the middle."""
        with store_fault():
            low, high = self._connection.execute(_ENDS).fetchone()
        return 0 if high is None else high - low + 1

    def prune_audit(self, older_than_ms: int) -> Iterator[tuple[int, int]]:
        """Delete audit rows older than `older_than_ms`, in batches; yield after each the rows passed and deleted.

        Rows are looked for without a lock. Each batch is one transaction, so a killed prune has deleted what it said.
        """
        before = self._clock() - older_than_ms
        with store_fault():
            first = last = self._connection.execute(_ENDS).fetchone()[0] or 0
            while batch := self._connection.execute(_OLD, (before, last, BATCH_ROWS)).fetchall():
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    self._connection.executemany(_DELETE, batch)
                    self._connection.execute("COMMIT")
                finally:
                    roll_back(self._connection)
                last = batch[-1][0] + 1
                yield last - first, len(batch)
                time.sleep(_PAUSE_S)
