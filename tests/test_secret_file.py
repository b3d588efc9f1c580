"""Files of pepper and password: small, regular, closed to others, one line end removed (contract 8)."""

import os
from pathlib import Path

import pytest

from sidecar.config import Config
from sidecar.secret_file import SecretFileFault
from tests.kit.environments import (
    LOGIN,
    PASSWORD_FILE,
    PEPPER,
    PEPPER_FILE,
    POSTGRES,
    PREVIOUS_FILE,
    SQLITE,
    changed,
    held,
    outcome,
)


def read_by(name: str, path: str) -> object:
    """What `load` makes of the file under this variable: the configuration, or the faults."""
    if name == PASSWORD_FILE:
        return outcome(changed(POSTGRES, {name: path, f"{LOGIN}PASSWORD": None}))
    return outcome(
        changed(SQLITE, {name: path, "QL3_WORKER_CREDENTIAL_PEPPER": None if name == PEPPER_FILE else PEPPER})
    )


@pytest.mark.parametrize("name", [PEPPER_FILE, PREVIOUS_FILE, PASSWORD_FILE])
def test_a_secret_file_loses_one_line_end_and_nothing_else(name: str, tmp_path: Path) -> None:
    """One final LF is removed; any other white space is part of the secret, which a pepper may not have."""
    for content in (PEPPER, f"{PEPPER}\n"):
        assert isinstance(read_by(name, held(tmp_path, content.encode())), Config)
    for content in (f"{PEPPER}\n\n", f"{PEPPER}\r\n", f" {PEPPER}", f"{PEPPER} ", f"\ufeff{PEPPER}"):
        found = read_by(name, held(tmp_path, content.encode()))
        if name == PASSWORD_FILE:
            assert isinstance(found, Config) and found.postgres is not None
            assert found.postgres.password.read() == content.removesuffix("\n")
        else:
            assert isinstance(found, tuple) and [one.variable for one in found] == [name]


@pytest.mark.parametrize("name", [PEPPER_FILE, PREVIOUS_FILE, PASSWORD_FILE])
def test_a_secret_file_is_closed_to_others(name: str, tmp_path: Path) -> None:
    """Group write, and anything at all for others, is a fault; every other bit is not judged."""
    for bit in (1 << shift for shift in range(12)):
        found = read_by(name, held(tmp_path, PEPPER.encode(), 0o400 | bit))
        assert isinstance(found, tuple) is bool(bit & 0o027), oct(bit)


@pytest.mark.parametrize("name", [PEPPER_FILE, PREVIOUS_FILE, PASSWORD_FILE])
def test_a_secret_file_is_a_small_regular_file(name: str, tmp_path: Path) -> None:
    """A missing file, a directory, a FIFO, one over 4096 bytes and an empty one are faults; a link to a file is not."""
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo", 0o400)
    for path in ("missing", "directory", "fifo", "held/below"):
        found = read_by(name, str(tmp_path / path))
        assert isinstance(found, tuple) and [one.variable for one in found] == [name]
    for content in (b"", b"\n", b"x" * 4097, b"\0", b"\xff"):
        found = read_by(name, held(tmp_path, content))
        assert isinstance(found, tuple) and [one.variable for one in found] == [name]
    (tmp_path / "link").symlink_to(held(tmp_path, PEPPER.encode()))
    assert isinstance(read_by(name, str(tmp_path / "link")), Config)
    assert isinstance(read_by(PASSWORD_FILE, held(tmp_path, b"x" * 4096)), Config)


def test_a_password_file_is_read_for_every_use(tmp_path: Path) -> None:
    """A rotated password is what the next read gives; a file that went away is a fault then."""
    found = read_by(PASSWORD_FILE, held(tmp_path, b"old\n"))
    assert isinstance(found, Config) and found.postgres is not None
    held(tmp_path, b"new\n")
    assert found.postgres.password.read() == "new"
    (tmp_path / "held").unlink()
    with pytest.raises(SecretFileFault):
        found.postgres.password.read()


def test_an_unreadable_secret_file_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that fails in the middle of the read is a fault, and the descriptor is closed."""
    path = held(tmp_path, PEPPER.encode())
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr("sidecar.secret_file._read", lambda file: None)
    found = read_by(PEPPER_FILE, path)
    assert isinstance(found, tuple) and [one.variable for one in found] == [PEPPER_FILE]
    assert os.listdir("/proc/self/fd") == before
