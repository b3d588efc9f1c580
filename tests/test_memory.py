"""provider/memory: buffers leave zeros behind on every way; memory that somebody still reaches is not used again."""

import copy
import ctypes
import gc
import mmap
import pickle
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from provider import memory
from provider.memory import MAX_BUFFER_BYTES, Buffer, BufferPool
from tests.kit.fakes import is_zero

PAGE = mmap.PAGESIZE
ROOT = Path(__file__).resolve().parent.parent


def by_hand(pool: BufferPool) -> None:
    """Release."""
    buffer = pool.take(100)
    buffer.view[:] = b"x" * 100
    buffer.release()


def by_with(pool: BufferPool) -> None:
    """Leave the block."""
    with pool.take(100) as buffer:
        buffer.view[:] = b"x" * 100


def by_error(pool: BufferPool) -> None:
    """Leave the block by an exception."""
    with pytest.raises(KeyError), pool.take(100) as buffer:
        buffer.view[:] = b"x" * 100
        raise KeyError


def by_cancel(pool: BufferPool) -> None:
    """Leave the block by what is no Exception."""
    with pytest.raises(KeyboardInterrupt), pool.take(100) as buffer:
        buffer.view[:] = b"x" * 100
        raise KeyboardInterrupt


def by_drop(pool: BufferPool) -> None:
    """Forget the buffer."""
    buffer = pool.take(100)
    buffer.view[:] = b"x" * 100
    del buffer


def by_collector(pool: BufferPool) -> None:
    """Forget the buffer in a cycle."""
    buffer = pool.take(100)
    buffer.view[:] = b"x" * 100
    cycle: list[object] = [buffer]
    cycle.append(cycle)
    del buffer, cycle
    gc.collect()


def with_its_view_gone(pool: BufferPool) -> None:
    """Release the view first."""
    buffer = pool.take(100)
    buffer.view[:] = b"x" * 100
    buffer.view.release()
    buffer.release()


@pytest.mark.parametrize(
    "way",
    [by_hand, by_with, by_error, by_cancel, by_drop, by_collector, with_its_view_gone],
    ids=lambda way: way.__name__,
)
def test_released_on_every_way_out_leaves_zeros(way: Callable[[BufferPool], None]) -> None:
    """However a buffer ends, its mapping holds zeros, is idle and nothing is outstanding."""
    pool = BufferPool()
    way(pool)
    assert [len(mapping) for mapping in pool._idle[PAGE]] == [PAGE]
    assert is_zero(pool)


def test_zeros_come_before_the_view_is_released() -> None:
    """`wipe` overwrites at once and leaves the memory to its owner."""
    pool = BufferPool()
    with pool.take(3) as buffer:
        buffer.view[:] = b"abc"
        buffer.wipe()
        assert bytes(buffer.view) == bytes(3)
        assert pool.outstanding == 1
        buffer.view[:] = b"abc"
    assert is_zero(pool)


def test_release_is_idempotent() -> None:
    """A second release, or a wipe after it, changes nothing and touches no memory of a later owner."""
    pool = BufferPool()
    first = pool.take(10)
    first.release()
    with pool.take(10) as second:
        second.view[:] = b"y" * 10
        first.release()
        first.wipe()
        assert bytes(second.view) == b"y" * 10
        assert pool.outstanding == 1


def test_view_dies_with_its_buffer() -> None:
    """After the release the view answers with ValueError, never with bytes of the next owner."""
    pool = BufferPool()
    buffer = pool.take(10)
    buffer.release()
    with pytest.raises(ValueError, match="released"):
        bytes(buffer.view)


