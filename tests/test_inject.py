"""The modes of `exec` one by one: names, and the directory of mode files and whom it belongs to."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar import inject_files
from sidecar.cli.common import Exit, Fault
from sidecar.inject import is_name, names_of
from sidecar.inject_env import Environment
from sidecar.inject_fd import Descriptors
from sidecar.inject_files import MARK, Files
from sidecar.inject_mount import is_memory
from sidecar.inject_stdin import StandardInput
from tests.kit.memscan import ROOT
from tests.kit.side import Side

VALUES = [("A", memoryview(b"first")), ("B", memoryview(b"second"))]


# --- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "LD_", "LD_PRELOAD", "PYTHON", "PYTHONPATH", "QL3_", "QL3_X", "IFS", "BASH_ENV", "ENV"),
        *("NODE_OPTIONS", "PERL5", "PERL5LIB", "RUBY", "RUBYOPT", "GIT_", "GIT_SSH"),
        *("", "1A", "a-b", "a.b", "a b", "A=B", "A\n", "\u00c9", "A\0", "a" * 129),
    ],
)
def test_refused_names(name: str) -> None:
    """Names by which a value would become code or configuration, and what is no name, are refused."""
    assert not is_name(name)


@pytest.mark.parametrize(
    "name", ["A", "_", "a1", "path", "PATHS", "LD", "XLD_A", "ENVIRONMENT", "GIT", "PERL", "a" * 128]
)
def test_allowed_names(name: str) -> None:
    """Everything else of the grammar is allowed."""
    assert is_name(name)


@given(st.text(max_size=10))
def test_every_name_is_plain(name: str) -> None:
    """What is allowed consists of ASCII letters, digits and underscores, whatever the text."""
    if is_name(name):
        assert name.isascii()
        assert name.isidentifier()


@pytest.mark.parametrize(
    ("names", "bundle", "text"),
    [
        (["A", "B"], None, "has an environment bundle"),
        (["LD_PRELOAD", "B"], "C", "a variable that is refused"),
        (["A", "1"], "C", "a variable that is refused"),
        (["A", "B"], "B", "that of a secret"),
        (["A", "A_FILE"], "C", "both X and X_FILE"),
        (["A", "B"], "A_FILE", "both X and X_FILE"),
        (["A", "C_FILE"], "C", "both X and X_FILE"),
    ],
)
def test_offers_that_cannot_be_injected(tmp_path: Path, names: list[str], bundle: str | None, text: str) -> None:
    """Refused names, clashes with NAME_FILE and a bundle without a name are bad input; the message names no name."""
    side = Side.make(tmp_path)
    refs = side.document["secretRefs"]
    assert isinstance(refs, list)
    entries = [{"name": name, "secretRef": ref} for name, ref in zip(names, refs, strict=True)]
    with pytest.raises(Fault, match=text) as caught:
        names_of(side.offer(environment=entries), bundle)
    assert caught.value.code == Exit.BAD_INPUT
    assert side.offer().command.bundle_refs
    assert names_of(side.offer(), "B") == ("SECRET_0", "SECRET_1", "B")


# --- files ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A path on tmpfs that does not exist; nothing is mounted, whatever this process may do."""
    monkeypatch.setattr(inject_files, "mount_private", lambda _: False)
    path = Path("/dev/shm") / f"inject-test-{os.getpid()}"
    yield path
    if path.is_dir():
        for entry in path.iterdir():
            entry.rmdir() if entry.is_dir() else entry.unlink()
        path.rmdir()


def _refused(directory: Path, text: str, *, allow_disk: bool = False) -> None:
    with pytest.raises(Fault, match=text) as caught, Files(str(directory), allow_disk=allow_disk):
        raise AssertionError("prepared")
    assert caught.value.code == Exit.TARGET_REFUSED


def test_files_come_and_go(directory: Path) -> None:
    """Files of mode 0400 stand in a directory of mode 0700 while the command runs, and nothing of it afterwards."""
    with Files(str(directory), allow_disk=False) as files:
        files.fill(VALUES)
        assert files.variables() == {"A_FILE": f"{directory}/A", "B_FILE": f"{directory}/B"}
        assert (directory / "A").read_bytes() == b"first"
        assert oct((directory / "B").stat().st_mode) == "0o100400"
        assert oct(directory.stat().st_mode) == "0o40700"
    assert not directory.exists()


def test_a_directory_that_was_there_stays(directory: Path) -> None:
    """A directory that exec did not make stays, empty; so does one in which the command left something."""
    directory.mkdir(0o700)
    with Files(str(directory), allow_disk=False) as files:
        files.fill(VALUES)
    assert list(directory.iterdir()) == []
    directory.rmdir()
    with Files(str(directory), allow_disk=False) as files:
        files.fill(VALUES)
        (directory / "result").write_text("of the command")
    assert [entry.name for entry in directory.iterdir()] == ["result"]
    _refused(directory, "files of somebody else")
    assert (directory / "result").read_text() == "of the command"


def test_values_are_overwritten(directory: Path) -> None:
    """At the end a file is zeroed before it is removed: who still has it open reads zeros."""
    with Files(str(directory), allow_disk=False) as files:
        files.fill(VALUES)
        reader = (directory / "A").open("rb", buffering=0)
    with reader:
        assert reader.read() == b"\0" * 5


