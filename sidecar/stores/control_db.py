"""What the control plane needs of a store: a transaction with a clock, and statements with `?` for values."""

from contextlib import AbstractAsyncContextManager
from enum import Enum, unique
from typing import Protocol, TypeAlias

Value: TypeAlias = str | int | None
Row: TypeAlias = tuple[Value, ...]


class Tx(Protocol):
    """An open transaction. Statements are what SQLite and PostgreSQL both understand, tables named without schema."""

    async def now_ms(self) -> int:
        """Return the store's clock in ms, read after the transaction's locks were taken."""

    async def lock(self, attempt_id: str) -> None:
        """Take the attempt's lock (contract 6, step 1) until the end. SQLite's one write lock is held already."""

    async def fetch(self, statement: str, *values: Value) -> list[Row]:
        """Run a statement that returns rows."""

    async def execute(self, statement: str, *values: Value) -> int:
        """Run a statement that changes rows and return their number."""


class ControlDb(Protocol):
    """A store that the control plane may write."""

    def transaction(self, *, write: bool = True) -> AbstractAsyncContextManager[Tx]:
        """Open a transaction; leaving commits, leaving by an exception rolls back. Raises StoreFault."""


@unique
class Wrong(Enum):
    """Whose fault it is that an operation did not happen."""

    INPUT = "input"
    """What was asked for can never be done: an unknown id, an impossible value."""
    STATE = "state"
    """It cannot be done as things stand: a session that is over, a run that has ended."""


class ControlRefused(Exception):
    """The operation was not done and nothing was changed. Both sentences are without a secret."""

    def __init__(self, kind: Wrong, wrong: str, mend: str) -> None:
        """Say whose fault it is, what is wrong and how to mend it."""
        super().__init__(wrong)
        self.kind = kind
        self.wrong = wrong
        self.mend = mend
