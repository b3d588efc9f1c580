"""Receipts: which value went to whom, shown by equality only (contract 6.8)."""

import hmac
import os
from dataclasses import dataclass, field
from typing import Final

from provider.material import Batch

_ID_DOMAIN: Final = b"receipt id\0"
_VARIANT: Final = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
_HALF: Final = 18
"""Characters of a UUID that are drawn; the rest follows from them."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """One delivered ref: its file name and the mark of its value, lower-case hex."""

    file_name: str
    mark: str
    ids: tuple[str, str] = field(compare=False)
    """Of its rows `released` and `delivered`; from `identify`."""


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
        receipts.append(Receipt(slot.ref.file_name, mark.hexdigest(), (identify(key), identify(key))))
    return tuple(receipts)


def identify(key: bytes) -> str:
    """Return a fresh UUIDv4 of which `is_made_under` tells that it was made under this key.

    So a mark that is not that of the value mounted now is known to be another value's, not another pepper's.
    """
    drawn = os.urandom(8).hex()
    return _identified(key, f"{drawn[:8]}-{drawn[8:12]}-4{drawn[13:]}")


def is_made_under(key: bytes, receipt_id: str) -> bool:
    """Tell whether `identify` made this id under this key; a random one is mistaken for it once in 2**62."""
    return receipt_id == _identified(key, receipt_id[:_HALF])


def _identified(key: bytes, half: str) -> str:
    rest = hmac.digest(key, _ID_DOMAIN + half.encode(), "sha256").hex()
    return f"{half}-{_VARIANT[rest[0]]}{rest[1:4]}-{rest[4:16]}"
