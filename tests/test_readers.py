"""Reader threads that a request can leave behind: their batches are wiped, they are counted, they never block."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator

import pytest

from provider import limits, readers
from provider.material import Batch, Slot
from provider.outcomes import Reason, Refused
from provider.readers import Readers, within
from tests.kit.authority import secret
from tests.kit.stage import RecordingPool
from tests.kit.waiting import wait_for

MOUNT, OTHER = 1, 2


class Source:
    """What a reader reads: it waits for `gate` and then brings a batch. Says who is waiting."""

    def __init__(self) -> None:
        self.pool = RecordingPool()
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)

    def read(self, root: int) -> Batch:
        """Read one value, once the gate is open."""
        batch = Batch(self.pool, [Slot(secret("a"), 5)])
        batch.room(0)[:5] = b"value"
        batch.fill(0, 5)
        self.entered.release()
        self.gate.wait()
        return batch


@pytest.fixture
def source() -> Iterator[Source]:
    """A source whose waiting threads end with the test, and must then have given everything back."""
    source = Source()
    yield source
    source.gate.set()
    wait_for(lambda: source.pool.outstanding == 0)


def descriptor() -> int:
    """A descriptor to hand over."""
    return os.open("/", os.O_PATH)


def is_open(descriptor: int) -> bool:
    """Tell whether the descriptor still is open."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def never() -> None:
    """The fatal call of tests in which it must not come."""
    raise AssertionError("fatal")


async def refused(readers: Readers, read: Callable[[int], Batch], mount: int = MOUNT) -> Reason:
    """Run a reader that must be refused; its descriptor must be closed once it ended."""
    with pytest.raises(Refused) as caught:
        await readers.run(mount, descriptor(), read)
    return caught.value.reason


