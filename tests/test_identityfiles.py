"""sidecar/identityfiles.py: each file once, through a descriptor, all of one moment, and the key wiped afterwards."""

import os
import resource
from pathlib import Path

import pytest

from sidecar.identityfiles import IdentityFiles, read, stamp
from sidecar.trust import Fault, Finding, IdentityFault, Role
from tests.kit.pki import files_in, pki, put, put_server, server


@pytest.fixture
def files(tmp_path: Path) -> IdentityFiles:
    """The four files of the valid world."""
    return pki().write(tmp_path / "tls", crl=pki().crl_pem())


def test_key_modes(files: IdentityFiles) -> None:
    """A key's mode has no group write and nothing for others (contract 8); all 64 modes of both are tried."""
    for mode in range(0o400, 0o500):
        os.chmod(files.private_key, mode)
        if mode & 0o027:
            with pytest.raises(IdentityFault) as caught:
                read(files)
            assert caught.value.faults == (Finding(Role.PRIVATE_KEY, Fault.KEY_MODE),)
        else:
            with read(files) as material:
                assert material.content[Role.PRIVATE_KEY] == pki().server.key_pem


def test_each_file_is_opened_once(files: IdentityFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading of files that stay opens each of the four names once and nothing twice."""
    opened: list[str] = []
    real = os.open

    def open_(path: str, flags: int) -> int:
        opened.append(path)
        return real(path, flags)

    monkeypatch.setattr(os, "open", open_)
    with read(files):
        assert opened == [path for _, path in files.named()]
        assert len(opened) == 4


def test_files_that_change_are_read_again(files: IdentityFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a file changes between its reading and the last look, all are read again and none of the old set stays."""
    world = pki()
    renewed = server(world.root)
    real = os.readv
    changes = [lambda: put_server(files, renewed), lambda: None]

    def readv(fd: int, room: list[memoryview]) -> int:
        count = real(fd, room)
        if bytes(room[0][:11]) == b"-----BEGIN " and b"X509 CRL" in bytes(room[0][:30]):
            changes.pop(0)()
        return count

    monkeypatch.setattr(os, "readv", readv)
    with read(files) as material:
        assert material.content[Role.PRIVATE_KEY] == renewed.key_pem
        assert material.content[Role.CERTIFICATE] == renewed.chain_pem
    assert changes == []


def test_files_that_keep_changing_are_refused(files: IdentityFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """After three readings that a writer spoiled the fault names the file."""
    real = os.readv
    reads: list[int] = []

    def readv(fd: int, room: list[memoryview]) -> int:
        reads.append(fd)
        os.utime(files.certificate, ns=(0, len(reads)))
        return real(fd, room)

    monkeypatch.setattr(os, "readv", readv)
    with pytest.raises(IdentityFault) as caught:
        read(files)
    assert caught.value.faults == (Finding(Role.CERTIFICATE, Fault.CHANGING),)
    assert len(reads) == 12


def test_a_file_cut_short_while_read_is_refused(files: IdentityFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that loses bytes between `fstat` and the reading is never judged with zeros at its end."""
    real = os.readv

    def readv(fd: int, room: list[memoryview]) -> int:
        os.truncate(files.client_ca, os.stat(files.client_ca).st_size - 1)
        return real(fd, room)

    monkeypatch.setattr(os, "readv", readv)
    with pytest.raises(IdentityFault) as caught:
        read(files)
    assert caught.value.faults == (Finding(Role.CLIENT_CA, Fault.CHANGING),)


def test_no_descriptor_left(files: IdentityFiles) -> None:
    """Exhausted descriptors are a fault of their own for every file, and the next reading is good again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(IdentityFault) as caught:
            read(files)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert {found.fault for found in caught.value.faults} == {Fault.RESOURCES}
    with read(files) as material:
        assert len(material.content) == 4


def test_projected_links_are_followed(tmp_path: Path) -> None:
    """The kubelet's layout, `name -> ..data/name` and `..data -> ..generation`, is read like plain files."""
    pki().write(tmp_path / "..2030", crl=pki().crl_pem())
    (tmp_path / "..data").symlink_to("..2030")
    for name in ("tls.key", "tls.crt", "ca.crt", "ca.crl"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    with read(files_in(tmp_path, crl=True)) as material:
        assert material.content[Role.PRIVATE_KEY] == pki().server.key_pem


def test_the_key_is_wiped(files: IdentityFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffer that held the key is zeros once the material was left, and after a reading that failed."""
    buffers: list[memoryview] = []
    real = os.readv

    def readv(fd: int, room: list[memoryview]) -> int:
        buffers.append(memoryview(room[0]))
        return real(fd, room)

    monkeypatch.setattr(os, "readv", readv)
    with read(files) as material:
        assert material.content[Role.PRIVATE_KEY] == bytes(buffers[0]) == pki().server.key_pem
    assert not any(buffers[0])
    os.unlink(files.client_ca)
    buffers.clear()
    with pytest.raises(IdentityFault):
        read(files)
    assert len(buffers[0]) == len(pki().server.key_pem)
    assert not any(buffers[0])


def test_digest(files: IdentityFiles) -> None:
    """The digest follows the contents and what they are for, not names, times or inodes."""

    def digest(which: IdentityFiles) -> str:
        with read(which) as material:
            return material.digest

    first = digest(files)
    put(files.client_ca, Path(files.client_ca).read_bytes())
    assert digest(files) == first
    swapped = IdentityFiles(files.private_key, files.client_ca, files.certificate, files.client_crl)
    without = IdentityFiles(files.private_key, files.certificate, files.client_ca)
    put(files.certificate, Path(files.certificate).read_bytes() + b"\n")
    assert len({first, digest(swapped), digest(without), digest(files)}) == 4


def test_stamp(files: IdentityFiles) -> None:
    """What `stat` shows changes with a file's content, mode and inode, and is None for a file that is not there."""
    seen = [stamp(files)]
    assert stamp(files) == seen[0]
    put(files.client_ca, b"x")
    seen.append(stamp(files))
    os.chmod(files.private_key, 0o400)
    seen.append(stamp(files))
    os.unlink(files.certificate)
    seen.append(stamp(files))
    assert len(set(seen)) == 4
    assert [one is None for one in seen[3]] == [False, True, False, False]
