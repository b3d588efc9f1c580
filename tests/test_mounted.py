"""MountedFiles: what is delivered, what a file and a root must be, and roots that may hang."""

import asyncio
import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from provider import limits, mounted, mounts, readers, rootfs
from provider.mounted import MountedFiles
from provider.outcomes import Reason, Refused
from provider.refs import SecretRef
from provider.rootfs import FILE
from tests.kit import mounting
from tests.kit.authority import authority_for, secret
from tests.kit.inline import finish
from tests.kit.inotify import OpenWitness
from tests.kit.projector import publish, write_file
from tests.kit.stage import BUNDLE, A, B, Stage, copied, make_flat, make_linked
from tests.kit.waiting import wait_for


@pytest.fixture
def flat(tmp_path: Path) -> Stage:
    """A flat root that holds A and B."""
    return make_flat(tmp_path / "flat")


@pytest.fixture
def linked(tmp_path: Path) -> Stage:
    """A linked root that holds A and B."""
    return make_linked(tmp_path / "linked")


# --- what is delivered -----------------------------------------------------------------------------------------


def test_values_in_the_order_asked(flat: Stage, linked: Stage) -> None:
    """Values come in the order of the refs, secrets before the bundle, each slot naming its ref."""
    linked_values = linked.values(B, A)
    assert linked_values == [b"one b", b"one a"]


def test_bundle_comes_last(flat: Stage) -> None:
    """The bundle is the last slot and is marked; secrets may be none."""
    flat.write(BUNDLE, b"X=1")
    with finish(flat.provider.resolve(authority_for([B, A], [BUNDLE]), 0.0)) as batch:
        assert copied(batch) == [b"value of b", b"value of a", b"X=1"]
        assert [(slot.ref, slot.bundle) for slot in batch.slots] == [(B, False), (A, False), (BUNDLE, True)]
    assert flat.values(bundles=(BUNDLE,)) == [b"X=1"]


@pytest.mark.parametrize("value", [b"\xef\xbb\xbfbom", b" trailing \n", "ü\u2028\U0001f600".encode(), b"\x7f\x01"])
def test_bytes_are_kept(flat: Stage, value: bytes) -> None:
    """A value is delivered byte for byte: a BOM, white space and control characters stay."""
    flat.write(A, value)
    assert flat.values(A) == [value]


def test_next_request_sees_the_new_file(flat: Stage, linked: Stage) -> None:
    """Nothing is kept from one request to the next."""
    publish(linked.root, "two", {A.file_name: b"two"})
    assert linked.values(A) == [b"two"]
    assert linked.refusal(B) is Reason.MATERIAL_UNAVAILABLE


def test_links_inside_a_generation(linked: Stage) -> None:
    """A link that stays inside the generation is followed; its target is what is judged and must not change."""
    directory = linked.root / "..one"
    (directory / A.file_name).rename(directory / "target")
    (directory / A.file_name).symlink_to("target")
    assert linked.values(A) == [b"one a"]
    (directory / "target").chmod(0o444)
    assert linked.refusal(A) is Reason.MATERIAL_UNAVAILABLE


def test_link_that_leaves_the_generation(linked: Stage) -> None:
    """A link out of the generation is refused, also one to a file that still is beneath the root."""
    write_file(linked.root / "stray", b"stray")
    (linked.root / "..one" / A.file_name).unlink()
    (linked.root / "..one" / A.file_name).symlink_to("../stray")
    assert linked.refusal(A) is Reason.MATERIAL_UNAVAILABLE


def test_files_beside_a_generation_are_not_served(linked: Stage) -> None:
    """In the linked layout the root's own files are never read."""
    write_file(linked.root / BUNDLE.file_name, b"stray")
    assert linked.refusal(bundles=(BUNDLE,)) is Reason.MATERIAL_UNAVAILABLE


def test_authority_after_its_hold(flat: Stage) -> None:
    """An authority whose hold ended opens nothing."""
    authority = authority_for([A])
    authority._tenure.open = False
    with OpenWitness(flat.root) as witness, pytest.raises(RuntimeError):
        finish(flat.provider.resolve(authority, 0.0))
    assert witness is not None
    assert flat.provider.stats.opens == 0


