"""Base64 from one buffer into another, so that an encoded value is as wipeable as the value (contract 3)."""

from typing import Final

_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_PAD: Final = ord("=")


def encoded_size(size: int) -> int:
    """Return how many characters `size` bytes become."""
    return (size + 2) // 3 * 4


def encode_into(value: memoryview, room: memoryview) -> None:
    """Write the standard Base64 of `value`, padded, into `room`, which has exactly `encoded_size` bytes.

    Byte by byte: numbers below 256 are the interpreter's own and leave nothing behind.
    """
    at = 0
    for start in range(0, len(value), 3):
        left = len(value) - start
        first = value[start]
        second = value[start + 1] if left > 1 else 0
        third = value[start + 2] if left > 2 else 0
        room[at] = _ALPHABET[first >> 2]
        room[at + 1] = _ALPHABET[(first & 3) << 4 | second >> 4]
        room[at + 2] = _ALPHABET[(second & 15) << 2 | third >> 6] if left > 1 else _PAD
        room[at + 3] = _ALPHABET[third & 63] if left > 2 else _PAD
        at += 4
