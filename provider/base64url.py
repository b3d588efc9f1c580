"""Unpadded base64url, between bytes and bytes. Only alphabets are translated here; what is canonical, callers judge."""

from binascii import a2b_base64, b2a_base64
from typing import Final

_TO_STANDARD: Final = bytes.maketrans(b"-_", b"+/")
_TO_URLSAFE: Final = bytes.maketrans(b"+/", b"-_")


def encode(data: bytes) -> bytes:
    """Write `data` without padding."""
    return b2a_base64(data, newline=False).rstrip(b"=").translate(_TO_URLSAFE)


def decode(text: bytes) -> bytes:
    """Read signs of the alphabet; others are passed over, and stray bits of the last one dropped.

    A caller to whom that matters has matched the text before, or compares it with what `encode` makes of the result.
    Raises ValueError, which may hold the text's length, for a length that no bytes encode to.
    """
    # Decoding stops at the padding, so that two signs are enough for every length and none too many.
    return a2b_base64(text.translate(_TO_STANDARD) + b"==")
