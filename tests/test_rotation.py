"""The rotation storm: whole generations or nothing, while a kubelet that never rests rotates underneath."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from provider.memory import BufferPool
from provider.mounted import MountedFiles
from provider.outcomes import Reason, Refused
from tests.kit.authority import authority_for, secret
from tests.kit.inline import finish
from tests.kit.projector import GENERATION_DIGITS, generation_of
from tests.kit.waiting import wait_for

REFS: Final = [secret(f"name-{number}") for number in range(8)]
BATCHES: Final = 20_000
GENERATIONS: Final = 1_000
SLOWEST, FASTEST = 200, 500
"""Rotations a second that the storm must have had."""
SHARE: Final = 1 / 1_000
"""Batches that may be unavailable."""
STALL_S: Final = 0.001
"""Time that a batch did not run before its loss is the machine's: in it the writer rotated at will. Counted apart."""
STORMS: Final = 3
"""How often a storm is raised again because a busy machine did not let it have its strength; its result is void."""
PATIENCE_S: Final = 100


@dataclass
class Tally:
    """What a reader saw. Batches during which the machine ran something else instead are `stalled` when unavailable."""

    delivered: int = 0
    unavailable: int = 0
    stalled: int = 0
    mixed: int = 0
    generations: Counter[int] = field(default_factory=Counter)

    def saw(self, stamps: set[int]) -> None:
        """Count one delivered batch by the generations of its values."""
        self.delivered += 1
        self.mixed += len(stamps) > 1
        self.generations.update(stamps)


@pytest.fixture
def root() -> Iterator[Path]:
    """An empty root in memory where there is such a place, as a kubelet's is."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        root = Path(directory) / "root"
        root.mkdir(mode=0o755)
        yield root


@contextmanager
def rotating(root: Path, rate: float) -> Iterator[Callable[[], float]]:
    """Rotate in another process while the block runs. Yields a function that ends it and returns its rate."""
    command = [sys.executable, "-m", "tests.kit.projector", str(root), str(rate), *(ref.file_name for ref in REFS)]
    directory = Path(__file__).parent.parent
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=directory) as writer:

        def end() -> float:
            output, _ = writer.communicate("\n", timeout=60)
            generations, seconds = output.split()
            return int(generations) / float(seconds)

        try:
            wait_for((root / REFS[-1].file_name).exists)
            yield end
        finally:
            writer.kill()


def read_batches(root: Path, until: Callable[[Tally], bool]) -> Tally:
    """Read batches of eight through the provider until `until` holds."""
    provider = MountedFiles(str(root), BufferPool())
    authority = authority_for(REFS)
    tally = Tally()
    end = time.monotonic() + PATIENCE_S
    while not until(tally):
        assert time.monotonic() < end, f"too slow: {tally.delivered} batches of {len(tally.generations)} generations"
        wall, used = time.monotonic(), time.thread_time()
        try:
            with finish(provider.resolve(authority, 0.0)) as batch:
                stamps = set()
                for index in range(len(REFS)):
                    with batch.value(index) as value:
                        stamps.add(generation_of(bytes(value[:GENERATION_DIGITS])))
                tally.saw(stamps)
        except Refused as refused:
            assert refused.reason is Reason.MATERIAL_UNAVAILABLE
            stalled = time.monotonic() - wall - (time.thread_time() - used) > STALL_S
            tally.stalled += stalled
            tally.unavailable += not stalled
    assert provider.stats.unavailable == tally.unavailable + tally.stalled
    print(f"{tally.delivered} batches of {len(tally.generations)} generations", end=", ")
    print(f"{provider.stats.drift} drifted, {tally.unavailable} unavailable", end="")
    print(f" and {tally.stalled} when the machine stalled", end="")
    return tally


@pytest.mark.timeout(330)
def test_storm(root: Path) -> None:
    """At 200 to 500 rotations a second: 20,000 batches from 1,000 generations, none mixed, 1 in 1,000 unavailable."""
    for _ in range(STORMS):
        with rotating(root, 420) as end:
            tally = read_batches(root, lambda t: t.delivered >= BATCHES and len(t.generations) >= GENERATIONS)
            rate = end()
        print(f", {rate:.0f} rotations a second")
        assert tally.mixed == 0
        if SLOWEST <= rate <= FASTEST:
            break
        clear(root)
    else:
        pytest.fail("this machine is too busy for a storm of 200 rotations a second")
    assert tally.unavailable <= SHARE * (tally.delivered + tally.unavailable)


def clear(root: Path) -> None:
    """Empty a root for the next storm."""
    shutil.rmtree(root)
    root.mkdir(mode=0o755)


def test_storm_without_rest(root: Path) -> None:
    """As fast as a writer can: still none mixed; the share that is unavailable is reported."""
    with rotating(root, 0) as end:
        tally = read_batches(root, lambda t: t.delivered >= BATCHES // 4 and len(t.generations) >= GENERATIONS)
        rate = end()
    lost = tally.unavailable + tally.stalled
    share = lost / (tally.delivered + lost)
    print(f", {rate:.0f} rotations a second: {share:.2%} unavailable")
    assert tally.mixed == 0


def test_reader_by_path_mixes(root: Path) -> None:
    """The storm could show mixing: a reader that opens one path after the other does mix generations."""
    paths = [root / ref.file_name for ref in REFS]
    tally = Tally()
    end = time.monotonic() + PATIENCE_S
    with rotating(root, 420) as finish_writing:
        while tally.mixed < 5:
            assert time.monotonic() < end, f"{tally.delivered} batches by path and none mixed: the storm proves nothing"
            try:
                tally.saw({generation_of(path.read_bytes()) for path in paths})
            except FileNotFoundError:
                tally.unavailable += 1
        finish_writing()
    print(f"by path: {tally.mixed} of {tally.delivered} batches mixed")