def _killed(directory: Path) -> None:
    """Leave what an `exec` leaves that was killed while its command ran."""
    program = (
        "import os, signal, sys\n"
        "from sidecar import inject_files\n"
        "inject_files.mount_private = lambda _: False\n"
        "files = inject_files.Files(sys.argv[1], allow_disk=True)\n"
        "files.__enter__()\n"
        "files.fill([('A', memoryview(b'first')), ('B', memoryview(b'second'))])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(directory)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL


def test_the_next_start_cleans(directory: Path) -> None:
    """What a killed exec left is overwritten and removed by the next start, before anything is fetched."""
    _killed(directory)
    assert (directory / "A").read_bytes() == b"first"
    with (directory / "A").open("rb", buffering=0) as reader:
        with Files(str(directory), allow_disk=False):
            assert [entry.name for entry in directory.iterdir()] == [MARK]
            assert reader.read() == b"\0" * 5
        assert list(directory.iterdir()) == []


def test_cleaning_touches_nothing_of_others(directory: Path) -> None:
    """Without the mark nothing is removed; with it, what cannot be ours stays and the directory is refused."""
    directory.mkdir(0o700)
    (directory / "A").write_text("theirs")
    _refused(directory, "files of somebody else")
    assert (directory / "A").read_text() == "theirs"
    (directory / "A").unlink()
    _killed(directory)
    (directory / "SUB").mkdir()
    (directory / "LINK").symlink_to("/etc/passwd")
    (directory / "a-b").write_text("theirs")
    _refused(directory, "files of somebody else")
    assert sorted(entry.name for entry in directory.iterdir()) == [MARK, "LINK", "SUB", "a-b"]
    assert Path("/etc/passwd").stat().st_size > 0


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701, 0o500, 0o1700])
def test_a_directory_that_is_not_private(directory: Path, mode: int) -> None:
    """A directory of any mode but 0700 is refused."""
    directory.mkdir()
    directory.chmod(mode)
    _refused(directory, "is not private")


def test_paths_that_are_no_directory(directory: Path, tmp_path: Path) -> None:
    """A file, a link to a directory, and a directory whose parent is missing are refused."""
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("")
    link.symlink_to("/dev/shm")
    for path in (file, link, tmp_path / "missing" / "d"):
        _refused(path, "cannot be used")


def test_one_at_a_time(directory: Path) -> None:
    """A directory that an exec is using is refused to a second one, which changes nothing there."""
    with Files(str(directory), allow_disk=False) as files:
        files.fill(VALUES)
        _refused(directory, "in use by another exec")
        assert (directory / "A").read_bytes() == b"first"


def test_disks(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that is not on tmpfs is refused unless --allow-disk says so."""
    monkeypatch.setattr(inject_files, "is_memory", lambda _: False)
    _refused(directory, "not on tmpfs")
    assert not directory.exists()
    with Files(str(directory), allow_disk=True) as files:
        files.fill(VALUES)
        assert (directory / "A").read_bytes() == b"first"
    assert not directory.exists()


def test_kinds_of_file_systems() -> None:
    """Only tmpfs and ramfs are memory; the kernel itself is asked."""
    for path, expected in (("/dev/shm", True), ("/proc", False)):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            assert is_memory(descriptor) is expected
        finally:
            os.close(descriptor)
    with pytest.raises(OSError, match="fstatfs"):
        is_memory(-1)


def test_a_file_system_that_is_full(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a value cannot be written the target is refused and nothing of the others stays."""

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sidecar.inject_files.os.write", full)
    with pytest.raises(Fault, match="could not be written"), Files(str(directory), allow_disk=False) as files:
        files.fill(VALUES)
    assert not directory.exists()


# --- the others ------------------------------------------------------------------------------------------------------


def test_env_strings() -> None:
    """Mode env lays out `NAME=value` strings that end with NUL, and wipes them when the stage has its own."""
    import ctypes

    injection = Environment()
    injection.fill(VALUES)
    assert [ctypes.string_at(address) for address in injection.secret_strings()] == [b"A=first", b"B=second"]
    block = injection._block
    assert block is not None
    with memoryview(block) as view:
        assert bytes(view).rstrip(b"\0") == b"A=first\0B=second"
        with pytest.raises(BufferError):  # the test's own view keeps it mapped, so that it can be looked at
            injection.forked()
        assert bytes(view).strip(b"\0") == b""


def test_env_strings_have_a_limit() -> None:
    """A value that Linux takes in no environment string is refused, not cut."""
    with pytest.raises(Fault, match="too long for a variable") as caught, Environment() as injection:
        injection.fill([("A", memoryview(b"v" * 131_070))])
    assert caught.value.code == Exit.TARGET_REFUSED


def _no_more_files(*_: object) -> int:
    raise OSError(24, "Too many open files")


def _no_larger_pipe(*_: object) -> int:
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize(
    ("make", "patch", "value", "text"),
    [
        (Descriptors, ("sidecar.inject_fd.os.memfd_create", _no_more_files), b"v", "memory file could not be made"),
        (StandardInput, ("sidecar.inject_stdin.fcntl.fcntl", _no_larger_pipe), b"v", "no pipe of that size"),
        (StandardInput, None, b"\x01" * 200_000, "too large for a pipe"),
    ],
)
def test_what_the_kernel_refuses(
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[], Descriptors | StandardInput],
    patch: tuple[str, Callable[..., int]] | None,
    value: bytes,
    text: str,
) -> None:
    """When the kernel gives no room for the values the target is refused, and nothing stays open."""
    if patch is not None:
        monkeypatch.setattr(*patch)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(Fault, match=text) as caught, make() as injection:
        injection.fill([("A", memoryview(value))])
    assert caught.value.code == Exit.TARGET_REFUSED
    assert len(os.listdir("/proc/self/fd")) == before
