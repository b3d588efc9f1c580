"""provider/receipts: a mark shows equality of two values under one ref, and nothing else."""

import hashlib
import hmac
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provider.credential import Pepper
from provider.material import Batch, Slot
from provider.memory import BufferPool
from provider.receipts import Receipt, draw, identify, is_made_under
from provider.refs import SecretRef
from tests.kit import valid

KEY = valid.PEPPER.receipt_key()


def drawn(values: dict[SecretRef, bytes], key: bytes = KEY) -> tuple[Receipt, ...]:
    """The receipts of a batch with these values."""
    pool = BufferPool()
    with Batch(pool, [Slot(ref, len(value)) for ref, value in values.items()]) as batch:
        for index, value in enumerate(values.values()):
            batch.room(index)[: len(value)] = value
            batch.fill(index, len(value))
        return draw(key, batch)


def test_mark_is_the_contracts() -> None:
    """Mark = HMAC-SHA256(HMAC-SHA256(pepper, domain), file name NUL value), as lower-case hex (contract 6.8)."""
    key = hmac.new(bytes(range(32)), b"secret-sidecar-receipt-v1", hashlib.sha256).digest()
    name = hashlib.sha256(valid.TOKEN.text.encode()).hexdigest()
    expected = hmac.new(key, name.encode() + b"\0" + b"value", hashlib.sha256).hexdigest()
    assert drawn({valid.TOKEN: b"value"}) == (Receipt(name, expected, ("", "")),)


def test_one_receipt_for_each_value_in_order() -> None:
    """Every slot has its receipt, in the batch's order, the bundle included."""
    receipts = drawn({valid.KEY: b"1", valid.TOKEN: b"2", valid.BUNDLE: b"3"})
    assert [receipt.file_name for receipt in receipts] == [
        ref.file_name for ref in (valid.KEY, valid.TOKEN, valid.BUNDLE)
    ]


def test_equal_values_of_one_ref_have_equal_marks() -> None:
    """The same value under the same ref has the same mark, whenever and wherever it is drawn."""
    assert drawn({valid.TOKEN: b"value"}) == drawn({valid.TOKEN: b"value"})


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({valid.TOKEN: b"valuf"}, KEY),
        ({valid.TOKEN: b"value\n"}, KEY),
        ({valid.KEY: b"value"}, KEY),
        ({valid.TOKEN: b"value"}, Pepper(bytes(range(1, 33))).receipt_key()),
    ],
    ids=["other value", "longer value", "other ref", "other pepper"],
)
def test_a_mark_depends_on_value_ref_and_pepper(values: dict[SecretRef, bytes], key: bytes) -> None:
    """Another value, ref or pepper gives another mark, so equality across refs or peppers tells nothing."""
    assert drawn(values, key)[0].mark != drawn({valid.TOKEN: b"value"})[0].mark


def test_an_unfilled_slot_has_no_receipt() -> None:
    """A value that was never read cannot be receipted."""
    with Batch(BufferPool(), [Slot(valid.TOKEN, 5)]) as batch, pytest.raises(ValueError, match="no value"):
        draw(KEY, batch)


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_an_id_tells_the_key_and_nothing_else(key: bytes, other: bytes) -> None:
    """An id is a UUIDv4 that only the key it was made under takes for its own; no two are alike."""
    ids = [identify(key) for _ in range(3)]
    assert len(set(ids)) == 3
    for one in ids:
        assert str(uuid.UUID(one)) == one and uuid.UUID(one).version == 4
        assert uuid.UUID(one).variant == uuid.RFC_4122
        assert is_made_under(key, one) and is_made_under(other, one) == (key == other)
    assert not is_made_under(key, str(uuid.uuid4())) and not is_made_under(key, "")


def test_each_row_of_a_receipt_has_an_id_of_its_own() -> None:
    """`released` and `delivered` of every value: as many ids, all made under the key of the marks."""
    ids = [one for receipt in drawn({valid.KEY: b"1", valid.TOKEN: b"2"}) for one in receipt.ids]
    assert len(set(ids)) == 4 and all(is_made_under(KEY, one) for one in ids)
