"""Reading the files of the TLS identity: each once, through a descriptor, and all of one moment (contract 8)."""

import errno
import hashlib
import os
import stat
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from sidecar.trust import Fault, Finding, IdentityFault, Role, collecting

FILE_BYTES: Final = 1 << 20
"""Largest identity file (contract 8)."""
_PASSES: Final = 3
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_KEY_OPEN_TO_OTHERS: Final = stat.S_IWGRP | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class IdentityFiles:
    """Absolute paths of the identity; without a CRL file revocation is not checked (contract 8)."""

    private_key: str
    certificate: str
    client_ca: str
    client_crl: str | None = None

    def named(self) -> tuple[tuple[Role, str], ...]:
        """Return the configured files in their order."""
        required = (
            (Role.PRIVATE_KEY, self.private_key),
            (Role.CERTIFICATE, self.certificate),
            (Role.CLIENT_CA, self.client_ca),
        )
        return required if self.client_crl is None else (*required, (Role.CLIENT_CRL, self.client_crl))


Stamp = tuple[tuple[int, ...] | None, ...]


def stamp(files: IdentityFiles) -> Stamp:
    """Return what `stat` shows of each file, None where it shows nothing: a cheap sign that something changed."""
    return tuple(_stat(path) for _, path in files.named())


class Material:
    """The files' bytes of one reading. A context manager: leaving overwrites the private key."""

    __slots__ = ("content", "digest")

    def __init__(self, content: dict[Role, bytearray]) -> None:
        """Own these bytes and compute their digest (hex SHA-256 over roles, lengths and contents)."""
        self.content = content
        digest = hashlib.sha256()
        for role, data in content.items():
            digest.update(f"{role.value}:{len(data)}:".encode())
            digest.update(data)
        self.digest = digest.hexdigest()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        key = self.content[Role.PRIVATE_KEY]
        key[:] = bytes(len(key))


def read(files: IdentityFiles) -> Material:
    """Read every file once through a descriptor; again, at most three times in all, when one changed meanwhile.

    Raises IdentityFault with what is wrong with any of the files themselves (contract 8).
    """
    changed: list[Finding] = []
    for _ in range(_PASSES):
        findings: list[Finding] = []
        content: dict[Role, bytearray] = {}
        seen: dict[Role, tuple[int, ...]] = {}
        for role, path in files.named():
            with collecting(findings):
                content[role], seen[role] = _read_file(path, role)
        if findings:
            _wipe(content)
            raise IdentityFault(*findings)
        # The names are looked up again after the last read, so that files of two generations are rarely mixed; where
        # they still are, the judgement of the whole finds it.
        changed = [Finding(role, Fault.CHANGING) for role, path in files.named() if _stat(path) != seen[role]]
        if not changed:
            return Material(content)
        _wipe(content)
    raise IdentityFault(*changed)


def _read_file(path: str, role: Role) -> tuple[bytearray, tuple[int, ...]]:
    try:
        # Not blocking: a FIFO in place of the file must not stop the start.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (FileNotFoundError, NotADirectoryError):
        raise IdentityFault(Finding(role, Fault.MISSING)) from None
    except OSError as error:
        fault = Fault.RESOURCES if error.errno in _EXHAUSTED else Fault.UNREADABLE
        raise IdentityFault(Finding(role, fault)) from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise IdentityFault(Finding(role, Fault.NOT_REGULAR))
        if status.st_size > FILE_BYTES:
            raise IdentityFault(Finding(role, Fault.TOO_LARGE))
        if role is Role.PRIVATE_KEY and status.st_mode & _KEY_OPEN_TO_OTHERS:
            raise IdentityFault(Finding(role, Fault.KEY_MODE))
        data = bytearray(status.st_size)
        length = 0
        with memoryview(data) as room:
            while length < len(data) and (count := os.readv(fd, [room[length:]])):
                length += count
        # A file that was cut short keeps the zeros of its rest; the comparison with `stat` afterwards finds it.
        return data, _signature(status)
    except OSError:
        raise IdentityFault(Finding(role, Fault.UNREADABLE)) from None
    finally:
        os.close(fd)


def _signature(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode


def _stat(path: str) -> tuple[int, ...] | None:
    try:
        return _signature(os.stat(path))
    except OSError:
        return None


def _wipe(content: dict[Role, bytearray]) -> None:
    key = content.get(Role.PRIVATE_KEY, bytearray())
    key[:] = bytes(len(key))
