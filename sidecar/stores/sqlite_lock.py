"""The embedded store's write lock, as this process waits for it: in one line, off the event loop's back, bounded."""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from provider.limits import WRITE_LOCK_WAIT_S
from sidecar.stores.places import Line

Values: TypeAlias = Sequence[str | int | None]

_FIRST_PAUSE_S: Final = 0.001
_LONGEST_PAUSE_S: Final = 0.01


def is_busy(error: sqlite3.Error) -> bool:
    """Tell whether another connection holds a lock that may be waited for."""
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) == sqlite3.SQLITE_BUSY


def is_full(error: BaseException) -> bool:
    """Tell whether the file system (or the file's page limit) has no room."""
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) == sqlite3.SQLITE_FULL


def roll_back(connection: sqlite3.Connection) -> None:
    """End a transaction if one is open; an error here leaves the connection refusing, which is safe."""
    with suppress(sqlite3.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")


class WriteLock:
    """SQLite has one writer. Writers of this process stand in line, so that none starves; other processes are polled.

    The line matters under slow material: audit rows that came while an authority transaction held the lock go before
    the next such transaction.
    """

    def __init__(self) -> None:
        """Begin with nobody in line."""
        self._line = Line(1)
        self.waits = 0
        """Writers that had to wait."""
        self.wait_s = 0.0
        """Seconds they waited, all together."""

    @property
    def idle(self) -> bool:
        """Whether no writer of this process has the lock or waits for it."""
        return self._line.idle

    def take_now(self, connection: sqlite3.Connection, statement: str, values: Values = ()) -> bool:
        """Run a statement as `take` does if the lock is free, and say whether it was. Raises sqlite3.Error."""
        if not self._line.take_now():
            return False
        taken = False
        try:
            taken = _try(connection, statement, values)
        finally:
            if not taken:
                self._line.give_back()
        return taken

    async def take(
        self, connection: sqlite3.Connection, statement: str, values: Values = (), deadline: float | None = None
    ) -> None:
        """Run a statement that takes the write lock; afterwards call `give_back` once the lock is free again.

        It does not suspend while the lock is free. Raises TimeoutError when the lock was not to be had for 2.5 s or
        until `deadline` on the loop's clock, and sqlite3.Error; nothing is to be given back then.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        until = began + WRITE_LOCK_WAIT_S
        if deadline is not None:
            until = min(until, deadline)
        waited = not self._line.take_now()
        try:
            if waited and not await self._line.take(until):
                raise TimeoutError
            try:
                pause = _FIRST_PAUSE_S
                while not _try(connection, statement, values):
                    waited = True
                    if loop.time() >= until:
                        raise TimeoutError
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE_S)
            except BaseException:
                self._line.give_back()
                raise
        finally:
            if waited:
                self.waits += 1
                self.wait_s += loop.time() - began

    def give_back(self) -> None:
        """Let the next writer in; the connection of the last one holds no lock any more."""
        self._line.give_back()


def _try(connection: sqlite3.Connection, statement: str, values: Values) -> bool:
    try:
        connection.execute(statement, values)
    except sqlite3.OperationalError as error:
        if is_busy(error):
            return False
        raise
    return True
