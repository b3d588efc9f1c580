"""The memory scanner: what it finds, and that it can find."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.kit.leaky import leaky
from tests.kit.memscan import filled, inside, new_needle, require_scanning, run_inside, scan

SIZES = (64, 4096, 16384)


def held(needle: bytes, copies: int) -> int:
    """Scan a process that holds so many needles."""
    program = (
        f"import sys; v = sys.stdin.buffer.read({len(needle)}); w = v * {copies}; print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(needle)
        process.stdin.flush()
        process.stdout.readline()
        return scan(process.pid, needle)


def main() -> None:
    """Scan inside: what is held, and each twin at each size."""
    found = {"held": held(new_needle(), 1_000_000), "none": held_other()}
    for size in SIZES:
        needle = new_needle()
        file = Path(sys.argv[1]) / f"value-{size}"
        file.write_bytes(filled(needle, size))
        for kind in ("freed", "answer", "spawn"):
            with leaky(kind, file) as (pid, said):
                for _ in range(6 if kind == "answer" else 0):
                    with urllib.request.urlopen(f"http://127.0.0.1:{said['port']}/", timeout=10) as answer:
                        answer.read()
                found[f"{kind}-{size}"] = scan(pid, needle)
    print(json.dumps(found))


def held_other() -> int:
    """Scan a process that holds another needle."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        return scan(process.pid, new_needle())


def test_scan_can_fail(tmp_path: Path) -> None:
    """The scanner counts across its chunks, finds nothing where nothing is, and finds every twin at every size."""
    found = run_inside("tests.test_memscan", str(tmp_path))
    assert found.pop("none") == 0
    assert found.pop("held") >= 1_000_000
    assert len(found) == 9
    assert all(found.values()), found


def test_scan_of_nobody() -> None:
    """A process that does not exist is an error, never a clean result."""
    require_scanning()
    with pytest.raises((ProcessLookupError, FileNotFoundError)):
        scan(2**22 + 1, b"needle")


def test_inside_is_empty_for_root() -> None:
    """Root needs no namespace, anybody else does."""
    import os

    assert bool(inside()) == (os.geteuid() != 0)


if __name__ == "__main__":
    main()
