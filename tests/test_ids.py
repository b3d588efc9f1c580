"""Fresh identifiers are what they say they are."""

import uuid

from hypothesis import given
from hypothesis import strategies as st

from sidecar.ids import uuid4, uuid7


def test_a_uuid4_is_random() -> None:
    """Every one is a canonical UUIDv4 of the RFC's variant, and none comes twice; all variants occur."""
    made = [uuid4() for _ in range(500)]
    assert len(set(made)) == 500
    for text in made:
        parsed = uuid.UUID(text)
        assert (str(parsed), parsed.version, parsed.variant) == (text, 4, uuid.RFC_4122)
    assert {text[19] for text in made} == set("89ab")


@given(st.integers(0, 2**48 - 1))
def test_a_uuid7_holds_its_time(now_ms: int) -> None:
    """Every one is a canonical UUIDv7 whose first 48 bits are the time, so that they sort by it."""
    first, second = uuid7(now_ms), uuid7(now_ms)
    assert first != second
    parsed = uuid.UUID(first)
    assert (str(parsed), parsed.variant) == (first, uuid.RFC_4122)
    assert parsed.int >> 80 == now_ms
    assert first[14] == "7"
