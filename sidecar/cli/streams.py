"""The standard streams, made safe before a command runs and brought to an end after it (contract 9)."""

import io
import os
import sys
from contextlib import suppress
from typing import Final

from sidecar.cli.common import Exit

_STREAMS: Final = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def secure() -> None:
    """Put `/dev/null` where a standard stream is closed, and let text that an encoding lacks be escaped.

    Otherwise the next file or socket of ours would get the number, and become the standard input or output of
    whatever uses it: events would be written into the store.
    """
    for descriptor, (name, mode) in enumerate(_STREAMS):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free number is given, so this one is; children inherit it as any standard stream.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            setattr(sys, name, os.fdopen(descriptor, mode, closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def finish(code: int) -> int:
    """Write out what is left and return the exit code: `code`, or 1 when the output could not be written.

    What cannot be told on standard error is not told; the code stays.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        code = failed(error)
    try:
        sys.stderr.flush()
    except OSError:
        _give_up(sys.stderr.fileno())
    return code


def failed(error: OSError) -> int:
    """Tell what the system refused, unless it is that the reader of our output has gone, and return the exit code."""
    # The interpreter flushes once more when it ends, and has an exit code of its own for a failure then.
    _give_up(sys.stdout.fileno())
    if not isinstance(error, BrokenPipeError):
        mend = "Look at where the output goes, and at this user's rights."
        with suppress(OSError):
            print(f"secret-sidecar: The system refused ({error.strerror}). {mend}", file=sys.stderr)
    return int(Exit.FAILED)


def _give_up(descriptor: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(null, descriptor)
    os.close(null)
