"""Which mount, and of what kind: learnt from the kernel's tables, and never stale."""

import errno
import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from provider import mounts
from provider.mounts import LOCAL_KINDS, MountProbe, MountTable, mount_id
from provider.rootfs import Descriptors
from tests.kit import mounting

HOME = Path(__file__).parent.parent


@pytest.fixture
def here(tmp_path: Path) -> Iterator[int]:
    """A descriptor on the mount of the tests' directory."""
    with Descriptors([os.open(tmp_path, os.O_PATH)]) as held:
        yield held[0]


def tabled(monkeypatch: pytest.MonkeyPatch, lines: bytes) -> MountTable:
    """A mount table that holds these lines instead of the real ones."""
    monkeypatch.setattr(mounts, "_whole", lambda _: lines)
    return MountTable()


def test_local_kinds_are_the_contracts() -> None:
    """Exactly the eight kinds of contract 7 are local."""
    assert {kind.decode() for kind in LOCAL_KINDS} == {
        "tmpfs", "ramfs", "ext2", "ext3", "ext4", "xfs", "btrfs", "overlay"
    }  # fmt: skip


def test_every_mount_is_found(here: int) -> None:
    """The id that a descriptor tells is one of the table, and every line of the real table is understood."""
    with Path("/proc/self/mountinfo").open("rb") as table:
        lines = table.read().splitlines()
    found = dict(mounts._MOUNT.findall(b"\n".join(lines)))
    assert len(found) == len(lines)
    assert str(mount_id(here)).encode() in found


@pytest.mark.parametrize(
    ("kind", "local"),
    [(kind.decode(), True) for kind in sorted(LOCAL_KINDS)]
    + [(kind, False) for kind in ("nfs", "nfs4", "fuse", "fuse.sshfs", "cifs", "9p", "ext", "ext44", "proc", "tmp")],
)
def test_kind(monkeypatch: pytest.MonkeyPatch, kind: str, local: bool) -> None:
    """A kind is local or not by its whole name; fields before and after it do not matter."""
    lines = (
        f"21 1 0:20 / /tmpfs rw shared:1 - nfs tmpfs:/ext4 rw\n"
        f"22 21 0:21 / /a\\040-\\040ext4 rw,noatime shared:2 master:3 - {kind} source rw - ext4\n"
        f"23 21 0:22 /x /b ro - nfs 22 ro\n"
    )
    table = tabled(monkeypatch, lines.encode())
    assert table.is_local(22) is local
    assert table.is_local(21) is table.is_local(23) is False


def test_unknown_mount_is_not_local(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount that the table does not show is not local."""
    assert tabled(monkeypatch, b"22 1 0:21 / / rw - ext4 x rw\n").is_local(2) is False


def test_long_table_is_read_whole(monkeypatch: pytest.MonkeyPatch, here: int) -> None:
    """A table longer than one read is read to its end."""
    monkeypatch.setattr(mounts, "_CHUNK_BYTES", 50)
    with Path("/proc/self/mountinfo").open("rb") as table:
        lines = table.read()
    with Descriptors([os.open("/proc/self/mountinfo", os.O_RDONLY)]) as held:
        assert mounts._whole(held[0]) == lines


def test_table_is_read_once_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as the kernel reports no change the table is not read again."""
    reads: list[int] = []

    def whole(descriptor: int) -> bytes:
        reads.append(descriptor)
        return b"22 1 0:21 / / rw - ext4 x rw\n"

    monkeypatch.setattr(mounts, "_whole", whole)
    table = MountTable()
    table._table()
    changed = [False, False, True, False]

    class Changes:
        def poll(self, timeout: int) -> bool:
            return changed.pop(0)

    table._changes = Changes()  # type: ignore[assignment]
    assert [table.is_local(22) and len(reads) for _ in range(4)] == [1, 1, 2, 2]


def test_missing_mount_id(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A descriptor that is none, and a /proc that does not tell the mount, are OSErrors."""
    with pytest.raises(FileNotFoundError):
        mount_id(1_000_000)
    with Descriptors([os.open(os.devnull, os.O_RDONLY)]) as held, monkeypatch.context() as patch:
        patch.setattr(os, "read", lambda *_: b"pos:\t0\nflags:\t02\n")
        with pytest.raises(OSError, match=r"Errno"):
            mount_id(held[0])


def test_table_is_closed_with_its_owner() -> None:
    """The table's own descriptor lives as long as the table."""
    table = MountTable()
    table.is_local(1)
    descriptor = table._descriptor
    assert descriptor is not None
    assert os.readlink(f"/proc/self/fd/{descriptor}").endswith("/mountinfo")
    del table
    gc.collect()
    with pytest.raises(OSError, match=r"Errno"):
        os.fstat(descriptor)


def test_undumpable_process_can_ask() -> None:
    """A process that is not dumpable, as ours is, still learns its own mounts, whoever runs it."""
    program = (
        "import ctypes, os; from provider.mounts import MountTable, mount_id;"
        "assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0;"
        "print(MountTable().is_local(mount_id(os.open('/proc', os.O_PATH))))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=HOME)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


@pytest.mark.root
def test_reused_id_is_judged_again() -> None:
    """Mount ids are used again: what the table says of one is what is mounted now, after any number of changes."""
    table = MountTable()
    with tempfile.TemporaryDirectory() as point:
        seen: dict[int, set[str]] = {}
        for kind in ("tmpfs", "proc") * 10:
            with mounting.mounted("none", point, kind), Descriptors([os.open(point, os.O_PATH)]) as held:
                mount = mount_id(held[0])
                assert table.is_local(mount) is (kind == "tmpfs")
                seen.setdefault(mount, set()).add(kind)
        assert any(len(kinds) == 2 for kinds in seen.values()), "no id was used again: nothing was tested"


def test_the_probe_agrees_and_holds_nothing(here: int) -> None:
    """A probe gives the id that a fresh look gives, whatever is asked in between, and keeps no mount busy."""
    probe = MountProbe()
    with Descriptors([os.open("/proc", os.O_PATH)]) as other:
        for _ in range(3):
            assert probe.mount_id(here) == mount_id(here)
            assert probe.mount_id(other[0]) == mount_id(other[0])
        assert mount_id(probe._held[0]) == mount_id(other[0])


def test_the_probe_gives_its_descriptors_back() -> None:
    """A probe that is dropped leaves no descriptor behind."""
    gc.collect()  # what earlier tests dropped must not be closed in between
    with Descriptors([os.open("/", os.O_PATH)]) as held:
        before = len(os.listdir("/proc/self/fd"))
        probe = MountProbe()
        probe.mount_id(held[0])
        assert len(os.listdir("/proc/self/fd")) == before + 2
        del probe
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_descriptor_that_is_none(here: int) -> None:
    """What is no descriptor is an OSError, and the probe answers afterwards."""
    probe = MountProbe()
    with pytest.raises(OSError):
        probe.mount_id(1_000_000)
    assert probe.mount_id(here) == mount_id(here)


def test_no_room_for_the_probe(monkeypatch: pytest.MonkeyPatch, here: int) -> None:
    """A probe that cannot open what it needs leaves nothing open and tries anew the next time."""
    probe, real = MountProbe(), os.open
    before = len(os.listdir("/proc/self/fd"))

    def refuse(path: str, *rest: int) -> int:
        if "fdinfo" in path:
            raise OSError(errno.EMFILE, None)
        return real(path, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        with pytest.raises(OSError):
            probe.mount_id(here)
    assert len(os.listdir("/proc/self/fd")) == before
    assert probe.mount_id(here) == mount_id(here)
