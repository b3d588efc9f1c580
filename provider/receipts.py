"""Receipts: which value went to whom, shown by equality only (contract 6.8)."""

import hmac
from dataclasses import dataclass

from provider.material import Batch


@dataclass(frozen=True, slots=True)
class Receipt:
    """One delivered ref: its file name and the mark of its value, lower-case hex."""

    file_name: str
    mark: str


def draw(key: bytes, batch: Batch) -> tuple[Receipt, ...]:
    """Return one receipt for each value of the batch, in order.

    `key` is `Pepper.receipt_key()`: equal values of one file name have equal marks on every replica, and nothing else
    can be learnt from a mark without the pepper. The value is hashed in place.
    """
    receipts = []
    for index, slot in enumerate(batch.slots):
        mark = hmac.new(key, slot.ref.file_name.encode("ascii") + b"\0", "sha256")
        with batch.value(index) as value:
            mark.update(value)
        receipts.append(Receipt(slot.ref.file_name, mark.hexdigest()))
    return tuple(receipts)
