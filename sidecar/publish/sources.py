"""Where values come from: files and standard input, read into wipeable memory and judged there (contract 3 and 7).

Files are read twice: once to find every fault before anything is written, once when they are written. So one value is
in memory at a time, whatever their number.
"""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from provider.limits import BUNDLE_BYTES, VALUE_BYTES
from provider.material import is_text
from provider.memory import Buffer, BufferPool
from provider.refs import SecretRef
from sidecar.findings import Finding

STDIN: Final = 0
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_NUL: Final = re.compile(rb"\0")
_CAUSES: Final = {
    "value_empty": ("the value is empty", "Write the value, or leave the secret out."),
    "value_too_large": ("the value is over {limit} bytes", "Shorten it; one value of a bundle may have 98304 bytes."),
    "value_nul": ("the value holds a NUL", "Encode it, for example with base64; values are text."),
    "value_not_utf8": ("the value is not UTF-8", "Encode it, for example with base64; values are text."),
    "source_unreadable": ("the file cannot be read", "Look at its name and at this user's rights."),
    "source_not_regular": ("the source is no regular file", "Name a file, or give the value on standard input."),
}


class BadValue(Exception):
    """A value that is never published. `code` says why; nothing of the value is held."""

    def __init__(self, code: str) -> None:
        """`code` is one of the table above."""
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class Source:
    """One value to publish: the name of its file, its place in the input, and where it comes from."""

    file_name: str
    where: str
    path: str | None
    """None: standard input."""
    limit: int = VALUE_BYTES
    ref: SecretRef | None = None
    """None where only the file's name is known."""
    held: Buffer | None = None
    """A buffer that is filled by the value, in place of a path; its owner releases it."""


@contextmanager
def value_of(pool: BufferPool, descriptor: int, limit: int) -> Iterator[memoryview]:
    """Read a descriptor to its end and give a view of the value; leaving wipes it. Raises BadValue."""
    with _read(pool, descriptor, limit) as (buffer, length), buffer.view[:length] as view:
        code = fault_of(view, limit)
        if code is not None:
            raise BadValue(code)
        yield view


def fault_of(view: memoryview, limit: int) -> str | None:
    """Return the code of what is wrong with a value, None when nothing is."""
    if not len(view):
        return "value_empty"
    if len(view) > limit:
        return "value_too_large"
    if is_text(view):
        return None
    return "value_nul" if _NUL.search(view) else "value_not_utf8"


@contextmanager
def _read(pool: BufferPool, descriptor: int, limit: int) -> Iterator[tuple[Buffer, int]]:
    """Read at most one byte more than the limit."""
    with pool.take(limit + 1) as buffer:
        length = 0
        while length <= limit:
            with buffer.view[length:] as room:
                try:
                    count = os.readv(descriptor, (room,))
                except OSError:
                    raise BadValue("source_unreadable") from None
            if not count:
                break
            length += count
        yield buffer, length


class Inputs:
    """The sources of one publication and the memory that their values pass through. Leaving wipes."""

    def __init__(self, sources: Sequence[Source], stdin: int = STDIN) -> None:
        """Take the sources; nothing is read yet. `stdin` is a descriptor."""
        self.sources = tuple(sources)
        self.pool = BufferPool()
        self._stdin = stdin
        self._kept: tuple[Buffer, int] | None = None

    def check(self) -> list[Finding]:
        """Read every value and return what keeps any from being published, and a warning for each over 16 KiB."""
        found = []
        for source in self.sources:
            try:
                with self.value(source) as view:
                    size = len(view)
            except BadValue as bad:
                found.append(value_finding(bad.code, source.where, source.limit))
                continue
            if source.ref is None and size > VALUE_BYTES:
                found.append(large_finding(source.where))
        return found

    @contextmanager
    def value(self, source: Source) -> Iterator[memoryview]:
        """Give a view of a value, read now; standard input, which is there once, is kept. Raises BadValue."""
        if source.held is not None:
            with source.held.view[:] as view:
                yield view
            return
        if source.path is None:
            if self._kept is None:
                with _read(self.pool, self._stdin, source.limit) as (buffer, length):
                    kept = self.pool.take(source.limit + 1)
                    kept.view[:length] = buffer.view[:length]
                    self._kept = (kept, length)
            with self._kept[0].view[: self._kept[1]] as view:
                code = fault_of(view, source.limit)
                if code is not None:
                    raise BadValue(code)
                yield view
            return
        descriptor = _opened(source.path)
        try:
            with value_of(self.pool, descriptor, source.limit) as view:
                yield view
        finally:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._kept is not None:
            self._kept[0].release()
            self._kept = None


def _opened(path: str) -> int:
    try:
        descriptor = os.open(path, _READ)
    except (OSError, ValueError):
        raise BadValue("source_unreadable") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BadValue("source_not_regular")
    return descriptor


def value_finding(code: str, where: str, limit: int = BUNDLE_BYTES) -> Finding:
    """Return the finding for a value that is never published or delivered."""
    cause, mend = _CAUSES[code]
    return Finding(code, where, cause.format(limit=limit), mend)


def large_finding(where: str) -> Finding:
    """Return the warning for a value that only a bundle may have."""
    cause = f"the value is over {VALUE_BYTES} bytes"
    return Finding("value_large", where, cause, "It is delivered only as a bundle; otherwise shorten it.", "warning")
