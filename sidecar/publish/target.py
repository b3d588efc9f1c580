"""The root that is written to: judged, locked, and what it holds now."""

import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from provider.rootfs import is_root_path
from sidecar.findings import Finding, quoted
from sidecar.publish.manifest import HASH

DATA: Final = "..data"
"""The link to the generation in force (contract 7)."""
STAGED: Final = "..data_tmp"
"""The link that is renamed over it."""
NEW: Final = "..new-"
"""What the names of single files begin with before they are renamed into place."""
GENERATION: Final = re.compile(r"\.\.gen-[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}")
"""Our directories; nothing else is ever cleaned away."""
DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Unpublished(Exception):
    """Nothing was written: findings say why."""

    def __init__(self, findings: list[Finding]) -> None:
        """Take the findings; none holds a value."""
        super().__init__("nothing was published")
        self.findings = findings


@dataclass(frozen=True, slots=True)
class State:
    """What the root holds."""

    generation: str | None
    """The directory that `..data` names; None in the flat layout."""
    names: tuple[str, ...]
    """The files in force, sorted: of that directory, or those of the root that are named by hash."""
    stale: tuple[str, ...]
    """What a killed publisher left."""


def judge_target(path: str) -> list[Finding]:
    """Return what keeps a root from being written to, and a warning when others may write to it too."""
    if not is_root_path(path):
        return [Finding("root_invalid", path, "the path cannot be a root", "Name a normal absolute path, not `/`.")]
    try:
        status = os.lstat(path)
    except OSError:
        mend = f"Make it: install -d -m 0750 {quoted(path)}"
        return [Finding("root_missing", path, "the root is not there, or cannot be reached", mend)]
    if stat.S_ISLNK(status.st_mode):
        return [Finding("root_link", path, "the root is a link", "Name the directory itself; links above it may be.")]
    if not stat.S_ISDIR(status.st_mode):
        return [
            Finding(
                "root_not_directory", path, "the root is no directory", f"Make it: install -d -m 0750 {quoted(path)}"
            )
        ]
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        mend = "Publish where the volume is mounted writable; readers keep their read-only mount."
        return [Finding("root_read_only", path, "the root lies on a read-only mount", mend)]
    if not os.access(path, os.W_OK | os.X_OK | os.R_OK, effective_ids=True):
        return [Finding("root_not_writable", path, "this user may not write to the root", "Run as the root's owner.")]
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        cause, mend = (
            "others than its owner may write to the root",
            f"chmod go-w {quoted(path)}, or mount it read-only.",
        )
        return [Finding("root_writable", path, cause, mend, "warning")]
    return []


@contextmanager
def locked(path: str) -> Iterator[int]:
    """Open the root and hold its lock, which the kernel drops with the process. Waits for another publisher.

    Raises OSError.
    """
    root = os.open(path, DIRECTORY)
    try:
        fcntl.flock(root, fcntl.LOCK_EX)
        yield root
    finally:
        os.close(root)


def look(root: int) -> State:
    """Return what the root holds now. Raises Unpublished for a `..data` that is none of a projector's, and OSError."""
    entries = os.listdir(root)
    generation = data_target(root)
    if generation is not None and (not generation.startswith("..") or "/" in generation or generation in ("..", DATA)):
        mend = "Look who made it, and remove it by hand; then publish again."
        raise Unpublished([Finding("data_foreign", DATA, "the link names no directory beside it", mend)])
    stale = sorted(name for name in entries if _is_ours(name) and name != generation)
    if generation is None:
        names = [name for name in entries if HASH.fullmatch(name) and _is_file(root, name)]
    else:
        names = _files(root, generation)
    return State(generation, tuple(sorted(names)), tuple(stale))


def taken(root: int, names: Iterable[str]) -> list[Finding]:
    """Return a finding for each name that a directory in the root has: no file can be renamed over it."""
    mend = "Look who made it, and remove it by hand; then publish again."
    found = []
    for name in sorted(names):
        with suppress(FileNotFoundError):
            if stat.S_ISDIR(os.lstat(name, dir_fd=root).st_mode):
                found.append(Finding("name_taken", name, "a directory has the name of a file", mend))
    return found


def data_target(root: int) -> str | None:
    """Return what `..data` names, None without it. Raises Unpublished when it is no link."""
    try:
        return os.readlink(DATA, dir_fd=root)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    mend = "Look who made it, and remove it by hand; then publish again."
    raise Unpublished([Finding("data_not_link", DATA, "it is no link", mend)])


def _files(root: int, generation: str) -> list[str]:
    try:
        directory = os.open(generation, DIRECTORY, dir_fd=root)
    except FileNotFoundError:
        return []  # it dangles: publishing mends that
    try:
        return [name for name in os.listdir(directory) if _is_file(directory, name)]
    finally:
        os.close(directory)


def _is_ours(name: str) -> bool:
    return name == STAGED or name.startswith(NEW) or GENERATION.fullmatch(name) is not None


def _is_file(directory: int, name: str) -> bool:
    return stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
