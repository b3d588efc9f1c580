"""Mode `files`: `D/NAME`, mode 0400 in a private directory on tmpfs, and `NAME_FILE=D/NAME`.

Where this process may, D is covered with a tmpfs of its own that nobody else sees and that goes with the command.
Otherwise the files are overwritten and removed at the end; if `exec` was killed, by its next start with the same D. A
mark in D, written before the first file, tells such a leftover from files of somebody else, which are never touched.
"""

import fcntl
import os
import stat
from contextlib import suppress
from typing import Final

from provider.limits import BUNDLE_BYTES
from sidecar.cli.common import Exit, Fault
from sidecar.inject import Injection, Values, is_name
from sidecar.inject_mount import is_memory, mount_private, unmount

MARK: Final = ".secret-sidecar-exec"
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_ZEROS: Final = bytes(BUNDLE_BYTES)


class Files(Injection):
    """Owns the directory for the time of one command; a lock on it keeps a second `exec` out."""

    def __init__(self, directory: str, *, allow_disk: bool) -> None:
        self._path = os.path.abspath(directory)
        self._allow_disk = allow_disk
        self._created = False
        self._covered = False
        self._lock: int | None = None
        self._directory: int | None = None
        self._names: list[str] = []

    def prepare(self) -> None:
        """Make or judge the directory, lock it, and remove what a killed `exec` left."""
        try:
            self._claim()
        except OSError as error:
            wrong = f"The directory of --dir cannot be used ({error.strerror})."
            raise Fault(
                Exit.TARGET_REFUSED, wrong, "Name a directory of your own, or one that does not exist."
            ) from None

    def _claim(self) -> None:
        with suppress(FileExistsError):
            os.mkdir(self._path, 0o700)
            self._created = True
        self._lock = os.open(self._path, _OPEN_DIRECTORY)
        status = os.fstat(self._lock)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) != 0o700:
            raise Fault(Exit.TARGET_REFUSED, "The directory of --dir is not private.", "It must be yours, mode 0700.")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            mend = "Give each command a directory of its own."
            raise Fault(Exit.TARGET_REFUSED, "The directory of --dir is in use by another exec.", mend) from None
        _sweep(self._lock)
        self._covered = mount_private(self._path)
        self._directory = os.open(self._path, _OPEN_DIRECTORY)
        if not self._allow_disk and not is_memory(self._directory):
            mend = "Use a directory below /dev/shm or another tmpfs, or accept the disk with --allow-disk."
            raise Fault(Exit.TARGET_REFUSED, "The directory of --dir is not on tmpfs.", mend)
        os.close(os.open(MARK, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN_FILE, 0o600, dir_fd=self._directory))

    def fill(self, values: Values) -> None:
        """Write the files."""
        try:
            for name, value in values:
                self._write(name, value)
        except OSError as error:
            wrong = f"A secret could not be written below --dir ({error.strerror})."
            raise Fault(Exit.TARGET_REFUSED, wrong, "Check its free space.") from None

    def _write(self, name: str, value: memoryview) -> None:
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN_FILE, 0o400, dir_fd=self._directory)
        self._names.append(name)
        try:
            os.fchmod(descriptor, 0o400)
            written = 0
            while written < len(value):
                written += os.write(descriptor, value[written:])
        finally:
            os.close(descriptor)

    def variables(self) -> dict[str, str]:
        """As `Injection`."""
        return {f"{name}_FILE": f"{self._path}/{name}" for name in self._names}

    def close(self) -> None:
        """Overwrite and remove the files and the mark, and the directory if it was made here and is empty."""
        if self._directory is not None:
            for name in self._names:
                with suppress(OSError):
                    _erase(self._directory, name)
            with suppress(OSError):
                os.unlink(MARK, dir_fd=self._directory)
            os.close(self._directory)
            self._directory = None
        if self._covered:
            unmount(self._path)
            self._covered = False
        if self._created:
            with suppress(OSError):
                os.rmdir(self._path)
            self._created = False
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _sweep(directory: int) -> None:
    """Remove what a killed `exec` left. Raises Fault when there is anything else."""
    entries = os.listdir(directory)
    if MARK in entries:
        for name in filter(is_name, entries):
            with suppress(OSError):
                _erase(directory, name)
        if not set(os.listdir(directory)) - {MARK}:
            os.unlink(MARK, dir_fd=directory)
    if os.listdir(directory):
        mend = "Name an empty directory, or one that does not exist."
        raise Fault(Exit.TARGET_REFUSED, "The directory of --dir has files of somebody else.", mend)


def _erase(directory: int, name: str) -> None:
    """Overwrite a regular file with zeros and remove it."""
    descriptor = os.open(name, os.O_RDONLY | _OPEN_FILE, dir_fd=directory)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return
        os.fchmod(descriptor, 0o600)
        writer = os.open(name, os.O_WRONLY | _OPEN_FILE, dir_fd=directory)
        try:
            # What we wrote is never longer; whatever grew it since is not ours.
            os.pwrite(writer, _ZEROS[: status.st_size], 0)
            os.fsync(writer)
        finally:
            os.close(writer)
    finally:
        os.close(descriptor)
    os.unlink(name, dir_fd=directory)
