"""The file of the embedded store: open it and judge it (contract 6 and 9).

Nothing here opens the file past SQLite: closing any other descriptor of it would drop the locks that connections of
this process hold (a rule of POSIX), and with them the safety of the write-ahead log.
"""

import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Final
from urllib.parse import quote

from provider.limits import WRITE_LOCK_WAIT_S
from sidecar.stores.faults import StoreFault, StoreFaultKind
from sidecar.stores.sqlite_schema import APPLICATION_ID, AUTHORITY_TABLES, VERSION

CACHE_KIB: Final = 256
"""Pages that a connection keeps: the live rows of hundreds of attempts."""
_WHOLE_CHECK_BYTES: Final = 256 << 20  # a larger file, nearly all of it audit rows, would hold up the start for seconds

_NO_STORE: Final = (
    StoreFaultKind.NOT_A_STORE,
    "The authority store is no store of this program.",
    "Name the file that `secret-sidecar authority init` made, or let it make a new one.",
)
_CORRUPT: Final = (
    StoreFaultKind.CORRUPT,
    "The authority store is corrupt.",
    "Put a backup copy in its place, or start anew with `secret-sidecar authority init` and another file.",
)
_UNREADABLE: Final = (
    StoreFaultKind.UNREADABLE,
    "The authority store cannot be opened for reading and writing.",
    "Let this user own the file and its folder: SQLite writes a -wal and a -shm file beside it.",
)
_BY_CODE: Final = {
    sqlite3.SQLITE_NOTADB: _NO_STORE,
    sqlite3.SQLITE_CANTOPEN: _UNREADABLE,
    sqlite3.SQLITE_READONLY: _UNREADABLE,
    sqlite3.SQLITE_PERM: _UNREADABLE,
    sqlite3.SQLITE_BUSY: (
        StoreFaultKind.LOCKED,
        "The authority store is locked by another program.",
        "End that program, or wait until it has done, and try again.",
    ),
    sqlite3.SQLITE_FULL: (
        StoreFaultKind.FULL,
        "The file system of the authority store is full.",
        "Make room there; the store is as it was.",
    ),
}


def wall_ms() -> int:
    """Return the machine's clock in ms: the embedded store's clock."""
    return time.time_ns() // 1_000_000


def uri(path: str, mode: str) -> str:
    """Return the name under which SQLite opens a file in a mode, whatever characters its path has."""
    return f"file:{quote(os.path.abspath(path))}?{mode}"


def connect(path: str, wait_s: float = WRITE_LOCK_WAIT_S) -> sqlite3.Connection:
    """Open an existing store file for reading and writing, in autocommit mode; a lock is waited for `wait_s` seconds.

    Raises sqlite3.Error.
    """
    connection = sqlite3.connect(uri(path, "mode=rw"), uri=True, timeout=wait_s, isolation_level=None)
    try:
        # NORMAL: a commit survives the death of this process; a power cut can take the rows of the last second.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        # In KiB. The usual 2 MiB fill with pages of audit rows, which are written and not read again.
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def store_fault() -> Iterator[None]:
    """Turn an error of SQLite into the StoreFault that says how to mend it."""
    try:
        yield
    except sqlite3.Error as error:
        raise StoreFault(*_BY_CODE.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, _CORRUPT)) from None


def judge(path: str, *, thorough: bool = True) -> None:
    """Raise StoreFault unless the file is a store of the current version and closed to others. Changes nothing.

    `thorough` reads every page too; the commands of the control plane leave that to `serve`.
    """
    version = judge_file(path, thorough=thorough)
    if version < VERSION:
        raise StoreFault(
            StoreFaultKind.OLDER,
            f"The authority store has version {version}, older than this program's {VERSION}.",
            "Stop the sidecar and run `secret-sidecar authority migrate`; it makes a backup copy first.",
        )
    if version > VERSION:
        raise StoreFault(
            StoreFaultKind.NEWER,
            f"The authority store has version {version}, newer than this program's {VERSION}.",
            "Use the program that wrote it, or put a backup copy of the older version in its place.",
        )


def judge_file(path: str, *, thorough: bool) -> int:
    """Return the version of a store file that is closed to others. Raises StoreFault for anything else."""
    _judge_status(path)
    with store_fault():
        # Immutable: no lock, no -wal, no -shm. A file that is not ours is looked at and nothing more.
        with closing(sqlite3.connect(uri(path, "mode=ro&immutable=1"), uri=True)) as glance:
            marked = glance.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
        if not marked:
            raise StoreFault(*_NO_STORE)
        with closing(connect(path)) as connection:
            if thorough:
                _judge_content(connection)
            return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _judge_status(path: str) -> None:
    """Judge the files by their names alone."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise StoreFault(
            StoreFaultKind.MISSING,
            "The authority store is missing.",
            "Make it with `secret-sidecar authority init`, or name the right file.",
        ) from None
    except (OSError, ValueError):
        raise StoreFault(*_UNREADABLE) from None
    if not stat.S_ISREG(status.st_mode):
        raise StoreFault(*_NO_STORE)
    # SQLite would open a file that may only be read, and then begin transactions without the write lock.
    if not os.access(path, os.R_OK | os.W_OK, effective_ids=True):
        raise StoreFault(*_UNREADABLE)
    for name in (path, f"{path}-wal", f"{path}-shm"):
        with suppress(FileNotFoundError):
            if os.stat(name).st_mode & 0o077:
                raise StoreFault(
                    StoreFaultKind.TOO_OPEN,
                    "The authority store is open to others.",
                    "Set the mode of the file, and of -wal and -shm beside it, with chmod 0600.",
                )


def _judge_content(connection: sqlite3.Connection) -> None:
    pages, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    if pages * size <= _WHOLE_CHECK_BYTES:
        checks = ["PRAGMA quick_check(1)"]
    else:
        checks = [f"PRAGMA quick_check({table})" for table in AUTHORITY_TABLES]
    for check in checks:
        if connection.execute(check).fetchone()[0] != "ok":
            raise StoreFault(*_CORRUPT)
