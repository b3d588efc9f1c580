"""A reader while the publisher of this project rotates: linked none mixed and none torn, flat none torn (issue 5)."""

import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from provider.memory import BufferPool
from provider.mounted import MountedFiles
from provider.outcomes import Refused
from tests.kit.authority import authority_for
from tests.kit.folders import quick_path
from tests.kit.inline import finish
from tests.kit.memscan import ROOT
from tests.kit.publisher import LONGEST, REFS

__all__ = ["quick_path"]

_VALUE = re.compile(rb"(\d{9})\.+")
STORM_S, LONG_STORM_S = 1.2, 20.0


@dataclass
class Tally:
    """What a reader saw."""

    batches: int = 0
    mixed: int = 0
    torn: int = 0
    unavailable: int = 0
    held_up: int = 0
    """Of those: how many while the kernel took the reader off its processor, so that two rotations met one batch."""
    generations: int = 0


@contextmanager
def publishing(folder: Path, layout: str, period_ms: int, tally: Tally) -> Iterator[Path]:
    """Publish in another process while the block runs; tells the tally how many generations there were."""
    root = folder / "root"
    root.mkdir(mode=0o755)
    (folder / "sources").mkdir()
    command = [sys.executable, "-m", "tests.kit.publisher", str(root), str(folder / "sources"), layout, str(period_ms)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
        try:
            yield root
            output, _ = writer.communicate("\n", timeout=60)
            tally.generations = int(output)
        finally:
            writer.kill()


def read(root: Path, tally: Tally, seconds: float) -> None:
    """Read batches through the provider for some seconds."""
    provider = MountedFiles(str(root), BufferPool())
    authority = authority_for(REFS)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        try:
            with finish(provider.resolve(authority, 0.0)) as batch:
                stamps = set()
                for index in range(len(REFS)):
                    with batch.value(index) as view:
                        value = bytes(view)
                    found = _VALUE.fullmatch(value)
                    tally.torn += found is None or len(value) != LONGEST - int(found[1]) % 2000
                    stamps.add(value[:9])
                tally.batches += 1
                tally.mixed += len(stamps) > 1
        except Refused:
            tally.unavailable += 1
            tally.held_up += resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw > switches


SECONDS = [pytest.param(STORM_S, id="short"), pytest.param(LONG_STORM_S, id="long", marks=pytest.mark.soak)]


@pytest.mark.parametrize("seconds", SECONDS)
@pytest.mark.parametrize("layout", ["linked", "flat"])
def test_storm_of_our_own_publisher(quick_path: Path, layout: str, seconds: float) -> None:
    """Linked: no batch mixed, no value torn. Flat: no value torn; that a set may mix is what the documents say."""
    tally = Tally()
    with publishing(quick_path, layout, 1, tally) as root:
        read(root, tally, seconds)
    print(layout, tally)
    assert tally.batches > 100 and tally.generations > 3
    assert tally.torn == 0
    if layout == "linked":
        assert tally.mixed == 0


@pytest.mark.parametrize("seconds", SECONDS)
def test_rewriting_in_place_is_not_supported(quick_path: Path, seconds: float) -> None:
    """What a writer in place does to a reader is counted and printed: the storm can show a loss."""
    tally = Tally()
    with publishing(quick_path, "in-place", 0, tally) as root:
        read(root, tally, seconds)
    print("in place, unsupported:", tally)
    assert tally.unavailable + tally.torn + tally.mixed > 0
