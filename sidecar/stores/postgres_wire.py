"""Beneath the driver: messages sent ahead of its own, so that both make one round trip, and how much it reads."""

import struct
from typing import Any, Final

from sidecar.stores.postgres_sql import NAMES

_INT16: Final = struct.Struct("!h")
_INT32: Final = struct.Struct("!i")
_NONE: Final = _INT16.pack(0)
_EXECUTE: Final = b"E" + _INT32.pack(9) + b"\0" + _INT32.pack(0)
"""Execute the unnamed portal to its end."""


READ_BYTES: Final = 16 << 10
"""Most that is read from the server at once; an answer is some two kilobytes."""


def read_little(connection: Any) -> None:
    """Have a connection of asyncpg read at most READ_BYTES at once.

    asyncio allocates 256 KiB for each read, however little comes: more than all the rest that a read costs, and holes
    in the heap, of some 7 MiB after 10,000 deliveries.
    """
    transport = connection._transport
    for reader in (transport, getattr(transport, "_ssl_protocol", None)):
        if reader is not None:
            reader.max_size = READ_BYTES


def run(statement: str, *values: str) -> bytes:
    """Return Bind and Execute (protocol 3.0) for a prepared statement that returns no row, its values as text.

    No Sync is among them, so the server answers together with what is sent after, in the order it was sent, each
    statement seeing what was committed before it began; once one fails it runs none of the later ones.
    """
    parts = [b"\0", NAMES[statement].encode(), b"\0", _NONE, _INT16.pack(len(values))]
    for value in values:
        text = value.encode()
        parts += (_INT32.pack(len(text)), text)
    bind = b"".join((*parts, _NONE))
    return b"".join((b"B", _INT32.pack(len(bind) + 4), bind, _EXECUTE))
