"""Writes values into a root, by rename alone, so that a reader meets the old ones or the new ones.

Linked: all values go into a new directory; one rename of the link `..data` puts them in force together. Flat: once
all are on disk each file is renamed into place by itself. Whatever a killed publisher left is cleaned by the next one,
under the lock.
"""

import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from provider.limits import BUNDLE_BYTES
from provider.memory import BufferPool
from sidecar.publish.manifest import HASH
from sidecar.publish.sources import BadValue, Inputs, value_finding, value_of
from sidecar.publish.target import DATA, DIRECTORY, NEW, STAGED, State, Unpublished, data_target, locked, look, taken

_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_DIRECTORY_MODES: Final = {0o440: 0o750, 0o400: 0o700}


@dataclass(frozen=True, slots=True)
class How:
    """How values are written."""

    layout: Literal["linked", "flat"] = "linked"
    mode: int = 0o440
    """Of each file: 0440, or 0400 for the owner alone."""
    gid: int | None = None
    """The files' group; None: as the kernel gives it."""
    prune: bool = False
    """Drop every name that is not published now; otherwise its value is kept. Linked: with this mode and group, too."""
    drop: frozenset[str] = frozenset()
    """Names to drop in any case."""


@dataclass(frozen=True, slots=True)
class Published:
    """What is in force now."""

    layout: str
    generation: str | None
    """The directory's name; None in the flat layout."""
    written: int
    kept: int
    dropped: tuple[str, ...]


def publish(path: str, inputs: Inputs, how: How) -> Published:
    """Write the values of `inputs` into the root at `path`; waits while another publisher has it.

    Raises Unpublished, with nothing written, when a value is faulty, also one that is only kept, a directory has the
    name of one, or `..data` is not a projector's. Raises OSError when the file system refuses: before the switch the
    old generation stands, after it the new one is in force, and the next run tidies.
    """
    with locked(path) as root:
        state = look(root)
        published = {source.file_name for source in inputs.sources}
        names = () if how.prune else state.names
        kept = [name for name in names if name not in published and name not in how.drop]
        faults = taken(root, published.union(kept))
        if faults:
            raise Unpublished(faults)
        with _origin(root, state) as origin:
            if how.layout == "linked" or state.generation is not None:
                _judge_kept(inputs.pool, origin, kept)
            for name in state.stale:
                _remove(root, name)
            generation = None
            if how.layout == "linked":
                generation = _linked(root, inputs, how, origin, kept)
            else:
                _flat(root, inputs, how, origin, None if state.generation is None else kept)
        stay = published.union(kept)
        _drop(root, stay)
        os.fsync(root)
        if state.generation is not None:
            _remove(root, state.generation)
            os.fsync(root)
        dropped = tuple(name for name in state.names if name not in stay)
        return Published(how.layout, generation, len(published), len(kept), dropped)


@contextmanager
def _origin(root: int, state: State) -> Iterator[int]:
    """Give the directory whose files are in force; the root where `..data` dangles, for then none are."""
    if state.generation is None or not state.names:
        yield root
        return
    directory = os.open(state.generation, DIRECTORY, dir_fd=root)
    try:
        yield directory
    finally:
        os.close(directory)


def _judge_kept(pool: BufferPool, origin: int, kept: Sequence[str]) -> None:
    faults = []
    for name in kept:
        try:
            with _kept_value(pool, origin, name):
                pass
        except BadValue as bad:
            faults.append(value_finding(bad.code, name))
    if faults:
        raise Unpublished(faults)


@contextmanager
def _kept_value(pool: BufferPool, origin: int, name: str) -> Iterator[memoryview]:
    descriptor = os.open(name, _READ, dir_fd=origin)
    try:
        with value_of(pool, descriptor, BUNDLE_BYTES) as view:
            yield view
    finally:
        os.close(descriptor)


def _values(inputs: Inputs, origin: int, kept: Sequence[str], write: "_Write") -> None:
    """Write every value. Raises Unpublished for one that is faulty now, although it was good before."""
    where = ""
    try:
        for source in inputs.sources:
            where = source.where
            with inputs.value(source) as view:
                write(source.file_name, view, _since(inputs.pool, origin, source.file_name, view))
        for name in kept:
            where = name
            with _kept_value(inputs.pool, origin, name) as view:
                write(name, view, os.stat(name, dir_fd=origin).st_mtime_ns)
    except BadValue as bad:
        raise Unpublished([value_finding(bad.code, where)]) from None


