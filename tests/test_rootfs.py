"""Opening beneath a descriptor: both openers keep the same promise, and the root is judged as the contract says."""

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from provider import rootfs
from provider.limits import LINK_DEPTH
from provider.outcomes import Reason, Refused
from provider.rootfs import DIRECTORY, FILE, PROBE, Descriptors, Opener, choose_opener, judge_root, open_root
from tests.kit import mounting
from tests.kit.stage import open_descriptors

ABSOLUTE = "/etc/hostname"


@pytest.fixture(params=[rootfs.openat2, rootfs.walk], ids=["openat2", "walk"])
def opener(request: pytest.FixtureRequest) -> Opener:
    """Both openers: every rule below holds for each."""
    chosen: Opener = request.param
    return chosen


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with files, directories and links that stay inside, beside a secret that lies outside."""
    (tmp_path / "outside").write_text("outside")
    root = tmp_path / "root"
    (root / "directory" / "deep").mkdir(parents=True)
    (root / "file").write_text("file")
    (root / "directory" / "deep" / "file").write_text("deep")
    for name, target in {
        "link": "file", "to-directory": "directory", "through": "to-directory/deep/file",
        "around": "directory/../directory/./deep//file", "up-and-down": "directory/deep/../../file", "self": ".",
        "absolute": ABSOLUTE, "absolute-inside": str(root / "file"), "escape": "../outside",
        "escape-and-return": "../root/file", "deep-escape": "directory/../../outside", "dangling": "missing",
        "loop": "pool", "pool": "loop", "file-as-directory": "file/", "file-parent": "file/../file",
        "magic": f"/proc/self/fd/{os.open(os.devnull, os.O_RDONLY)}", "root-of-all": "/",
    }.items():  # fmt: skip
        (root / name).symlink_to(target)
    os.close(int(os.readlink(root / "magic").rpartition("/")[2]))
    return root


@pytest.fixture
def anchor(root: Path) -> Iterator[int]:
    """The root as a descriptor."""
    with Descriptors([open_root(str(root))]) as held:
        yield held[0]


def read(opener: Opener, anchor: int, name: str) -> bytes:
    """Open beneath the anchor and read all."""
    with Descriptors([opener(anchor, name.encode(), FILE)]) as held:
        return os.read(held[0], 100)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("file", b"file"),
        ("link", b"file"),
        ("directory/deep/file", b"deep"),
        ("to-directory/deep/file", b"deep"),
        ("through", b"deep"),
        ("around", b"deep"),
        ("up-and-down", b"file"),
        ("self/file", b"file"),
    ],
)
def test_what_stays_inside_is_opened(opener: Opener, anchor: int, name: str, content: bytes) -> None:
    """A file, and links that stay beneath the anchor, are opened."""
    assert read(opener, anchor, name) == content


@pytest.mark.parametrize(
    "name",
    [
        "absolute", "absolute-inside", "escape", "escape-and-return", "deep-escape", "magic", "root-of-all",
        "../outside", "/etc/hostname", "directory/../../outside", "dangling", "missing", "loop", "file-as-directory",
        "file-parent", "file/x",
    ],
)  # fmt: skip
def test_what_leaves_or_leads_nowhere_is_refused(opener: Opener, anchor: int, name: str) -> None:
    """An absolute target, a target above the anchor, a loop, and a name that is not there are refused."""
    with pytest.raises(OSError, match=r"^\[Errno \d+\]"):
        opener(anchor, name.encode(), FILE)


def test_missing_is_told_apart(opener: Opener, anchor: int) -> None:
    """A missing name is FileNotFoundError, since a generation that was removed looks so; an escape is not."""
    with pytest.raises(FileNotFoundError):
        opener(anchor, b"dangling", FILE)
    with pytest.raises(OSError, match=r"Errno") as refused:
        opener(anchor, b"escape", FILE)
    assert refused.value.errno == errno.EXDEV


def test_flags_are_kept(opener: Opener, anchor: int, root: Path) -> None:
    """Files are opened for reading, close-on-exec; anchors and probes with O_PATH, anchors only on directories."""
    with Descriptors(opener(anchor, *ask) for ask in ((b"link", FILE), (b"link", PROBE), (b"self", DIRECTORY))) as held:
        assert not any(os.get_inheritable(descriptor) for descriptor in held)
        assert os.fstat(held[0]).st_ino == os.fstat(held[1]).st_ino == (root / "file").stat().st_ino
        assert os.fstat(held[2]).st_ino == root.stat().st_ino
        with pytest.raises(OSError, match=r"Errno 9\b"):
            os.read(held[1], 1)
        with pytest.raises(OSError, match=r"Errno 9\b"):
            os.write(held[0], b"x")
    with pytest.raises(NotADirectoryError):
        opener(anchor, b"link", DIRECTORY)


def test_resolve_flags() -> None:
    """The kernel is told all that the contract names, although BENEATH alone refuses magic links today."""
    no_xdev, no_magiclinks, beneath = 0x01, 0x02, 0x08
    assert {how.resolve for how in rootfs._HOWS.values()} == {no_xdev | no_magiclinks | beneath}


def test_fifo_is_not_waited_for(opener: Opener, anchor: int, root: Path) -> None:
    """A FIFO without a writer opens at once."""
    os.mkfifo(root / "fifo")
    with Descriptors([opener(anchor, b"fifo", FILE)]) as held:
        assert stat.S_ISFIFO(os.fstat(held[0]).st_mode)


def test_link_depth(opener: Opener, anchor: int, root: Path) -> None:
    """Eight links in a row are followed; the walk refuses the ninth, the kernel follows more."""
    for number in range(LINK_DEPTH + 1):
        (root / f"chain{number}").symlink_to(f"chain{number - 1}" if number else "file")
    assert read(opener, anchor, f"chain{LINK_DEPTH - 1}") == b"file"
    if opener is rootfs.walk:
        with pytest.raises(OSError, match=r"Errno") as refused:
            opener(anchor, f"chain{LINK_DEPTH}".encode(), FILE)
        assert refused.value.errno == errno.ELOOP


def test_no_descriptor_is_left(opener: Opener, anchor: int, root: Path) -> None:
    """Whether it opens or refuses, nothing stays open."""
    before = open_descriptors()
    for name in os.listdir(root):
        try:
            os.close(opener(anchor, name.encode(), FILE))
        except OSError:
            continue
    assert open_descriptors() == before


@pytest.mark.root
@pytest.mark.parametrize("name", ["directory", "file"])
def test_mount_inside_is_refused(opener: Opener, anchor: int, root: Path, name: str) -> None:
    """A mount inside the root, of a directory or of one file (`subPath`), is refused, also one of the same files."""
    inner = {"directory": "directory/deep/file", "file": "file"}[name]
    assert read(opener, anchor, inner)
    with mounting.mounted(str(root / name), root / name, "", mounting.MS_BIND):
        assert (root / inner).read_text()
        with pytest.raises(OSError, match=r"Errno") as refused:
            opener(anchor, inner.encode(), FILE)
        assert refused.value.errno == errno.EXDEV
    assert read(opener, anchor, inner)


def test_walk_compares_mounts(monkeypatch: pytest.MonkeyPatch, anchor: int) -> None:
    """The walk refuses a component on another mount than the anchor's, whichever component it is."""
    for component in (1, 2, 3):
        mounts = iter([1] * component + [2] + [1] * 3)
        monkeypatch.setattr(rootfs, "mount_id", lambda _, mounts=mounts: next(mounts))
        with pytest.raises(OSError, match=r"Errno") as refused:
            rootfs.walk(anchor, b"directory/deep/file", FILE)
        assert refused.value.errno == errno.EXDEV