def test_a_mapping_is_used_again() -> None:
    """The next buffer of the same size class takes the idle mapping, which is zero, and maps nothing."""
    pool = BufferPool()
    with pool.take(PAGE) as buffer:
        buffer.view[:] = b"x" * PAGE
    mapped = pool.mapped_bytes
    with pool.take(1) as small, pool.take(PAGE // 2) as other:
        assert bytes(small.view) == b"\0"
        assert bytes(other.view) == bytes(PAGE // 2)
        assert pool.mapped_bytes == mapped + PAGE
    assert pool.mapped_bytes == mapped + PAGE


def test_lent_memory_never_serves_another_request() -> None:
    """A mapping that a forgotten view still reaches is wiped, left to that view, and not used again."""
    pool = BufferPool()
    buffer = pool.take(10)
    buffer.view[:] = b"x" * 10
    forgotten = buffer.view[2:4]
    buffer.release()
    assert bytes(forgotten) == b"\0\0"
    assert pool.mapped_bytes == pool.locked_bytes == pool.outstanding == 0
    with pool.take(10) as other:
        other.view[:] = b"y" * 10
        assert bytes(forgotten) == b"\0\0"


def test_memory_that_c_code_holds_is_wiped_all_the_same() -> None:
    """A view that cannot be released, as a system call is in it, prevents neither the zeros nor the release."""
    pool = BufferPool()
    buffer = pool.take(10)
    buffer.view[:] = b"x" * 10
    held = pickle.PickleBuffer(buffer.view)
    buffer.release()
    assert bytes(held) == bytes(10)
    with pytest.raises(BufferError):
        buffer.view.release()
    assert pool.outstanding == 0
    assert not pool._idle


@pytest.mark.parametrize(
    ("size", "room"),
    [(1, PAGE), (PAGE, PAGE), (PAGE + 1, 2 * PAGE), (3 * PAGE, 4 * PAGE), (MAX_BUFFER_BYTES, MAX_BUFFER_BYTES)],
)
def test_sizes_are_powers_of_two_from_a_page_up(size: int, room: int) -> None:
    """The view has the size asked for, the mapping the next power of two."""
    pool = BufferPool()
    with pool.take(size) as buffer:
        assert len(buffer.view) == size
        assert pool.mapped_bytes == room


@pytest.mark.parametrize("size", [-1, 0, MAX_BUFFER_BYTES + 1])
def test_other_sizes_are_refused(size: int) -> None:
    """A size that no answer needs raises ValueError, and nothing is taken."""
    pool = BufferPool()
    with pytest.raises(ValueError, match="bounds"):
        pool.take(size)
    assert pool.outstanding == pool.mapped_bytes == 0


def test_the_largest_answer_fits() -> None:
    """The bound on buffers is above the largest answer and the largest batch with their heads and rooms."""
    assert MAX_BUFFER_BYTES > 2 * (262_144 + 512)
    assert MAX_BUFFER_BYTES > 65_536 + 98_304 + 65


def test_outstanding_and_mapped_count_what_is_there() -> None:
    """The counters follow every buffer, in any order of release."""
    pool = BufferPool()
    buffers = [pool.take(size) for size in (1, 1, 2 * PAGE)]
    assert (pool.outstanding, pool.mapped_bytes) == (3, 4 * PAGE)
    for number, buffer in enumerate(reversed(buffers)):
        buffer.release()
        assert pool.outstanding == 2 - number
    assert pool.mapped_bytes == 4 * PAGE


def test_idle_memory_is_bounded() -> None:
    """Beyond `retain_bytes` a wiped mapping is unmapped and no longer counted as mapped or locked."""
    pool = BufferPool(retain_bytes=2 * PAGE)
    buffers = [pool.take(PAGE) for _ in range(5)]
    mappings = [buffer._mapping for buffer in buffers]
    for buffer in buffers:
        buffer.release()
    assert pool.mapped_bytes == 2 * PAGE
    assert sum(len(idle) for idle in pool._idle.values()) == 2
    assert pool.locked_bytes in (0, PAGE, 2 * PAGE)
    assert [mapping is not None and mapping.closed for mapping in mappings] == [False, False, True, True, True]


def test_unlocked_memory_is_not_counted_as_locked() -> None:
    """Where the kernel refuses the lock the buffer is given all the same, and `locked_bytes` says so."""
    pool = BufferPool(retain_bytes=0)
    pool._lock_pages = lambda _address, _size: False
    with pool.take(1):
        assert (pool.mapped_bytes, pool.locked_bytes) == (PAGE, 0)
    assert (pool.mapped_bytes, pool.locked_bytes) == (0, 0)


def test_a_failed_mapping_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without memory `take` raises OSError and every counter stands as before."""

    def no_memory(*_args: object, **_named: object) -> None:
        raise OSError

    pool = BufferPool()
    monkeypatch.setattr(mmap, "mmap", no_memory)
    with pytest.raises(OSError):
        pool.take(1)
    assert pool.outstanding == pool.mapped_bytes == pool.locked_bytes == 0


def test_an_advice_that_the_kernel_does_not_know_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """An old kernel refuses MADV_WIPEONFORK; the buffer is given all the same."""
    monkeypatch.setattr(memory, "_MADV_WIPEONFORK", 9999)
    with BufferPool().take(1) as buffer:
        assert bytes(buffer.view) == b"\0"


@pytest.mark.parametrize(("answer", "locked"), [(0, True), (-1, False)])
def test_a_libc_without_mlock2_locks_with_mlock(monkeypatch: pytest.MonkeyPatch, answer: int, locked: bool) -> None:
    """The older call is the second choice, and its refusal is believed."""
    asked: list[tuple[int, int]] = []

    class Mlock:
        argtypes: object = None

        def __call__(self, address: int, size: int) -> int:
            asked.append((address, size))
            return answer

    monkeypatch.setattr(ctypes, "CDLL", lambda _name: SimpleNamespace(mlock=Mlock()))
    lock = memory._libc_lock()
    assert lock(4096, 10) is locked
    assert asked == [(4096, 10)]


def test_the_collector_may_run_inside_take() -> None:
    """A buffer that the collector drops while `take` holds the pool's lock is given back: no deadlock."""
    pool = BufferPool()

    def drop_one(_address: int, _size: int) -> bool:
        gc.collect()
        return False

    def work() -> None:
        buffer = pool.take(1)
        cycle: list[object] = [buffer]
        cycle.append(cycle)
        del buffer, cycle
        pool._lock_pages = drop_one
        pool.take(2 * PAGE).release()

    gc.disable()
    try:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(10)
    finally:
        gc.enable()
    assert not thread.is_alive()
    assert is_zero(pool)


def test_threads_share_a_pool() -> None:
    """Many threads that take, write, hand over and release never see each other's bytes, and all comes back."""
    pool = BufferPool(retain_bytes=6 * PAGE)
    faults: list[str] = []

    def work(seed: int) -> None:
        choice = random.Random(seed)
        mine = bytes([seed])
        held: list[Buffer] = []
        for _ in range(300):
            buffer = pool.take(choice.choice((1, PAGE, PAGE + 1, 4 * PAGE)))
            if bytes(buffer.view).count(0) != len(buffer.view):
                faults.append("not zero")
            buffer.view[:] = mine * len(buffer.view)
            held.append(buffer)
            if len(held) > 3:
                last = held.pop(choice.randrange(len(held)))
                if bytes(last.view).count(mine) != len(last.view):
                    faults.append("not mine")
                last.release()
        for buffer in held:
            buffer.release()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert faults == []
    assert is_zero(pool)
    idle = sum(len(mapping) for mappings in pool._idle.values() for mapping in mappings)
    assert pool.mapped_bytes == idle <= 6 * PAGE


@pytest.mark.parametrize("send", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"])
def test_a_buffer_is_never_copied(send: Callable[[object], object]) -> None:
    """Neither copy nor pickle makes a second one."""
    with BufferPool().take(10) as buffer:
        buffer.view[:6] = b"CANARY"
        with pytest.raises(TypeError, match="never serialised"):
            send(buffer)


def test_repr_shows_nothing() -> None:
    """The repr of a buffer has no byte of it."""
    with BufferPool().take(6) as buffer:
        buffer.view[:] = b"CANARY"
        assert repr(buffer) == str(buffer) == "<Buffer>"


def run_apart(script: str) -> str:
    """Run a script in a process of its own and return what it printed; it ends with 77 where the kernel cannot."""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_forked_child_sees_zeros() -> None:
    """A buffer's pages are empty in a child, so no helper process inherits a value."""
    assert (
        run_apart("""
import mmap, os, sys
from provider.memory import BufferPool
try:
    mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).madvise(18)
except OSError:
    print("the kernel does not know MADV_WIPEONFORK")
    sys.exit(77)
buffer = BufferPool().take(10000)
buffer.view[:] = b"x" * 10000
child = os.fork()
if child == 0:
    os._exit(0 if bytes(buffer.view).count(0) == 10000 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), bytes(buffer.view).count(b"x"))
""")
        == "0 10000"
    )


def test_pages_are_private_locked_and_not_dumped() -> None:
    """The kernel's own list of flags shows a buffer as locked, left out of core dumps and wiped on fork."""
    flags = run_apart("""
import ctypes, re, sys
from provider.memory import BufferPool
try:
    text = open("/proc/self/smaps").read
except OSError:
    print("there is no /proc/self/smaps")
    sys.exit(77)
pool = BufferPool()
buffer = pool.take(100)
start = ctypes.addressof(ctypes.c_char.from_buffer(buffer.view))
if not pool.locked_bytes:
    print("no memory may be locked here")
    sys.exit(77)
shown = re.search(rf"^{start:x}-\\S+ (\\S+) [\\s\\S]*?VmFlags: (.*)$", text(), re.M)
print(*shown.groups())
""")
    kind, *others = flags.split()
    assert kind == "rw-p"
    assert {"lo", "dd", "wf"} <= set(others)


def test_locked_bytes_are_what_the_kernel_counts() -> None:
    """Under a small lock limit some buffers are locked and some are not, and `locked_bytes` is the kernel's own sum."""
    shown = run_apart("""
import os, re, resource
from provider.memory import BufferPool
resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 << 10, 64 << 10))
if os.geteuid() == 0:
    # Root may lock without limit.
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
def locked():
    return int(re.search(r"VmLck:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) << 10
before = locked()
pool = BufferPool(retain_bytes=32 << 10)
buffers = [pool.take(16 << 10) for _ in range(10)]
print(pool.mapped_bytes, pool.locked_bytes == locked() - before, 0 < pool.locked_bytes <= 64 << 10)
for buffer in buffers:
    buffer.release()
print(pool.mapped_bytes, pool.locked_bytes == locked() - before)
""")
    assert shown.split() == [str(160 << 10), "True", "True", str(32 << 10), "True"]
