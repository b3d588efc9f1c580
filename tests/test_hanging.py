"""A root that hangs, on a real file system that stops answering: nobody waits for it longer than the contract says."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from provider import limits
from provider.authority import Authority
from provider.material import Batch
from provider.mounted import MountedFiles
from provider.outcomes import Reason, Refused
from tests.kit import mounting
from tests.kit.authority import authority_for
from tests.kit.fuse import HangingFiles
from tests.kit.projector import write_file
from tests.kit.stage import A, B, RecordingPool, copied
from tests.kit.waiting import wait_for

pytestmark = pytest.mark.root
AT_ONCE_S: Final = 1.0
"""What takes no waiting, on a machine that is busy with other things."""
LATE_S: Final = limits.MATERIAL_S + AT_ONCE_S


@pytest.fixture
def files(tmp_path: Path) -> Iterator[HangingFiles]:
    """A root on a file system that can be told to hang."""
    with HangingFiles(tmp_path, [A.file_name, B.file_name]) as files:
        yield files


class Watch:
    """Measures a block, and the longest time for which the event loop did not come round in it."""

    def __init__(self) -> None:
        self.seconds = self.longest_gap = 0.0

    async def __aenter__(self) -> "Watch":
        self._start = time.monotonic()
        self._ticking = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self._start
        self._ticking.cancel()

    async def _tick(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            self.longest_gap = max(self.longest_gap, time.monotonic() - before)


async def refusal(provider: MountedFiles, authority: Authority) -> Reason:
    """Resolve what must be refused."""
    with pytest.raises(Refused) as caught:
        await provider.resolve(authority, 0.0)
    return caught.value.reason


def threads() -> int:
    """How many reader threads there are."""
    return [thread.name for thread in threading.enumerate()].count("material")


async def test_root_that_answers(files: HangingFiles) -> None:
    """A root that is not local is read in a thread and served like any other."""
    provider = MountedFiles(str(files.point), RecordingPool())
    provider.verify_root()
    assert not provider.inline()
    assert provider.health() == "ok"
    with await provider.resolve(authority_for([A, B]), 0.0) as batch:
        assert copied(batch) == [b"value", b"value"]
    assert provider.stats.opens == 2


async def test_root_that_hangs(files: HangingFiles, tmp_path: Path) -> None:
    """Unavailable after 2 s and then at once; health is failed; a good mount in its place is served; late is wiped."""
    pool = RecordingPool()
    provider = MountedFiles(str(files.point), pool)
    authority = authority_for([A, B])
    files.hang()
    async with Watch() as first:
        assert await refusal(provider, authority) is Reason.ROOT_UNAVAILABLE
    assert limits.MATERIAL_S <= first.seconds < LATE_S
    assert first.longest_gap < AT_ONCE_S

    async with Watch() as second:
        assert provider.health() == "failed"
        assert not provider.inline()
        assert await refusal(provider, authority) is Reason.ROOT_UNAVAILABLE
    assert second.seconds < AT_ONCE_S
    assert threads() == provider.stats.stuck_threads == 1

    with mounting.mounted("good", tmp_path, "tmpfs", data="mode=755"):
        write_file(tmp_path / A.file_name, b"good a")
        write_file(tmp_path / B.file_name, b"good b")
        assert provider.health() == "ok"
        assert provider.inline()
        with await provider.resolve(authority, 0.0) as batch:
            assert copied(batch) == [b"good a", b"good b"]
        assert threads() == provider.stats.stuck_threads == 1

    assert provider.health() == "failed"
    files.serve()
    await asyncio.to_thread(wait_for, lambda: threads() == 0)
    assert provider.health() == "ok"
    await asyncio.to_thread(wait_for, pool.is_clean)


async def test_hang_in_the_middle(files: HangingFiles) -> None:
    """A root that stops answering once values were read: they are wiped when the thread returns, and reach nobody."""
    pool = RecordingPool()
    provider = MountedFiles(str(files.point), pool)
    look = threading.Event()
    fill = Batch.room

    def hang_at_the_second(batch: Batch, index: int) -> memoryview:
        if index == 1:
            files.hang()
            look.set()
        return fill(batch, index)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batch, "room", hang_at_the_second)
        assert await refusal(provider, authority_for([A, B])) is Reason.ROOT_UNAVAILABLE
    assert look.is_set()
    assert pool.holds_values()
    files.serve()
    await asyncio.to_thread(wait_for, pool.is_clean)


async def test_earlier_deadline(files: HangingFiles) -> None:
    """A caller who cancels earlier is obeyed at once, and its thread does not make the root look dead yet."""
    provider = MountedFiles(str(files.point), RecordingPool())
    files.hang()
    async with Watch() as watch:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await provider.resolve(authority_for([A]), 0.0)
    assert watch.seconds < AT_ONCE_S
    files.serve()
    await asyncio.to_thread(wait_for, lambda: threads() == 0)
    assert provider.health() == "ok"


async def test_root_that_changes_without_a_mount(files: HangingFiles, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A parent link that now leads to a hanging root changes no mount: `inline` may be late, `resolve` is not."""
    base = tmp_path_factory.mktemp("base")
    (base / "good" / "root").mkdir(parents=True, mode=0o755)
    (base / "parent").symlink_to("good")
    write_file(base / "good" / "root" / A.file_name, b"good")
    provider = MountedFiles(str(base / "parent" / files.point.name), RecordingPool())
    (base / "good" / "root").rename(base / "good" / files.point.name)
    (await provider.resolve(authority_for([A]), 0.0)).wipe()
    assert provider.inline()
    files.hang()
    (base / "parent").unlink()
    (base / "parent").symlink_to(files.point.parent)
    async with Watch() as watch:
        assert await refusal(provider, authority_for([A])) is Reason.ROOT_UNAVAILABLE
    assert watch.seconds < LATE_S
    assert watch.longest_gap < AT_ONCE_S
    assert provider.health() == "failed"
    assert not provider.inline()
    files.serve()