def test_magic_links_are_refused(opener: Opener, tmp_path: Path) -> None:
    """A link of procfs, which leads anywhere, is refused even when procfs itself is the root."""
    target = tmp_path / "target"
    target.write_text("x")
    with Descriptors([os.open(target, os.O_RDONLY)]) as held:
        held.append(open_root(f"/proc/{os.getpid()}/fd"))
        with pytest.raises(OSError, match=r"Errno"):
            opener(held[1], str(held[0]).encode(), FILE)


def faked(monkeypatch: pytest.MonkeyPatch, *errors: int) -> list[int]:
    """Let the next calls of `openat2` fail with these errors, 0 meaning that the kernel is asked. Return those left."""
    left = list(errors)
    real = rootfs._syscall

    def syscall(*arguments: object) -> object:
        error = left.pop(0)
        if error:
            ctypes.set_errno(error)
            return -1
        return real(*arguments)

    monkeypatch.setattr(rootfs, "_syscall", syscall)
    return left


@pytest.mark.parametrize(
    ("error", "chosen"),
    [
        (0, rootfs.openat2),
        (errno.ENOSYS, rootfs.walk),
        (errno.EPERM, rootfs.walk),
        (errno.EMFILE, rootfs.openat2),
    ],
)
def test_self_test_chooses(monkeypatch: pytest.MonkeyPatch, error: int, chosen: Opener) -> None:
    """The walk is for kernels without `openat2` and sandboxes that forbid it; no other failure weakens the choice."""
    faked(monkeypatch, error)
    assert choose_opener() is chosen


