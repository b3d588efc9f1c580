"""Searching another process's memory from outside for a needle, as root or inside a user namespace.

Values under test are one random needle of 16 characters, repeated. A freed block loses its first words to the allocator
and a cut one its end, so a search for the whole value would find nothing: the needle itself is counted. A caller who
wants smaller pieces searches for `needle[:8]`. `tests/kit/leaky.py` has twins which show that a scan can fail.

A process that is not dumpable hides its memory from its own ordinary user. Inside `unshare -r` scanner and target see
each other, provided that both were started inside: `run_inside` starts a module of the tests so, which starts the
target, scans it and prints one line of JSON.
"""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NEEDLE_BYTES = 16
_CHUNK = 16 << 20


def new_needle() -> bytes:
    """Return 16 random characters which stand nowhere else."""
    return secrets.token_hex(NEEDLE_BYTES // 2).encode()


def filled(needle: bytes, size: int) -> bytes:
    """Return a value of `size` bytes: the needle again and again."""
    return (needle * (size // len(needle) + 1))[:size]


def scan(pid: int, needle: bytes) -> int:
    """Count the needle in every readable private mapping of a process: heap, stacks, anonymous memory, written data.

    Raises PermissionError when this process may not look, and ProcessLookupError when there is no such process.
    """
    count = 0
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        regions = list(_regions(pid))
        for start, end in regions:
            count += _count(memory.fileno(), start, end, needle)
    if not regions:
        raise ProcessLookupError(pid)
    return count


def _regions(pid: int) -> Iterator[tuple[int, int]]:
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, permissions, *rest = line.split(maxsplit=5)
        # The kernel's own pages cannot be read this way and hold nothing of the process.
        if permissions[0] == "r" and permissions[3] == "p" and not (rest[3:] and rest[3].startswith("[v")):
            start, end = span.split("-")
            yield int(start, 16), int(end, 16)


def _count(memory: int, start: int, end: int, needle: bytes) -> int:
    count = 0
    rest = b""
    while start < end:
        try:
            data = os.pread(memory, min(_CHUNK, end - start), start)
        except OSError:
            break  # unmapped or guarded since the map was read
        if not data:
            break
        window = rest + data
        count += window.count(needle)
        start += len(data)
        tail = len(needle) - 1
        # What was counted already must not be counted again across the seam.
        rest = b"" if window.endswith(needle) else window[-tail:]
    return count


def inside() -> list[str]:
    """Return what a command must begin with so that its processes may look into each other."""
    return [] if os.geteuid() == 0 else ["unshare", "-r", "--"]


def require_scanning() -> None:
    """Skip the test, saying why, where an ordinary user may not make the namespace that scanning needs."""
    if os.geteuid() == 0:
        return
    with suppress(OSError):
        if subprocess.run([*inside(), "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
            return
    pytest.skip("needs root or `unshare -r`: user namespaces are not permitted here")


def run_inside(module: str, *arguments: str, timeout: float = 100.0) -> Any:
    """Run a module of the tests where it may scan, and return the JSON of its last line; its stderr passes through."""
    require_scanning()
    done = subprocess.run(
        [*inside(), sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{module} ended with {done.returncode}: {done.stdout.decode()}"
    return json.loads(done.stdout.splitlines()[-1])
