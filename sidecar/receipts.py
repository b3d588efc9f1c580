"""Reading receipts: whose value is the one that is mounted now (contract 6, step 8).

A mark shows equality only. A mark that equals none is another value, or was made under a pepper that is gone: which of
the two is claimed only where it is certain.
"""

import hmac
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from provider.limits import BUNDLE_BYTES
from sidecar.publish.sources import BadValue, Inputs, Source
from sidecar.publish.target import DATA
from sidecar.stores.control_db import Value

COLUMNS: Final = "kind, worker_id, file_name, mark, attempt_id, credential_id, credential_version, occurred_at_ms"
NOW, BEFORE, UNKNOWN = "now", "before", "unknown"
_RANK: Final = (NOW, BEFORE, UNKNOWN)


@dataclass(frozen=True, slots=True)
class Receipt:
    """One row, in the order of COLUMNS."""

    kind: str
    worker_id: str
    file_name: str
    mark: str
    attempt_id: Value
    credential_id: Value
    credential_version: Value
    at_ms: Value

    def document(self) -> dict[str, object]:
        """Return it for JSON. The mark is shown: it tells nothing without the pepper."""
        return {
            "kind": self.kind,
            "workerId": self.worker_id,
            "attemptId": self.attempt_id,
            "credentialId": self.credential_id,
            "credentialVersion": self.credential_version,
            "fileName": self.file_name,
            "mark": self.mark,
            "occurredAtMs": self.at_ms,
        }


class Marks:
    """The marks of the values that are at hand, under each key; each value is read once, into wipeable memory."""

    def __init__(self, keys: Sequence[bytes], root: str | None, before: str | None) -> None:
        """Take the keys of the peppers, the root that is mounted, and a directory of earlier values."""
        self._keys = tuple(keys)
        self._root = root
        self._before = before
        self._known: dict[tuple[str | None, str], frozenset[str]] = {}

    def values(self, receipts: Sequence[Receipt]) -> list[str]:
        """Return for each receipt whether its value is the one mounted `now`, one from `before`, or `unknown`."""
        verified = {_delivery(one) for one in receipts if one.mark in self._of(self._root, one.file_name)}
        return [self._value(one, verified) for one in receipts]

    def _value(self, one: Receipt, verified: set[tuple[Value, ...]]) -> str:
        now = self._of(self._root, one.file_name)
        if one.mark in now:
            return NOW
        if one.mark in self._of(self._before, one.file_name):
            return BEFORE
        # One delivery draws all its marks under one pepper: where another of them is known, so is the pepper.
        return BEFORE if now and _delivery(one) in verified else UNKNOWN

    def _of(self, folder: str | None, file_name: str) -> frozenset[str]:
        place = (folder, file_name)
        if place not in self._known:
            self._known[place] = frozenset() if folder is None else self._drawn(folder, file_name)
        return self._known[place]

    def _drawn(self, folder: str, file_name: str) -> frozenset[str]:
        inside = f"{folder}/{DATA}" if os.path.islink(f"{folder}/{DATA}") else folder
        source = Source(file_name, file_name, f"{inside}/{file_name}", BUNDLE_BYTES)
        try:
            with Inputs((source,)) as inputs, inputs.value(source) as value:
                return frozenset(mark(key, file_name, value) for key in self._keys)
        except BadValue:
            return frozenset()


def mark(key: bytes, file_name: str, value: memoryview) -> str:
    """Return the mark of a value (contract 6, step 8), hashed in place."""
    drawn = hmac.new(key, file_name.encode("ascii") + b"\0", "sha256")
    drawn.update(value)
    return drawn.hexdigest()


def _delivery(one: Receipt) -> tuple[Value, ...]:
    """Return what the receipts of one delivery have in common: one transaction wrote them, at one time."""
    return one.kind, one.attempt_id, one.worker_id, one.at_ms


def holders(receipts: Iterable[tuple[Receipt, str]]) -> list[dict[str, str]]:
    """Return the best that each worker was given of each file: who has the value mounted now, who only another."""
    best: dict[tuple[str, str], str] = {}
    for one, value in receipts:
        key = (one.file_name, one.worker_id)
        best[key] = min(value, best.get(key, UNKNOWN), key=_RANK.index)
    return [
        {"fileName": file_name, "workerId": worker, "value": value}
        for (file_name, worker), value in sorted(best.items())
    ]