def test_races_are_retried(monkeypatch: pytest.MonkeyPatch, anchor: int) -> None:
    """A rename that disturbs the kernel, or a signal, is tried again a few times, and then is an error."""
    left = faked(monkeypatch, errno.EAGAIN, errno.EINTR, 0)
    assert read(rootfs.openat2, anchor, "file") == b"file"
    assert not left
    left = faked(monkeypatch, *[errno.EAGAIN] * 20)
    with pytest.raises(BlockingIOError):
        rootfs.openat2(anchor, b"file", FILE)
    assert 0 < len(left) < 20


def test_descriptors_close_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every descriptor is closed on leaving, also after one whose close reports an error."""
    closed: list[int] = []

    def close(descriptor: int) -> None:
        closed.append(descriptor)
        raise OSError(errno.EIO, "late write error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", close)
        with Descriptors([1_000_007, 1_000_008]):
            pass
    assert closed == [1_000_007, 1_000_008]


@pytest.mark.parametrize(
    ("path", "holds"),
    [
        ("/run/values", True),
        ("/x", True),
        ("/" + "x" * 4095, True),
        ("/" + "ü" * 2047, True),
        ("/" + "x" * 4096, False),
        ("/" + "ü" * 2048, False),
        ("", False),
        ("/", False),
        ("//", False),
        ("//x", False),
        ("x", False),
        ("./x", False),
        ("/x/", False),
        ("/x//y", False),
        ("/x/./y", False),
        ("/x/../y", False),
        ("/x\0y", False),
        ("/x\ud800", False),
    ],
)
def test_root_path(path: str, holds: bool) -> None:
    """A root path is absolute, normalised, not `/`, at most 4096 bytes and free of NUL."""
    assert rootfs.is_root_path(path) is holds


def test_root_is_a_real_directory(root: Path) -> None:
    """The last component is a directory and no link; a parent may be a link."""
    for name in ("to-directory", "file", "missing"):
        with pytest.raises(OSError, match=r"Errno"):
            open_root(str(root / name))
    os.close(open_root(str(root / "to-directory" / "deep")))


def test_root_modes(root: Path) -> None:
    """Of all modes a root on a writable mount may have those that let nobody but its owner write."""
    with Descriptors([open_root(str(root))]) as held:
        for mode in range(0o10000):
            root.chmod(mode)
            if mode & 0o022:
                with pytest.raises(Refused) as refused:
                    judge_root(held[0])
                assert refused.value.reason is Reason.ROOT_UNAVAILABLE
            else:
                judge_root(held[0])
        root.chmod(0o755)


@pytest.mark.root
def test_root_on_a_read_only_mount(root: Path) -> None:
    """Where the mount is read-only the root may be 1777, as the kubelet leaves it."""
    root.chmod(0o1777)
    with mounting.mounted(str(root), root, "", mounting.MS_BIND):
        with Descriptors([open_root(str(root))]) as held, pytest.raises(Refused):
            judge_root(held[0])
        mounting.mount("", root, "", mounting.MS_REMOUNT | mounting.MS_BIND | mounting.MS_RDONLY)
        with Descriptors([open_root(str(root))]) as held:
            judge_root(held[0])


def test_root_that_cannot_be_judged() -> None:
    """A root whose mode cannot be had is unavailable."""
    with pytest.raises(Refused) as refused:
        judge_root(1_000_000)
    assert refused.value.reason is Reason.ROOT_UNAVAILABLE
