"""Messages of PostgreSQL's protocol that are sent ahead of one of the driver's, so that both make one round trip."""

import struct
from typing import Final

from sidecar.stores.postgres_sql import NAMES

_INT16: Final = struct.Struct("!h")
_INT32: Final = struct.Struct("!i")
_NONE: Final = _INT16.pack(0)
_EXECUTE: Final = b"E" + _INT32.pack(9) + b"\0" + _INT32.pack(0)
"""Execute the unnamed portal to its end."""


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
