"""Mode `stdin`: the command's standard input is `{"NAME":"value",...}`, a newline, and the end.

The whole document lies in a pipe before the command starts, so nobody has to feed it, and what was read is gone. The
command has no other standard input.
"""

import fcntl
import os
from typing import Final

from provider import wire
from provider.memory import MAX_BUFFER_BYTES, BufferPool
from sidecar.cli.common import Exit, Fault
from sidecar.inject import Injection, Values

_TAIL: Final = b"}\n"


class StandardInput(Injection):
    """Writes the document into a pipe that is as large as it."""

    def __init__(self) -> None:
        self._reader: int | None = None

    def fill(self, values: Values) -> None:
        """Write the document from one wipeable buffer (escapes as in contract 3)."""
        heads = [f'{"," if number else "{"}"{name}":"'.encode() for number, (name, _) in enumerate(values)]
        size = len(_TAIL) + sum(
            len(head) + wire.escaped_length(value) + 1 for head, (_, value) in zip(heads, values, strict=True)
        )
        if size > MAX_BUFFER_BYTES:
            raise Fault(Exit.TARGET_REFUSED, "The values are too large for a pipe.", "Use another --inject mode.")
        self._reader, writer = os.pipe()
        with BufferPool(0).take(size) as buffer:
            at = 0
            for head, (_, value) in zip(heads, values, strict=True):
                buffer.view[at : at + len(head)] = head
                at = wire.put_escaped(buffer.view, at + len(head), value)
                buffer.view[at : at + 1] = b'"'
                at += 1
            buffer.view[at:] = _TAIL
            try:
                if size > fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ):
                    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, size)
                # All of it or an error: a write that waited would wait for a command that is not there yet.
                os.set_blocking(writer, False)
                written = os.write(writer, buffer.view)
            except OSError:
                written = 0
            finally:
                os.close(writer)
        if written < size:
            mend = "Use another --inject mode, or raise fs.pipe-max-size."
            raise Fault(Exit.TARGET_REFUSED, "The kernel allows no pipe of that size.", mend)

    def child(self) -> None:
        """Make the pipe the standard input."""
        assert self._reader is not None
        os.dup2(self._reader, 0)

    def forked(self) -> None:
        """Close ours; the stage has its own."""
        self.close()

    def close(self) -> None:
        """As `Injection`."""
        reader, self._reader = self._reader, None
        if reader is not None:
            os.close(reader)