# --- what a file must be ---------------------------------------------------------------------------------------


def test_all_twelve_mode_bits(flat: Stage) -> None:
    """Of the 4096 modes exactly the subsets of 0640 are served (where the kernel lets us read them at all)."""
    path = flat.root / A.file_name
    served = set()
    for mode in range(0o10000):
        path.chmod(mode)
        assert path.stat().st_mode & 0o7777 == mode
        try:
            flat.values(A)
            served.add(mode)
        except Refused as refused:
            assert refused.reason is Reason.MATERIAL_UNAVAILABLE
    readable = {mode for mode in range(0o10000) if os.geteuid() == 0 or mode & 0o400}
    assert served == readable & {0o000, 0o040, 0o200, 0o240, 0o400, 0o440, 0o600, 0o640}
    assert flat.pool.is_clean()


def test_hard_link(flat: Stage) -> None:
    """A file with a second hard link is refused wherever the other name is."""
    os.link(flat.root / A.file_name, flat.root.parent / "backup")
    assert flat.refusal(A) is Reason.MATERIAL_UNAVAILABLE
    (flat.root.parent / "backup").unlink()
    assert flat.values(A) == [b"value of a"]


def make_socket(path: Path) -> None:
    """Bind a socket at a path that may be longer than a socket address."""
    directory = os.open(path.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{directory}/{path.name}")
    os.close(directory)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, make_socket])
def test_not_a_regular_file(flat: Stage, make: Callable[[Path], None]) -> None:
    """A directory, a FIFO and a socket are refused, without waiting."""
    path = flat.root / A.file_name
    path.unlink()
    make(path)
    path.chmod(0o440)
    assert flat.refusal(A) is Reason.MATERIAL_UNAVAILABLE


@pytest.mark.parametrize("kind", [stat.S_IFDIR, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFLNK])
def test_type_alone_is_enough(kind: int) -> None:
    """Whatever is no regular file is refused for that alone, even with the mode, links and size of a good one."""

    def found(mode: int) -> os.stat_result:
        return os.stat_result((mode, 1, 1, 1, 0, 0, 5, 0, 0, 0))

    assert mounted._judged(found(stat.S_IFREG | 0o440)).st_size == 5
    with pytest.raises(Refused):
        mounted._judged(found(kind | 0o440))


@pytest.mark.root
def test_device(flat: Stage) -> None:
    """A device is refused."""
    path = flat.root / A.file_name
    path.unlink()
    os.mknod(path, 0o020440, os.makedev(1, 5))
    assert flat.refusal(A) is Reason.MATERIAL_UNAVAILABLE


@pytest.mark.root
def test_mount_inside_the_root(flat: Stage) -> None:
    """A file that is a mount of its own, as `subPath` makes it, is refused."""
    path = flat.root / A.file_name
    with mounting.mounted(str(path), path, "", mounting.MS_BIND):
        assert flat.refusal(A) is Reason.MATERIAL_UNAVAILABLE


def test_missing_file(flat: Stage, linked: Stage) -> None:
    """A missing file is unavailable at once: no second attempt would find it."""
    for stage in (flat, linked):
        assert stage.refusal(secret("missing")) is Reason.MATERIAL_UNAVAILABLE
        assert stage.provider.stats.retries == 0


@pytest.mark.parametrize(
    ("size", "served"), [(0, False), (1, True), (limits.VALUE_BYTES, True), (limits.VALUE_BYTES + 1, False)]
)
def test_sizes_of_a_value(flat: Stage, size: int, served: bool) -> None:
    """A value has 1 to 16384 bytes."""
    flat.write(A, b"x" * size)
    assert (flat.values(A) == [b"x" * size]) if served else (flat.refusal(A) is Reason.MATERIAL_UNAVAILABLE)


