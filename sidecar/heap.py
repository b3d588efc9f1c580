"""How the C library takes memory from the kernel: large pieces each by itself, and given back when they are free."""

import ctypes
from typing import Final

LARGE_BYTES: Final = 128 << 10
"""From this size on; glibc's own first choice."""
_M_MMAP_THRESHOLD: Final = -3


def give_back_large() -> None:
    """Keep glibc from raising that bound, as it does when it first frees a larger piece; elsewhere do nothing.

    Each read from the database asks for 256 KiB and keeps a few hundred bytes of them. Taken from the heap, such pieces
    leave holes between what stays: some 7 MiB after 10,000 deliveries.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
