"""Limits by cgroup, version 1 or 2, whichever has the controller: made, joined, read and removed."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MEMORY_BYTES: Final = 512 << 20
PROCESSES: Final = 256
_PREFIX: Final = "secret-sidecar-"
_PATIENCE_S: Final = 5.0
_FILES: Final = {
    ("memory", 1): ("memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.failcnt"),
    ("memory", 2): ("memory.max", "memory.peak", "memory.events"),
    ("pids", 1): ("pids.max", "", "pids.events"),
    ("pids", 2): ("pids.max", "pids.peak", "pids.events"),
}
"""Of each controller and version: the files of limit, peak (empty: there is none) and what met the limit."""


class NoLimit(Exception):
    """A limit cannot be had here. Its text says why."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One controller's group with its limit set."""

    controller: str
    version: int
    directory: str

    def _path(self, which: int) -> Path:
        return Path(self.directory) / _FILES[self.controller, self.version][which]

    @property
    def procs(self) -> str:
        """The file to which a process writes 0 to join."""
        return str(Path(self.directory) / "cgroup.procs")

    @property
    def value(self) -> int:
        """The limit in force, in bytes or processes."""
        return int(self._path(0).read_text(encoding="ascii"))

    @property
    def peak_file(self) -> str:
        """The name of the file with the peak, empty when there is none."""
        return _FILES[self.controller, self.version][1]

    def peak(self) -> int | None:
        """The most that was ever used, None where the kernel does not tell."""
        try:
            return int(self._path(1).read_text(encoding="ascii")) if self.peak_file else None
        except OSError:
            return None

    def met(self) -> int:
        """How often the limit was met."""
        words = self._path(2).read_text(encoding="ascii").split()
        if len(words) == 1:
            return int(words[0])
        return sum(int(n) for name, n in zip(words[::2], words[1::2], strict=True) if name in ("max", "oom"))


def _mounts() -> Iterator[tuple[str, set[str], Path]]:
    """Each cgroup file system: its kind, options and place."""
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            yield kind, set(options.split(",")), Path(before.split(" ")[4])


def _own(controller: str) -> str:
    """The group that we are in, by /proc/self/cgroup; empty controllers are version 2's."""
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.lstrip("/")
    return ""


def _parent(controller: str) -> tuple[int, Path]:
    for kind, options, place in _mounts():
        if kind == "cgroup" and controller in options:
            inside = place / _own(controller)
            return 1, inside if inside.is_dir() else place
    for kind, _, place in _mounts():
        if kind == "cgroup2" and controller in (place / "cgroup.controllers").read_text(encoding="ascii").split():
            with suppress(OSError):
                (place / "cgroup.subtree_control").write_text(f"+{controller}", encoding="ascii")
            if controller not in (place / "cgroup.subtree_control").read_text(encoding="ascii").split():
                raise NoLimit(f"cgroup version 2 has {controller}, but does not hand it to groups below {place}")
            return 2, place
    raise NoLimit(f"no cgroup file system has the controller {controller}")


def _sweep(parent: Path) -> None:
    """Remove what a run left that was killed with the one signal that cannot be caught."""
    for group in parent.glob(f"{_PREFIX}*-*"):
        pid = group.name.removeprefix(_PREFIX).partition("-")[0]
        if not os.path.exists(f"/proc/{pid}"):
            with suppress(OSError):
                group.rmdir()


def _make(controller: str, name: str, limit: int) -> Limit:
    version, parent = _parent(controller)
    _sweep(parent)
    made = Limit(controller, version, str(parent / name))
    try:
        os.makedirs(made.directory, exist_ok=True)
        made._path(0).write_text(str(limit), encoding="ascii")
    except OSError as error:
        _remove(made)
        raise NoLimit(f"the kernel refuses a group of {controller} ({error.strerror})") from None
    return made


def _remove(limit: Limit) -> None:
    end = time.monotonic() + _PATIENCE_S
    while os.path.isdir(limit.directory):
        try:
            os.rmdir(limit.directory)
        except OSError:
            # What was in it has been killed, and is gone in a moment.
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


@contextmanager
def limited(what: str) -> Iterator[tuple[list[Limit], list[str]]]:
    """Make the groups of memory and processes; give them, and why one cannot be had. Removed at the end."""
    name = f"{_PREFIX}{os.getpid()}-{what}"
    made: list[Limit] = []
    refused: list[str] = []
    try:
        for controller, limit in (("memory", MEMORY_BYTES), ("pids", PROCESSES)):
            try:
                made.append(_make(controller, name, limit))
            except NoLimit as why:
                refused.append(str(why))
        yield made, refused
    finally:
        for each in made:
            _remove(each)
