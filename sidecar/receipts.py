"""Reading receipts: whose value is the one that is mounted now (contract 6, step 8).

A mark shows equality only. A mark that equals none is another value, or was made under a pepper that is gone: which of
the two its row's id tells.
"""

import hmac
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from provider.limits import BUNDLE_BYTES
from provider.receipts import is_made_under
from sidecar.publish.sources import BadValue, Inputs, Source
from sidecar.publish.target import DATA
from sidecar.stores.control_db import Value

COLUMNS: Final = (
    "receipt_id, kind, worker_id, file_name, mark, attempt_id, credential_id, credential_version, occurred_at_ms"
)
NOW, BEFORE, UNKNOWN = "now", "before", "unknown"
_RANK: Final = (NOW, BEFORE, UNKNOWN)


@dataclass(frozen=True, slots=True)
class Receipt:
    """One row, in the order of COLUMNS."""

    receipt_id: str
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
    """The marks of the values that are mounted, under each key; each value is read once, into wipeable memory."""

    def __init__(self, keys: Sequence[bytes], root: str | None) -> None:
        """Take the keys of the peppers, and the root that is mounted; None: nothing is."""
        self._keys = tuple(keys)
        self._root = root
        self._known: dict[str, frozenset[str]] = {}

    def value(self, one: Receipt) -> str:
        """Return whether a receipt's value is the one mounted `now`, one from `before`, or `unknown`."""
        now = self._now(one.file_name)
        if one.mark in now:
            return NOW
        # Under a pepper that is gone the value that is mounted would have another mark, too.
        known = any(is_made_under(key, one.receipt_id) for key in self._keys)
        return BEFORE if now and known else UNKNOWN

    def _now(self, file_name: str) -> frozenset[str]:
        if file_name not in self._known:
            self._known[file_name] = frozenset() if self._root is None else self._drawn(self._root, file_name)
        return self._known[file_name]

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
