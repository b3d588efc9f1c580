"""A file system that answers until it is told not to: FUSE, spoken by hand, in a process of its own. Root only.

A process must not wait for a file system that it serves itself (it could not even be killed), hence the own process:
`python -m tests.kit.fuse POINT NAME...` mounts, prints `ready` and serves one read-only directory of files. A line
`hang` on stdin stops it from taking requests, `serve` lets it go on. The end of stdin ends it.
"""

import os
import select
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.kit import mounting

_IN = struct.Struct("<IIQQIIII")
_OUT = struct.Struct("<IiQ")
_ATTR = struct.Struct("<6Q10I")
_ENTRY = struct.Struct("<4Q2I")
_INIT = struct.Struct("<4IHHIIHHI7I")
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _RELEASE, _INIT_OP, _FLUSH = 1, 2, 3, 14, 15, 18, 26, 25
_INTERRUPT, _BATCH_FORGET = 36, 42
_ENOENT, _ENOSYS = -2, -38
_REQUEST_BYTES = 1 << 17
_ROOT = 1


class HangingFiles:
    """The other process, seen from a test: mounted and serving from the start, ended with the block."""

    def __init__(self, point: Path, files: list[str]) -> None:
        """Mount on `point`; every file holds `value`. Skips the test where there is no FUSE to be had."""
        self.point = point
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.fuse", str(point), *files],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent.parent,
        )  # fmt: skip
        self._say()

    def hang(self) -> None:
        """Stop answering."""
        self._say("hang")

    def serve(self) -> None:
        """Answer again, also what was asked meanwhile."""
        self._say("serve")

    def _say(self, line: str = "") -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if line:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if answer == "refused\n":
            pytest.skip("no FUSE here: no /dev/fuse, or root may not mount")
        assert answer == "ready\n", "the file system's process failed"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Its end fails what still waits for it; then nothing holds the mount.
        self._process.kill()
        self._process.communicate()
        with suppress(OSError):
            while True:  # a test may have mounted more upon it
                mounting.unmount(self.point)


def _attributes(inode: int, size: int) -> bytes:
    mode = stat.S_IFDIR | 0o755 if inode == _ROOT else stat.S_IFREG | 0o440
    return _ATTR.pack(inode, size, 1, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def _answer(operation: int, node: int, body: bytes, names: list[str], value: bytes) -> bytes | int:
    """Return what answers a request, a negative errno for a refusal."""
    size = 0 if node == _ROOT else len(value)
    if operation == _INIT_OP:
        major, _, readahead, _ = struct.unpack_from("<4I", body)
        return _INIT.pack(major, 31, readahead, 0, 16, 12, 1 << 16, 1, 0, 0, 0, *[0] * 7)
    if operation == _LOOKUP:
        name = body.rstrip(b"\0").decode()
        if name not in names:
            return _ENOENT
        inode = _ROOT + 1 + names.index(name)
        return _ENTRY.pack(inode, 0, 0, 0, 0, 0) + _attributes(inode, len(value))
    if operation == _GETATTR:
        return struct.pack("<QII", 0, 0, 0) + _attributes(node, size)
    if operation == _OPEN:
        return struct.pack("<QII", 0, 0, 0)
    if operation == _READ:
        _, offset, length = struct.unpack_from("<QQI", body)
        return value[offset : offset + length]
    return b"" if operation in (_RELEASE, _FLUSH) else _ENOSYS


def _serve_one(device: int, names: list[str], value: bytes) -> None:
    request = os.read(device, _REQUEST_BYTES)
    _, operation, unique, node, *_ = _IN.unpack_from(request)
    if operation in (_FORGET, _BATCH_FORGET, _INTERRUPT):
        return
    answer = _answer(operation, node, request[_IN.size :], names, value)
    body = answer if isinstance(answer, bytes) else b""
    error = answer if isinstance(answer, int) else 0
    with suppress(FileNotFoundError):  # the asker was killed meanwhile
        os.write(device, _OUT.pack(_OUT.size + len(body), error, unique) + body)


def _requests(device: int) -> Iterator[None]:
    """Yield for every request to serve; obeys the lines of stdin."""
    hanging = False
    while True:
        waiting = [sys.stdin] if hanging else [sys.stdin, device]
        ready = select.select(waiting, [], [])[0]
        if sys.stdin in ready:
            line = sys.stdin.readline()
            if not line:
                return
            hanging = line == "hang\n"
            print("ready", flush=True)
        elif device in ready:
            yield


def main(point: str, names: list[str]) -> None:
    """Mount and serve until stdin ends."""
    try:
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        mounting.mount("hanging", point, "fuse", data=f"fd={device},rootmode=40755,user_id=0,group_id=0,allow_other")
    except (PermissionError, FileNotFoundError):
        print("refused", flush=True)
        return
    _serve_one(device, names, b"value")
    print("ready", flush=True)
    for _ in _requests(device):
        _serve_one(device, names, b"value")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