@pytest.mark.parametrize(
    ("size", "served"), [(0, False), (1, True), (limits.BUNDLE_BYTES, True), (limits.BUNDLE_BYTES + 1, False)]
)
def test_sizes_of_a_bundle(flat: Stage, size: int, served: bool) -> None:
    """The bundle has 1 to 98304 bytes; the same file asked for as a secret stays bound to 16384."""
    flat.write(BUNDLE, b"x" * size)
    if served:
        assert flat.values(A, bundles=(BUNDLE,)) == [b"value of a", b"x" * size]
    else:
        assert flat.refusal(A, bundles=(BUNDLE,)) is Reason.MATERIAL_UNAVAILABLE
    assert (size == 1) == (flat_serves_as_secret(flat, BUNDLE))


def flat_serves_as_secret(stage: Stage, ref: SecretRef) -> bool:
    """Tell whether a ref is served as an ordinary secret."""
    try:
        return bool(stage.values(ref))
    except Refused:
        return False


def test_budget(flat: Stage) -> None:
    """All secrets together have at most 65536 bytes; the bundle stands beside them."""
    refs = [secret(f"n{number}") for number in range(5)]
    for ref in refs[:4]:
        flat.write(ref, b"x" * limits.VALUE_BYTES)
    flat.write(refs[4], b"x")
    flat.write(BUNDLE, b"x" * limits.BUNDLE_BYTES)
    assert len(flat.values(*refs[:4], bundles=(BUNDLE,))) == 5
    assert flat.refusal(*refs) is Reason.OVER_BUDGET


@pytest.mark.parametrize(
    "value",
    [
        b"a\0b", b"\0", b"\x80", b"\xc3", b"\xc0\x80", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xff",
        b"a\xf0\x9f\x98",
    ],
)  # fmt: skip
def test_not_text(flat: Stage, value: bytes) -> None:
    """NUL and anything but strict UTF-8 (stray, cut, overlong, surrogate, beyond U+10FFFF) is refused."""
    flat.write(A, value)
    assert flat.refusal(B, A) is Reason.MATERIAL_UNAVAILABLE


# --- the root --------------------------------------------------------------------------------------------------


def test_root_at_start(flat: Stage) -> None:
    """A good root passes, empty or not; the path's shape and the directory are told apart."""
    flat.provider.verify_root()
    for path, reason in (
        ("relative", Reason.INVALID_CONFIGURATION),
        (f"{flat.root}/", Reason.INVALID_CONFIGURATION),
        (f"{flat.root}/missing", Reason.ROOT_UNAVAILABLE),
        (f"{flat.root}/{A.file_name}", Reason.ROOT_UNAVAILABLE),
    ):
        provider = MountedFiles(path, flat.pool)
        with pytest.raises(Refused) as caught:
            provider.verify_root()
        assert caught.value.reason is reason
        with pytest.raises(Refused) as caught:
            finish(provider.resolve(authority_for([A]), 0.0))
        assert caught.value.reason is reason
        assert provider.inline()
        assert provider.health() == "failed"


