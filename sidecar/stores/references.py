"""Which refs the store names, and which values were delivered: what inventory, retention and doctor ask (issue 5).

A ref is live where a run that is not over names its revision, startable where the newest revision of a task does.
Portable between the stores through `control_db.Tx`; only SELECT is used.
"""

import re
from dataclasses import dataclass, field
from typing import Final

from provider.outcomes import Refused
from provider.plan import plan_refs
from provider.refs import InvalidRef, SecretRef
from provider.snapshot import Revision
from sidecar.stores.control_db import Row, Tx, Value
from sidecar.stores.control_rules import TERMINAL

_OVER: Final = ", ".join(f"'{state}'" for state in TERMINAL)
_LIVE: Final = (
    "SELECT DISTINCT project_id, task_id, task_revision FROM runs"  # noqa: S608 - of constants
    f" WHERE status IS NULL OR status NOT IN ({_OVER})"
)
_REVISIONS: Final = (
    "SELECT project_id, task_id, executor_type, source_revision, task_revision, source_content_digest, plan_schema,"
    " CAST(plan_json AS text), content_digest FROM task_execution_revisions"
)
_REF: Final = re.compile(r"qlsecret:v1:[A-Za-z0-9_-]{1,500}")


@dataclass(slots=True)
class Named:
    """A ref of some revision, and whether one that counts names it."""

    ref: SecretRef
    bundle: bool = False
    live: bool = False
    startable: bool = False

    @property
    def wanted(self) -> bool:
        """Whether a delivery may ask for it."""
        return self.live or self.startable


@dataclass(slots=True)
class References:
    """Every ref that the store knows, by file name."""

    named: dict[str, Named] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    """Revisions that count and whose plan serve would refuse. Whatever looks like a ref in them counts as named."""
    lost: int = 0
    """Task revisions of live runs that have no row: nobody can tell what they name."""

    def wanted(self) -> dict[str, Named]:
        """Return those that a delivery may ask for."""
        return {name: named for name, named in self.named.items() if named.wanted}


async def references(tx: Tx) -> References:
    """Read every revision and every run that is not over."""
    live = set(await tx.fetch(_LIVE))
    rows = await tx.fetch(_REVISIONS)
    newest: dict[tuple[Value, ...], int] = {}
    for row in rows:
        revision = row[3] if isinstance(row[3], int) else 0
        newest[row[:3]] = max(revision, newest.get(row[:3], 0))
    found = References()
    seen: set[Row] = set()
    for row in rows:
        key = (row[0], row[1], row[4])
        seen.add(key)
        _add(found, row, live=key in live, startable=row[3] == newest[row[:3]])
    found.lost = len(live - seen)
    return found


def _add(found: References, row: Row, *, live: bool, startable: bool) -> None:
    try:
        secrets, bundles = plan_refs(Revision(*row[3:4], *row[5:]), str(row[0]))
    except Refused:
        secrets, bundles = _whatever_looks_like_one(str(row[7])), ()
        if live or startable:
            found.unreadable.append(f"{row[0]}/{row[1]} revision {row[3]}")
    for ref in (*secrets, *bundles):
        named = found.named.setdefault(ref.file_name, Named(ref))
        named.bundle |= ref in bundles
        named.live |= live
        named.startable |= startable


def _whatever_looks_like_one(text: str) -> tuple[SecretRef, ...]:
    refs = []
    for part in _REF.findall(text):
        try:
            refs.append(SecretRef.parse(part))
        except InvalidRef:
            continue
    return tuple(refs)


async def last_deliveries(tx: Tx, table: str) -> dict[str, int]:
    """Return the time of each file's last delivery, from the receipts in `table`."""
    statement = f"SELECT file_name, max(occurred_at_ms) FROM {table} WHERE kind = 'delivered' GROUP BY file_name"  # noqa: S608 - a constant of the caller's
    return {str(name): at_ms for name, at_ms in await tx.fetch(statement) if isinstance(at_ms, int)}
