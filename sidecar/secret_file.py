"""Files that hold one secret of ours, the pepper or a password (contract 8)."""

import os
import stat
from typing import Final

SECRET_FILE_BYTES: Final = 4096
"""Largest such file."""
_OPEN_TO_OTHERS: Final = stat.S_IWGRP | stat.S_IRWXO


class SecretFileFault(Exception):
    """The file cannot be used. Tells what is wrong and how to mend it, without path or content."""

    def __init__(self, wrong: str, mend: str) -> None:
        """`wrong` follows the name of the variable; `mend` is a sentence."""
        super().__init__(wrong)
        self.wrong = wrong
        self.mend = mend


def read_secret_file(path: str) -> bytes:
    """Return the content without one final LF; everything else stays as it is.

    Raises SecretFileFault unless it is a readable regular file of at most 4096 bytes that the group cannot write and
    others cannot touch.
    """
    # Raised out here: inside an `except` the fault would carry the OSError, and with it the path.
    opened = _open(path)
    if opened is None:
        raise SecretFileFault("names a file that cannot be opened", "Look at the path and this user's rights.")
    try:
        mode = os.fstat(opened).st_mode
        if not stat.S_ISREG(mode):
            raise SecretFileFault("names no regular file", "Name the file itself.")
        if mode & _OPEN_TO_OTHERS:
            raise SecretFileFault("names a file that is open to others", "Set its mode to 0440 or 0400.")
        content = _read(opened)
    finally:
        os.close(opened)
    if content is None:
        raise SecretFileFault("names a file that cannot be read", "Look at the file system that holds it.")
    if len(content) > SECRET_FILE_BYTES:
        raise SecretFileFault(f"names a file over {SECRET_FILE_BYTES} bytes", "Write the secret alone into it.")
    return content.removesuffix(b"\n")


def _open(path: str) -> int | None:
    try:
        # Not blocking: a FIFO in the file's place must not hang us.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError):
        return None


def _read(opened: int) -> bytes | None:
    content = b""
    try:
        while len(content) <= SECRET_FILE_BYTES and (more := os.read(opened, SECRET_FILE_BYTES + 1 - len(content))):
            content += more
    except OSError:
        return None
    return content
