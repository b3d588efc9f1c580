"""A publisher that is killed, or refused by the kernel, at its n-th system call: each n in turn, in its own process.

    python -m tests.kit.killing FOLDER BEFORE LAYOUT WAY [prune] [from-dir]

BEFORE is what the root holds: `empty`, `linked` or `flat`. WAY is `kill` (SIGKILL before the call; a write has done
half its work) or what the kernel answers instead of doing it: `ENOSPC`, `EACCES`, `EIO`. Prints one line of JSON: a
list of {"call", "seen", "fourth", "again", "gone", "left"}: the call, what a reader has afterwards (`old`, `new`,
`mixed`, `torn`, `none`), what it has of the value that is not published now, both again after the next run, and what
that run left over.
"""

import errno
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from provider.memory import BufferPool
from provider.mounted import MountedFiles
from provider.outcomes import Refused
from provider.refs import SecretRef
from sidecar.publish import How, Inputs, Source, Unpublished, publish, read_directory
from tests.kit.authority import authority_for, secret
from tests.kit.inline import finish

REFS = [secret(f"name-{number}") for number in range(3)]
KEPT = secret("kept")
CALLS = (
    "open",
    "mkdir",
    "write",
    "fchown",
    "fchmod",
    "utime",
    "fsync",
    "symlink",
    "rename",
    "unlink",
    "rmdir",
    "close",
)
LOOKS = ("listdir", "readlink", "stat", "lstat", "readv")
REFUSED = 9


def write_sources(folder: Path, mark: str, refs: list[SecretRef]) -> list[Source]:
    """Write a value for each ref, all beginning with `mark`, and return them as sources of a manifest."""
    sources = []
    for ref in refs:
        path = folder / f"{mark}-{ref.name}"
        path.write_text(f"{mark}-{ref.name}")
        sources.append(Source(ref.file_name, ref.name, str(path), ref=ref))
    return sources


def write_directory(folder: Path, refs: list[SecretRef]) -> list[Source]:
    """Write a new value for each ref into a directory of files that are named by hash; return them as its sources."""
    folder.mkdir()
    for ref in refs:
        (folder / ref.file_name).write_text(f"new-{ref.name}")
    sources, faults = read_directory(str(folder))
    assert not faults
    return sources


def seen(root: Path, refs: list[SecretRef]) -> str:
    """Return what a reader of these refs has: `old`, `new`, `mixed`, or `none`."""
    try:
        with finish(MountedFiles(str(root), BufferPool()).resolve(authority_for(refs), 0.0)) as batch:
            marks = set()
            for index, ref in enumerate(refs):
                with batch.value(index) as value:
                    mark, _, rest = bytes(value).decode().partition("-")
                    marks.add(mark if rest == ref.name else "torn")
    except Refused:
        return "none"
    if "torn" in marks:
        return "torn"
    return marks.pop() if len(marks) == 1 else "mixed"


def leftovers(root: Path) -> list[str]:
    """Return the names in a root that neither a reader nor a link needs."""
    data = os.readlink(root / "..data") if (root / "..data").is_symlink() else ""
    return sorted(name for name in os.listdir(root) if name.startswith("..") and name not in ("..data", data))


class Saboteur:
    """Stands before the system calls of this process and strikes at the n-th."""

    def __init__(self, strike_at: int, way: str, log: int) -> None:
        self.count, self.strike_at, self.way, self.log = 0, strike_at, way, log
        self.whole = {name: getattr(os, name) for name in (*CALLS, *LOOKS)}
        for name in self.whole:
            setattr(os, name, self._before(name))

    def _before(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and isinstance(args[0], str) and args[0].startswith("/proc/"):
                return self.whole[name](*args, **kwargs)
            self.count += 1
            if self.count == self.strike_at:
                self.whole["write"](self.log, name.encode())
                if self.way != "kill":
                    if name == "close":
                        self.whole[name](*args)
                    number = getattr(errno, self.way)
                    raise OSError(number, os.strerror(number))
                if name == "write":
                    self.whole[name](args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return self.whole[name](*args, **kwargs)

        return call


def attempt(root: Path, sources: list[Source], how: How, strike_at: int, way: str) -> str | None:
    """Publish in a child that is struck; return the call, None when it came to its end unharmed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        Saboteur(strike_at, way, writing)
        code = 0
        try:
            with Inputs(sources) as inputs:
                publish(str(root), inputs, how)
        except (OSError, Unpublished):
            code = REFUSED
        os._exit(code)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reading) as log:
        call = log.read()
    if not call:
        assert status == 0, status
        return None
    assert os.WTERMSIG(status) == signal.SIGKILL if way == "kill" else os.WIFEXITED(status)
    return call


def main(folder: Path, before: str, layout: str, way: str, options: list[str]) -> None:
    """Strike at every call and print what was seen."""
    old = write_sources(folder, "old", [*REFS, KEPT])
    new = write_directory(folder / "new", REFS) if "from-dir" in options else write_sources(folder, "new", REFS)
    how = How("flat" if layout == "flat" else "linked", gid=os.getegid(), prune="prune" in options)
    results = []
    strike_at = 0
    while True:
        strike_at += 1
        root = folder / "root"
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(0o755)
        if before != "empty":
            with Inputs(old) as inputs:
                publish(str(root), inputs, How("flat" if before == "flat" else "linked"))
        call = attempt(root, new, how, strike_at, way)
        result: dict[str, Any] = {"call": call, "seen": seen(root, REFS), "fourth": seen(root, [KEPT])}
        with Inputs(new) as inputs:
            publish(str(root), inputs, how)
        result |= {"again": seen(root, REFS), "gone": seen(root, [KEPT]), "left": leftovers(root)}
        if call is None:
            break
        results.append(result)
    print(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5:])
