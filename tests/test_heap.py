"""Large pieces of memory stay the kernel's, also after the first of them was given back."""

import ctypes
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar import run
from tests.kit.manifests import ROOT

COUNTED = """
import ctypes, sys
from sidecar.heap import LARGE_BYTES, give_back_large

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd us fs uord ford keep".split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
if sys.argv[1] == "on":
    give_back_large()
for _ in range(3):
    libc.free(libc.malloc(2 * LARGE_BYTES))
before = libc.mallinfo2().hblks
libc.malloc(2 * LARGE_BYTES)
print(libc.mallinfo2().hblks - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="this C library does not tell (no mallinfo2)")
@pytest.mark.parametrize(("how", "mapped"), [("on", "1"), ("off", "0")])
def test_a_large_piece_is_mapped_by_itself(how: str, mapped: str) -> None:
    """After large pieces were freed the next one is a mapping of its own again; without us it is of the heap."""
    command = [sys.executable, "-c", COUNTED, how]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip() == mapped


def test_serve_begins_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process sees to it before anything is served."""
    steps: list[str] = []

    async def serve(*_: Any) -> None:
        steps.append("served")

    monkeypatch.setattr(run, "give_back_large", lambda: steps.append("seen to"))
    monkeypatch.setattr(run, "serve", serve)
    config: Any = SimpleNamespace(replica_id="replica-1")
    assert run.run(config) == 0
    assert steps == ["seen to", "served"]
