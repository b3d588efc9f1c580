"""What asyncio's TLS transport does not offer in public: what the peer has not taken yet, and plaintext left behind."""

import asyncio
import fcntl
import socket
import struct
import termios
from contextlib import suppress
from typing import Final, cast

_RESET: Final = struct.pack("ii", 1, 0)


def untaken(transport: asyncio.Transport) -> int:
    """Return how many bytes of our answers the peer's kernel has not acknowledged (ciphertext, kernel included)."""
    waiting = unsent(transport)
    connection = transport.get_extra_info("socket")
    if connection is None:
        return waiting
    try:
        queued = struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"))[0]
    except (OSError, ValueError):  # the socket is closed: nobody will take more
        return waiting
    return waiting + cast(int, queued)


def unsent(transport: asyncio.Transport) -> int:
    """Return how many ciphertext bytes still wait in this process; once 0, the kernel delivers the rest by itself."""
    raw = transport._ssl_protocol._transport  # type: ignore[attr-defined]  # no public way from a TLS transport to its socket's
    return 0 if raw is None else cast(int, raw.get_write_buffer_size())


def plaintext_left(transport: asyncio.Transport) -> bool:
    """Tell whether TLS still holds a view of our plaintext, which happens only when its engine has failed."""
    return bool(transport._ssl_protocol._write_backlog)  # type: ignore[attr-defined]


def reset(transport: asyncio.Transport) -> None:
    """End the connection at once and drop what the kernel still holds of our answers; the peer sees a reset."""
    connection = transport.get_extra_info("socket")
    if connection is not None:
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()
