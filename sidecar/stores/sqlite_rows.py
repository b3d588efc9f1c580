"""Reading rows from SQLite without a cursor's description of them.

Python's sqlite3 describes every column of a result anew for each execution, name by name, which costs as much as all
the rest of a read. A statement that hands its columns to a function has one column.
"""

import sqlite3
from collections.abc import Sequence


class Rows:
    """Runs statements of the form `SELECT take(columns) FROM ...` on one connection, from one thread."""

    __slots__ = ("_connection", "_taken")

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Give the connection its function `take`."""
        self._connection = connection
        self._taken: list[tuple[object, ...]] = []
        connection.create_function("take", -1, self._take)

    def _take(self, *row: object) -> None:
        self._taken.append(row)

    def read(self, statement: str, values: Sequence[str]) -> list[tuple[object, ...]]:
        """Return every row, its values as SQLite holds them. Raises sqlite3.Error."""
        taken = self._taken = []
        try:
            self._connection.execute(statement, values).fetchall()
        finally:
            self._taken = []  # what was read belongs to whoever asked, and is kept nowhere else
        return taken
