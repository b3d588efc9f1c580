"""What every command shares: exit codes, faults a person can mend, argument types, private files, aligned output."""

import argparse
import json
import os
import re
import stat
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from enum import IntEnum
from typing import Any, Final, NoReturn


class Exit(IntEnum):
    """Exit codes of every command (contract 9)."""

    DONE = 0
    FAILED = 1
    USAGE = 64
    BAD_INPUT = 65
    INPUT_UNREADABLE = 66
    UNREACHABLE = 69
    UNEXPECTED_ANSWER = 70
    TARGET_REFUSED = 73
    LEASE_OVER = 75
    TLS = 76
    DENIED = 77
    CONFIGURATION = 78
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127


class Fault(Exception):
    """A failure to tell a person: what is wrong, how to mend it, and the exit code. Holds no secret."""

    def __init__(self, code: Exit, wrong: str, mend: str) -> None:
        """`wrong` and `mend` are whole sentences without a secret."""
        super().__init__(wrong)
        self.code = code
        self.wrong = wrong
        self.mend = mend


_UNKNOWN: Final = "unrecognized arguments: "
_EXPLICIT: Final = re.compile(r"ignored explicit argument .*", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """argparse with the contract's usage code: 64, never 2. A flag has one spelling: no abbreviations."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        """As argparse, with examples kept as written and no abbreviations."""
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]  # argparse's own 15 keywords, passed through

    def error(self, message: str) -> NoReturn:
        """Print usage and the message, without values that were given where none belongs, and leave with 64.

        Such a value may be a credential that was put after the wrong flag.
        """
        self.print_usage(sys.stderr)
        message = _EXPLICIT.sub("takes no value", message)
        if message.startswith(_UNKNOWN):
            words = message.removeprefix(_UNKNOWN).split(" ")
            flags = [word.partition("=")[0] for word in words if word.startswith("--")]
            message = _UNKNOWN + (" ".join(flags) or "more words than there may be")
        self.exit(Exit.USAGE, f"{self.prog}: {message}\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        # What cannot be said on standard error is not said, and the code stays: early versions of 3.11 raise here.
        with suppress(OSError) if file is sys.stderr else nullcontext():
            super()._print_message(message, file)


_DURATION: Final = re.compile(r"([1-9][0-9]{0,8})(ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(text: str) -> int:
    """Read `500ms`, `30s`, `10m`, `12h` or `90d` as milliseconds (argparse type)."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError("a duration is a whole number and ms, s, m, h or d, for example 10m")
    return int(match[1]) * _UNIT_MS[match[2]]


def write_private(path: str, content: bytes, *, replace: bool = False) -> None:
    """Write a file of mode 0600 that never exists half written: a new one, or in place of an old one by rename.

    Raises Fault(BAD_INPUT) when it exists and `replace` is false, and when it cannot be written.
    """
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "wb") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if replace:
                os.replace(temporary, path)
            else:
                os.link(temporary, path)
        finally:
            if os.path.lexists(temporary):
                os.unlink(temporary)
    except FileExistsError:
        raise Fault(
            Exit.BAD_INPUT, "The file to write exists already.", "Name a new file, or remove the old one first."
        ) from None
    except OSError as error:
        raise Fault(
            Exit.BAD_INPUT,
            f"The file could not be written ({error.strerror}).",
            "Check the folder, its permissions and the free space.",
        ) from None


def read_private(path: str, limit: int = 1 << 20) -> bytes:
    """Read a small file that nobody else may read.

    Raises Fault(INPUT_UNREADABLE) when it is missing, open to others or larger than `limit` bytes.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise Fault(
            Exit.INPUT_UNREADABLE,
            f"An input file could not be read ({error.strerror}).",
            "Check its name and that this user may read it.",
        ) from None
    with open(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise Fault(Exit.INPUT_UNREADABLE, "An input file is no regular file.", "Name the file itself.")
        if status.st_mode & 0o037:
            raise Fault(Exit.INPUT_UNREADABLE, "An input file is open to others.", "Set its mode with chmod 0600.")
        content = file.read(limit + 1)
    if len(content) > limit:
        raise Fault(Exit.INPUT_UNREADABLE, "An input file is too large.", f"It may have at most {limit} bytes.")
    return content


def print_table(rows: Sequence[Sequence[object]], header: Sequence[str] | None = None) -> None:
    """Print aligned columns; the header only for a person at a terminal."""
    shown = [[str(cell) for cell in row] for row in rows]
    if header is not None and sys.stdout.isatty():
        shown.insert(0, list(header))
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_json(document: object) -> None:
    """Print one JSON document and a newline, for a machine to read."""
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    print(json.dumps(document, ensure_ascii=not unicode, indent=2))


def tell(fault: Fault, prog: str) -> int:
    """Print a fault as one line to standard error and return its exit code."""
    with suppress(OSError):
        print(f"{prog}: {fault.wrong} {fault.mend}", file=sys.stderr)
    return int(fault.code)


def lines(items: Iterable[str]) -> str:
    """Join lines for an epilog."""
    return "\n".join(items)
