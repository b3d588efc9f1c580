"""What asyncio's TLS transport does not offer in public: what became of what was written, and holding the socket back.

Beneath a TLS transport lies the one of its socket, and a TLS transport does not know at once what happened to that.
"""

import asyncio
import asyncio.sslproto
import fcntl
import socket
import struct
import termios
from contextlib import suppress
from typing import Final, cast

READ_BYTES: Final = 32 << 10
"""Most ciphertext read at once, and the buffer for it that each connection has: two records of TLS, twice a head."""
_end: Final = asyncio.sslproto.SSLProtocol._on_handshake_complete
_RESET: Final = struct.pack("ii", 1, 0)


def read_little() -> None:
    """Have every TLS transport made from now on read at most READ_BYTES at once.

    asyncio's own 256 KiB are written with zeros for each connection, and a piece of memory as large is taken from the
    kernel for each read, however little comes.
    """
    asyncio.sslproto.SSLProtocol.max_size = READ_BYTES


def tell_refusals() -> None:
    """Have every TLS transport made from now on send the alert with which its handshake fails.

    asyncio closes the socket while the alert is still in its memory, and a client whose certificate is refused cannot
    tell that from a server that is not there.
    """
    asyncio.sslproto.SSLProtocol._on_handshake_complete = _ended  # type: ignore[method-assign]


def _ended(self: asyncio.sslproto.SSLProtocol, handshake_exc: BaseException | None) -> None:
    if handshake_exc is not None:
        self._process_outgoing()  # type: ignore[attr-defined]
    _end(self, handshake_exc)


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
    raw = _beneath(transport)
    return 0 if raw is None else raw.get_write_buffer_size()


def is_over(transport: asyncio.Transport) -> bool:
    """Tell whether nothing that is written will reach the peer: closed, or lost and not yet told of."""
    raw = _beneath(transport)
    return transport.is_closing() or raw is None or raw.is_closing()


def hold_back(transport: asyncio.Transport) -> None:
    """Read nothing more from the socket, so that the peer's bytes stay in the kernel. Its end is not noticed then."""
    raw = _beneath(transport)
    if raw is not None:
        raw.pause_reading()


def let_in(transport: asyncio.Transport) -> None:
    """Read from the socket again."""
    raw = _beneath(transport)
    if raw is not None and not raw.is_closing():
        raw.resume_reading()


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


def _beneath(transport: asyncio.Transport) -> asyncio.Transport | None:
    """Return the socket's transport, None once the connection is lost."""
    return cast("asyncio.Transport | None", transport._ssl_protocol._transport)  # type: ignore[attr-defined]