async def left_behind(readers: Readers, source: Source, mount: int = MOUNT) -> None:
    """Start a reader and cancel its request while it waits."""
    task = asyncio.create_task(readers.run(mount, descriptor(), source.read))
    assert await asyncio.to_thread(source.entered.acquire, timeout=20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_batch_comes_back(source: Source) -> None:
    """The batch that the thread read is the caller's, and the descriptor is closed."""
    source.gate.set()
    root = descriptor()
    with await Readers(never).run(MOUNT, root, source.read) as batch, batch.value(0) as value:
        assert bytes(value) == b"value"
        assert not is_open(root)
        assert source.pool.outstanding == 1
    assert source.pool.outstanding == 0


async def test_refusal_comes_back() -> None:
    """What the reader refuses is refused, with nothing of the thread attached."""

    def read(root: int) -> Batch:
        raise Refused(Reason.OVER_BUDGET)

    with pytest.raises(Refused) as caught:
        await Readers(never).run(MOUNT, descriptor(), read)
    assert caught.value.reason is Reason.OVER_BUDGET
    assert caught.value.__context__ is None


async def test_fault_is_an_internal_error(capfd: pytest.CaptureFixture[str]) -> None:
    """A fault in the reader is answered as an internal error and prints nothing."""

    def read(root: int) -> Batch:
        raise ZeroDivisionError("canary")

    assert await refused(Readers(never), read) is Reason.INTERNAL
    assert capfd.readouterr().err == ""


async def test_no_answer_in_time(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an answer in time the root is unavailable; the thread wipes when it returns."""
    monkeypatch.setattr(limits, "MATERIAL_S", 0.05)
    monkeypatch.setattr(readers, "STUCK_AFTER_S", 0.02)
    own = Readers(never)
    assert await refused(own, source.read) is Reason.ROOT_UNAVAILABLE
    assert own.is_stuck(MOUNT)
    assert not own.is_stuck(OTHER)
    assert source.pool.outstanding == 1
    source.gate.set()
    await asyncio.to_thread(wait_for, lambda: source.pool.outstanding == 0)
    assert not own.is_stuck(MOUNT)
    assert own.stuck() == []


async def test_cancelled_request(source: Source) -> None:
    """A cancelled request leaves its thread behind; what it brings later is wiped."""
    own = Readers(never)
    await left_behind(own, source)
    source.gate.set()
    await asyncio.to_thread(wait_for, lambda: source.pool.outstanding == 0)


@pytest.mark.parametrize("refuse", [False, True])
async def test_cancelled_when_the_outcome_is_there(
    source: Source, monkeypatch: pytest.MonkeyPatch, refuse: bool
) -> None:
    """A cancel that comes after the outcome did, but before the request took it, wipes the batch if it is one."""
    hand_over = readers._Job.hand_over
    handed: list[readers._Job] = []

    def hand_over_and_cancel(job: readers._Job, outcome: Batch | Reason) -> None:
        hand_over(job, outcome)
        task.cancel()
        handed.append(job)

    def read(root: int) -> Batch:
        batch = source.read(root)
        if refuse:
            batch.wipe()
            raise Refused(Reason.MATERIAL_UNAVAILABLE)
        return batch

    monkeypatch.setattr(readers._Job, "hand_over", hand_over_and_cancel)
    source.gate.set()
    task = asyncio.create_task(Readers(never).run(MOUNT, descriptor(), read))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert handed[0].answer.done()
    assert not handed[0].answer.cancelled()
    assert source.pool.outstanding == 0


def test_loop_is_gone(source: Source) -> None:
    """A thread that returns after its loop was closed wipes its batch itself."""
    own = Readers(never)
    asyncio.run(left_behind(own, source))
    assert source.pool.outstanding == 1
    source.gate.set()
    wait_for(lambda: source.pool.outstanding == 0)


async def test_no_thread_to_be_had(monkeypatch: pytest.MonkeyPatch, source: Source) -> None:
    """When no thread can be started the root is unavailable, the descriptor closed and nothing counted."""

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    own = Readers(never)
    root = descriptor()
    with pytest.raises(Refused) as caught:
        await own.run(MOUNT, root, source.read)
    assert caught.value.reason is Reason.ROOT_UNAVAILABLE
    assert not is_open(root)
    assert not own._jobs


async def test_threads_of_one_mount_are_bounded(source: Source) -> None:
    """No more than 16 threads read from one mount at a time; another mount is not held back."""
    own = Readers(never)
    for _ in range(limits.STUCK_THREADS):
        await left_behind(own, source)
    threads = threading.active_count()
    assert await refused(own, source.read) is Reason.ROOT_UNAVAILABLE
    assert threading.active_count() == threads
    await left_behind(own, source, OTHER)


async def test_young_thread_is_not_stuck(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that goes away does not make the root look dead: its thread counts only from a certain age on."""
    own = Readers(never)
    await left_behind(own, source)
    assert not own.is_stuck(MOUNT)
    monkeypatch.setattr(readers, "STUCK_AFTER_S", 0.0)
    assert own.is_stuck(MOUNT)


async def test_waited_for_thread_is_not_stuck(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread whose request still waits is slow, not stuck."""
    monkeypatch.setattr(readers, "STUCK_AFTER_S", 0.0)
    own = Readers(never)
    task = asyncio.create_task(own.run(MOUNT, descriptor(), source.read))
    await asyncio.to_thread(source.entered.acquire, timeout=20)
    assert not own.is_stuck(MOUNT)
    source.gate.set()
    (await task).wipe()


async def test_seventeenth_on_earlier_mounts_is_fatal(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen threads stuck on mounts that the root has left behind are borne, the next one ends the process."""
    monkeypatch.setattr(readers, "STUCK_AFTER_S", 0.0)
    fatal: list[int] = []
    own = Readers(lambda: fatal.append(1))
    for mount in range(limits.STUCK_THREADS + 1):
        await left_behind(own, source, mount)
        assert own.is_stuck(mount)
    assert fatal == []
    assert not own.is_stuck(limits.STUCK_THREADS + 1)
    assert fatal == [1]


async def test_threads_are_daemons(source: Source) -> None:
    """Exit joins no reader."""
    own = Readers(never)
    await left_behind(own, source)
    assert [thread.daemon for thread in threading.enumerate() if thread.name == "material"] == [True]


def test_within_returns_and_refuses() -> None:
    """A verdict at start is the one that was given, and unavailable when none was given in time."""
    gate = threading.Event()

    def refuse() -> None:
        raise Refused(Reason.INVALID_CONFIGURATION)

    def hang() -> None:
        gate.wait()

    within(20, lambda: None)
    with pytest.raises(Refused) as caught:
        within(20, refuse)
    assert caught.value.reason is Reason.INVALID_CONFIGURATION
    assert caught.value.__context__ is None
    with pytest.raises(Refused) as caught:
        within(0.01, hang)
    assert caught.value.reason is Reason.ROOT_UNAVAILABLE
    gate.set()
