"""provider/base64url.py: unpadded base64url."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provider import base64url


@given(st.binary(max_size=200))
def test_writes_what_the_standard_library_writes(data: bytes) -> None:
    """The text is RFC 4648 base64url without padding, and reads back."""
    text = base64url.encode(data)
    assert text == base64.urlsafe_b64encode(data).rstrip(b"=")
    assert base64url.decode(text) == data


def test_every_sextet_has_its_character() -> None:
    """All 64 characters of the alphabet are written and read back, `-` and `_` among them."""
    data = bytes((a << 2 | b >> 4) & 255 for a in range(64) for b in (0, 48))
    assert base64url.decode(base64url.encode(data)) == data
    assert b"-" in base64url.encode(bytes([0xF8])) and b"_" in base64url.encode(bytes([0xFC]))


@pytest.mark.parametrize("text", [b"A", b"AAAAA", b"A" * 41])
def test_refuses_a_length_that_no_bytes_encode_to(text: bytes) -> None:
    """One character over a multiple of four is no base64."""
    with pytest.raises(ValueError, match="base64"):
        base64url.decode(text)


def test_drops_stray_bits() -> None:
    """Bits after the last byte are not judged here: who needs the canonical text compares it."""
    assert base64url.decode(b"AB") == base64url.decode(b"AA") == b"\0"
