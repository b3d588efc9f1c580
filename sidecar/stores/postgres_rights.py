"""What the database role may do, judged against what it must be able to do and nothing else (contract 6)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, unique
from typing import Any, Final, Protocol

from sidecar.stores.postgres_schema import (
    AUDIT_TABLE,
    AUTHORITY_TABLES,
    RECEIPTS_SCHEMA,
    RECEIPTS_TABLE,
    RIGHTS_QUERY,
    SCHEMA,
)


class Connection(Protocol):
    """As much of a driver's connection as is needed here."""

    async def fetch(self, query: str) -> Sequence[Any]:
        """Run a query and return its rows. Raises what the driver raises."""


@unique
class RightsFaultKind(Enum):
    """What is wrong with a role, as a closed set for events."""

    TABLE_MISSING = "table_missing"
    RIGHT_MISSING = "right_missing"
    RIGHT_TOO_MUCH = "right_too_much"
    OWNER = "owner"
    MAY_CREATE = "may_create"
    MEMBER = "member"
    ATTRIBUTE = "attribute"


@dataclass(frozen=True, slots=True)
class RightsFault:
    """One right too few or too many. `mend` is the statement that mends it, as whoever owns the object runs it.

    Both hold names of the database's roles, tables and columns, which belong to its operator; no row, no password.
    """

    kind: RightsFaultKind
    wrong: str
    mend: str


@dataclass(frozen=True, slots=True)
class _Row:
    """What the query finds, one fact a row; which of them say anything depends on `kind`."""

    kind: str
    object: str
    part: str | None
    """A column, where the right is on one."""
    held: str
    holder: str
    """The role or PUBLIC."""
    grantor: str | None
    """Who gave it, where that is not the owner: nobody else takes it back."""
    own: bool
    """Whether the role owns the object, so that its rights there are no fault besides."""


_NEEDED: Final = {(f"{SCHEMA}.{table}", "SELECT") for table in AUTHORITY_TABLES} | {
    (f"{SCHEMA}.{AUDIT_TABLE}", "INSERT")
}
_RECEIPTS: Final = (f"{RECEIPTS_SCHEMA}.{RECEIPTS_TABLE}", "INSERT")
_ALLOWED: Final = _NEEDED | {_RECEIPTS}


async def judge(connection: Connection, *, receipts: bool) -> tuple[RightsFault, ...]:
    """Return every fault of the role that the connection is logged in as; none when it is as the contract wants it.

    `receipts`: whether they are on, so that INSERT there is required; it is allowed in any case. One query. What it
    raises is the driver's.
    """
    rows = [_Row(*row) for row in await connection.fetch(RIGHTS_QUERY)]
    role = next(row.object for row in rows if row.kind == "role")
    needed = _NEEDED | ({_RECEIPTS} if receipts else set())
    return (*_missing(rows, role, needed), *_too_much(rows, role))


def _missing(rows: list[_Row], role: str, needed: set[tuple[str, str]]) -> Iterator[RightsFault]:
    tables = {row.object for row in rows if row.kind == "table"}
    usage = {row.object for row in rows if row.kind == "usage"}
    held = {(row.object, row.held) for row in rows if row.kind == "right" and row.part is None}
    for table in sorted({table for table, _ in needed} - tables):
        mend = "Name the database of QL3, or make the tables with `secret-sidecar authority init`."
        if table == _RECEIPTS[0]:
            mend = "Make it with `secret-sidecar authority init --receipts`, or set receipts off."
        yield RightsFault(RightsFaultKind.TABLE_MISSING, f"The table {table} is missing.", mend)
    there = {(table, right) for table, right in needed if table in tables}
    # A right on a table is of no use without USAGE on its schema, so that is needed with it.
    for schema in sorted({table.partition(".")[0] for table, _ in there} - usage):
        mend = f"GRANT USAGE ON SCHEMA {schema} TO {role};"
        yield RightsFault(RightsFaultKind.RIGHT_MISSING, f"The role has no USAGE on the schema {schema}.", mend)
    for table, right in sorted(there - held):
        mend = f"GRANT {right} ON {table} TO {role};"
        yield RightsFault(RightsFaultKind.RIGHT_MISSING, f"The role has no {right} on {table}.", mend)


def _too_much(rows: list[_Row], role: str) -> Iterator[RightsFault]:
    for row in rows:
        who = "PUBLIC" if row.holder == "PUBLIC" else "The role"
        match row.kind:
            case "right" | "sequence" if not row.own and (row.object, row.held) not in _ALLOWED:
                right = row.held if row.part is None else f"{row.held} ({row.part})"
                on = f"SEQUENCE {row.object}" if row.kind == "sequence" else row.object
                mend = _taken_back(row, f"REVOKE {right} ON {on} FROM {row.holder};")
                yield RightsFault(RightsFaultKind.RIGHT_TOO_MUCH, f"{who} has {right} on {row.object}.", mend)
            case "create" if not row.own:
                mend = _taken_back(row, f"REVOKE CREATE ON {row.object} FROM {row.holder};")
                yield RightsFault(RightsFaultKind.MAY_CREATE, f"{who} may create in the {row.object}.", mend)
            case "owner":
                mend = f"ALTER {row.object} OWNER TO CURRENT_USER;"
                yield RightsFault(RightsFaultKind.OWNER, f"The role owns the {row.object}.", mend)
            case "member":
                by = "" if row.grantor is None else f" GRANTED BY {row.grantor}"
                mend = f"REVOKE {row.object} FROM {role}{by};"
                yield RightsFault(RightsFaultKind.MEMBER, f"The role is a member of {row.object}.", mend)
            case "attribute":
                mend = f"ALTER ROLE {role} NO{row.object};"
                yield RightsFault(RightsFaultKind.ATTRIBUTE, f"The role is {row.object}.", mend)


def _taken_back(row: _Row, statement: str) -> str:
    return statement if row.grantor is None else f"SET ROLE {row.grantor}; {statement} RESET ROLE;"
