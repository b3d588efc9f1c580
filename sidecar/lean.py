"""What a process that only serves need not carry (docs/performance.md, memory).

Both save a little memory in each replica; the second a twentieth of the time until ready, too.
"""

import ctypes
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

_M_ARENA_MAX: Final = -8


def keep_one_heap() -> None:
    """Let every thread allocate from one heap.

    The C library gives each thread a heap of its own, which keeps what it once had; our threads allocate little. For
    use before the first thread. Does nothing where the C library knows no such thing.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


@contextmanager
def without_system_authorities() -> Iterator[None]:
    """Import under this what makes contexts for TLS clients when it is imported, as aiohttp does.

    They are made without the system's authorities, which a server never asks: whoever used such a context by mistake
    would trust nobody. For the only thread of a process.
    """
    # The method is the C class's; one of its subclass hides it for a while.
    ssl.SSLContext.set_default_verify_paths = _set_none  # type: ignore[method-assign]
    try:
        yield
    finally:
        del ssl.SSLContext.set_default_verify_paths


def _set_none(self: ssl.SSLContext) -> None:
    """Stands in for `SSLContext.set_default_verify_paths`."""