def _since(pool: BufferPool, origin: int, name: str, view: memoryview) -> int | None:
    """Return since when this very value is in force, None when it is new: retention counts a value's age."""
    try:
        status = os.stat(name, dir_fd=origin, follow_symlinks=False)
        if status.st_size != len(view) or not stat.S_ISREG(status.st_mode):
            return None
        with _kept_value(pool, origin, name) as before:
            return status.st_mtime_ns if before == view else None
    except (OSError, BadValue):
        return None


class _Write:
    """Writes files into one directory, each whole and on disk; `prefix` stands before their names."""

    def __init__(self, directory: int, how: How, prefix: str = "") -> None:
        self._directory = directory
        self._how = how
        self._prefix = prefix

    def __call__(self, name: str, view: memoryview, since_ns: int | None) -> None:
        descriptor = os.open(f"{self._prefix}{name}", _CREATE, 0o600, dir_fd=self._directory)
        try:
            done = 0
            while done < len(view):
                with view[done:] as rest:
                    done += os.write(descriptor, rest)
            if self._how.gid is not None:
                os.fchown(descriptor, -1, self._how.gid)
            os.fchmod(descriptor, self._how.mode)
            if since_ns is not None:
                os.utime(descriptor, ns=(since_ns, since_ns))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _linked(root: int, inputs: Inputs, how: How, origin: int, kept: Sequence[str]) -> str:
    generation = f"..gen-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
    try:
        os.mkdir(generation, 0o700, dir_fd=root)
        directory = os.open(generation, DIRECTORY, dir_fd=root)
        try:
            _values(inputs, origin, kept, _Write(directory, how))
            if how.gid is not None:
                os.fchown(directory, -1, how.gid)
            os.fchmod(directory, _DIRECTORY_MODES[how.mode])
            os.fsync(directory)
        finally:
            os.close(directory)
        _link(root, generation, DATA, STAGED)
    except BaseException:
        if data_target(root) != generation:
            for name in (STAGED, generation):
                with suppress(OSError):  # the first failure is the one to tell; the next run cleans
                    _remove(root, name)
        raise
    os.fsync(root)
    for name in sorted({source.file_name for source in inputs.sources}.union(kept)):
        if _target(root, name) != f"{DATA}/{name}":
            _link(root, f"{DATA}/{name}", name, f"{NEW}{name}")
    return generation


def _flat(root: int, inputs: Inputs, how: How, origin: int, kept: Sequence[str] | None) -> None:
    """Write all files, then rename each. `kept`: what a linked root must keep; it becomes flat when its `..data` goes.

    What is refused while they are written, a full disk above all, leaves every value as it was.
    """
    try:
        _values(inputs, origin, kept or (), _Write(root, how, NEW))
        for name in sorted({source.file_name for source in inputs.sources}.union(kept or ())):
            os.rename(f"{NEW}{name}", name, src_dir_fd=root, dst_dir_fd=root)
    except BaseException:
        for name in os.listdir(root):
            if name.startswith(NEW):
                with suppress(OSError):
                    _remove(root, name)
        raise
    os.fsync(root)
    if kept is not None:
        os.unlink(DATA, dir_fd=root)
        os.fsync(root)


def _link(root: int, target: str, name: str, staged: str) -> None:
    os.symlink(target, staged, dir_fd=root)
    os.rename(staged, name, src_dir_fd=root, dst_dir_fd=root)


def _target(root: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=root)
    except OSError:
        return None


def _drop(root: int, stay: set[str]) -> None:
    """Remove names that are not in force any more; what is none of ours stays."""
    for name in os.listdir(root):
        if name in stay or name.startswith(".."):
            continue
        through = _target(root, name) == f"{DATA}/{name}"
        if through or (HASH.fullmatch(name) and not stat.S_ISDIR(os.lstat(name, dir_fd=root).st_mode)):
            os.unlink(name, dir_fd=root)


def _remove(root: int, name: str) -> None:
    """Remove a file, a link, or a directory and what it holds."""
    try:
        directory = os.open(name, DIRECTORY, dir_fd=root)
    except FileNotFoundError:
        return
    except OSError:
        os.unlink(name, dir_fd=root)
        return
    try:
        for entry in os.listdir(directory):
            os.unlink(entry, dir_fd=directory)
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=root)