def test_start_on_a_root_that_hangs(files: HangingFiles) -> None:
    """The start finds a hanging root unavailable and does not hang."""
    files.hang()
    start = time.monotonic()
    with pytest.raises(Refused) as caught:
        MountedFiles(str(files.point), RecordingPool()).verify_root()
    assert caught.value.reason is Reason.ROOT_UNAVAILABLE
    assert time.monotonic() - start < LATE_S
    files.serve()


EXIT: Final = """
import asyncio, sys
from provider.memory import BufferPool
from provider.mounted import MountedFiles
from provider.outcomes import Refused
from tests.kit.authority import authority_for
from tests.kit.stage import A

async def main():
    provider = MountedFiles(sys.argv[1], BufferPool())
    try:
        await provider.resolve(authority_for([A]), 0.0)
    except Refused as refused:
        print(refused.reason.name, provider.stats.stuck_threads, flush=True)

asyncio.run(main())
"""


def test_exit_is_not_blocked(files: HangingFiles) -> None:
    """A process with a stuck thread ends as soon as it wants to, with its own exit code."""
    files.hang()
    done = subprocess.run(
        [sys.executable, "-c", EXIT, str(files.point)],
        capture_output=True, text=True, timeout=30, check=False, cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "ROOT_UNAVAILABLE 1\n", "")


async def test_process_gives_up(files: HangingFiles, tmp_path: Path) -> None:
    """With seventeen threads stuck on mounts that were left behind the process is told to end."""
    fatal: list[int] = []
    provider = MountedFiles(str(files.point), RecordingPool(), on_fatal=lambda: fatal.append(1))
    files.hang()
    authority = authority_for([A])
    for number in range(limits.STUCK_THREADS + 1):
        assert fatal == []
        if number:
            # The same dead file system, mounted anew: what is stuck is stuck on an earlier mount now.
            mounting.mount(str(files.point), tmp_path, "", mounting.MS_BIND)
        with pytest.raises((TimeoutError, Refused)):
            async with asyncio.timeout(0.02):
                await provider.resolve(authority, 0.0)
    with mounting.mounted("good", tmp_path, "tmpfs", data="mode=755"):
        await asyncio.sleep(limits.MATERIAL_S)
        assert provider.health() == "ok"
        assert provider.stats.stuck_threads == limits.STUCK_THREADS + 1
        assert fatal
    files.serve()
    await asyncio.to_thread(wait_for, lambda: threads() == 0)