def test_hanging_root_at_start(flat: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A root that hangs at start is unavailable and does not hang the start."""
    gate = threading.Event()
    monkeypatch.setattr(limits, "MATERIAL_S", 0.05)
    monkeypatch.setattr(mounted, "open_root", lambda _: gate.wait() and 0)
    with pytest.raises(Refused) as caught:
        flat.provider.verify_root()
    monkeypatch.undo()
    gate.set()
    assert caught.value.reason is Reason.ROOT_UNAVAILABLE


def test_empty_root_is_ok(tmp_path: Path) -> None:
    """A missing optional Secret leaves an empty root: healthy, and every ref is unavailable."""
    tmp_path.chmod(0o755)
    stage = Stage(tmp_path)
    stage.provider.verify_root()
    assert stage.provider.health() == "ok"
    assert stage.refusal(A) is Reason.MATERIAL_UNAVAILABLE


@pytest.mark.parametrize("fate", ["missing", "writable", "link", "file"])
def test_root_that_went_bad(flat: Stage, fate: str) -> None:
    """The root is judged for every request: gone, writable by others, a link or a file, it is unavailable."""
    moved = flat.root.with_name("moved")
    if fate == "writable":
        flat.root.chmod(0o777)
    else:
        flat.root.rename(moved)
        if fate == "link":
            flat.root.symlink_to(moved)
        elif fate == "file":
            flat.root.touch()
    assert flat.refusal(A) is Reason.ROOT_UNAVAILABLE
    assert flat.provider.health() == "failed"
    if fate in ("link", "file"):
        flat.root.unlink()
    if fate == "writable":
        flat.root.chmod(0o755)
    else:
        moved.rename(flat.root)
    assert flat.values(A) == [b"value of a"]
    assert flat.provider.health() == "ok"


def test_parent_may_be_a_link(flat: Stage, tmp_path: Path) -> None:
    """Only the root's last component must not be a link."""
    parent = tmp_path / "parent"
    parent.symlink_to(".")
    assert Stage(parent / flat.root.name).values(A) == [b"value of a"]


def test_root_replaced_by_another(flat: Stage) -> None:
    """A directory that takes the root's place is the root from the next request on."""
    flat.root.rename(flat.root.with_name("old"))
    flat.root.mkdir(mode=0o755)
    flat.write(A, b"other root")
    assert flat.values(A) == [b"other root"]


# --- roots that may hang ---------------------------------------------------------------------------------------


@pytest.fixture
def remote(flat: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """The flat root, taken for one of a kind that may hang."""
    monkeypatch.setattr(mounts, "LOCAL_KINDS", frozenset())
    return flat


async def test_remote_root_is_read_in_a_thread(remote: Stage) -> None:
    """A root that is not local is read by a daemon thread, and its refusals come back the same."""
    loop_thread = threading.get_ident()
    readers_seen = set()

    def opener(anchor: int, name: bytes, flags: int) -> int:
        readers_seen.add(threading.get_ident())
        return rootfs.openat2(anchor, name, flags)

    remote.provider._opener = opener
    assert not remote.provider.inline()
    assert remote.provider.health() == "ok"
    remote.provider.verify_root()
    with await remote.provider.resolve(authority_for([A, B]), 0.0) as batch:
        assert copied(batch) == [b"value of a", b"value of b"]
    with pytest.raises(Refused) as caught:
        await remote.provider.resolve(authority_for([secret("missing")]), 0.0)
    assert caught.value.reason is Reason.MATERIAL_UNAVAILABLE
    assert caught.value.__context__ is None
    assert loop_thread not in readers_seen
    assert remote.pool.is_clean()


async def test_stuck_root_is_unavailable_at_once(remote: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a thread is stuck, health is failed and requests are refused without a thread; later all is well again."""
    gate = threading.Event()

    def opener(anchor: int, name: bytes, flags: int) -> int:
        gate.wait()
        return rootfs.openat2(anchor, name, flags)

    remote.provider._opener = opener
    monkeypatch.setattr(limits, "MATERIAL_S", 0.1)
    monkeypatch.setattr(readers, "STUCK_AFTER_S", 0.05)
    for _ in range(3):
        with pytest.raises(Refused) as caught:
            await remote.provider.resolve(authority_for([A]), 0.0)
        assert caught.value.reason is Reason.ROOT_UNAVAILABLE
        assert [thread.name for thread in threading.enumerate()].count("material") == 1
    assert remote.provider.health() == "failed"
    assert not remote.provider.inline()
    assert remote.provider.stats.stuck_threads == 1
    assert remote.provider.stats.unavailable == 3
    gate.set()
    monkeypatch.setattr(limits, "MATERIAL_S", 20)
    await asyncio.to_thread(wait_for, lambda: remote.provider.stats.stuck_threads == 0)
    assert remote.provider.health() == "ok"
    (await remote.provider.resolve(authority_for([A]), 0.0)).wipe()
    assert remote.pool.is_clean()


def test_flags_of_material(flat: Stage) -> None:
    """Material is opened read-only, close-on-exec and without waiting, as the contract names the flags."""
    assert os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY == FILE
    seen = []

    def opener(anchor: int, name: bytes, flags: int) -> int:
        seen.append((name.decode(), flags))
        return rootfs.openat2(anchor, name, flags)

    Stage(flat.root, opener).values(A)
    assert seen == [(A.file_name, FILE)]
