"""The file of the embedded store: judge it, make it, migrate it after a backup copy (contract 6 and 9).

Nothing here opens the file past SQLite: closing any other descriptor of it would drop the locks that connections of
this process hold (a rule of POSIX), and with them the safety of the write-ahead log.
"""

import os
import secrets
import sqlite3
import stat
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from provider.limits import WRITE_LOCK_WAIT_S
from sidecar.stores.faults import StoreFault, StoreFaultKind

APPLICATION_ID: Final = 0x51335353
"""Marks a file as this project's store: "Q3SS", at byte 68 of the file."""

_SCHEMA: Final = Path(__file__).parent / "schema" / "sqlite"
MIGRATIONS: Final = tuple(path.read_text("utf-8") for path in sorted(_SCHEMA.glob("[0-9]*.sql")))
"""The numbered migrations; applying all of them makes the current version."""
VERSION: Final = len(MIGRATIONS)
"""The version of the schema that this program reads and writes; `user_version` of the file."""
_RECEIPTS: Final = (_SCHEMA / "receipts.sql").read_text("utf-8")

AUTHORITY_TABLES: Final = (
    "runs",
    "run_attempts",
    "run_dispatch_leases",
    "worker_sessions",
    "task_execution_revisions",
    "worker_credentials",
)
"""The six tables that are read for a request."""
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
_LOCKED: Final = (
    StoreFaultKind.LOCKED,
    "The authority store is locked by another program.",
    "End that program, or wait until it has done, and try again.",
)


def _uri(path: str, mode: str) -> str:
    return f"file:{quote(os.path.abspath(path))}?{mode}"


def connect(path: str, wait_s: float = WRITE_LOCK_WAIT_S) -> sqlite3.Connection:
    """Open an existing store file for reading and writing, in autocommit mode; a lock is waited for `wait_s` seconds.

    Raises sqlite3.Error.
    """
    connection = sqlite3.connect(_uri(path, "mode=rw"), uri=True, timeout=wait_s, isolation_level=None)
    try:
        # NORMAL: a commit survives the death of this process; a power cut can take the rows of the last second.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def judge(path: str) -> None:
    """Raise StoreFault unless the file is a store of the current version, whole and closed to others.

    Nothing is created or changed.
    """
    version = judge_file(path)
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


def judge_file(path: str) -> int:
    """Return the version of a whole store file that is closed to others. Raises StoreFault for anything else."""
    _judge_status(path)
    try:
        # Immutable: no lock, no -wal, no -shm. A file that is not ours is looked at and nothing more.
        with closing(sqlite3.connect(_uri(path, "mode=ro&immutable=1"), uri=True)) as glance:
            marked = glance.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
        if not marked:
            raise StoreFault(*_NO_STORE)
        with closing(connect(path)) as connection:
            _judge_content(connection)
            return int(connection.execute("PRAGMA user_version").fetchone()[0])
    except sqlite3.Error as error:
        raise _fault(error) from None


def _fault(error: sqlite3.Error) -> StoreFault:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_BUSY:
        return StoreFault(*_LOCKED)
    if code == sqlite3.SQLITE_NOTADB:
        return StoreFault(*_NO_STORE)
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return StoreFault(
            StoreFaultKind.UNREADABLE,
            "The authority store cannot be opened for reading and writing.",
            "Let this user own the file and its folder: SQLite writes a -wal and a -shm file beside it.",
        )
    if code == sqlite3.SQLITE_FULL:
        return StoreFault(
            StoreFaultKind.UNREADABLE,
            "The file system of the authority store is full.",
            "Make room there; the store is as it was.",
        )
    return StoreFault(*_CORRUPT)


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
    except OSError as error:
        raise StoreFault(
            StoreFaultKind.UNREADABLE,
            f"The authority store cannot be reached ({error.strerror}).",
            "Check its name and the permissions of the folders above it.",
        ) from None
    if not stat.S_ISREG(status.st_mode):
        raise StoreFault(*_NO_STORE)
    if not os.access(path, os.R_OK | os.W_OK, effective_ids=True):
        raise StoreFault(
            StoreFaultKind.UNREADABLE,
            "The authority store may not be read and written by this user.",
            "Let this user own the file, on a file system that is not read-only.",
        )
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


def create(path: str, *, receipts: bool = False) -> None:
    """Make a new store of the current version, mode 0600. It never exists half made and replaces nothing.

    Raises StoreFault(EXISTS) when there is a file of that name, StoreFault(UNREADABLE) when it cannot be written.
    """
    temporary = f"{path}.{secrets.token_hex(8)}.tmp"
    try:
        os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            os.chmod(temporary, 0o600)
            with closing(connect(temporary)) as connection:
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                _apply(connection, 0)
                if receipts:
                    add_receipts(connection)
                # Last, so that everything above stands in the file itself and no log has to be carried along.
                connection.execute("PRAGMA journal_mode = WAL")
            os.link(temporary, path)
            _sync_folder(path)
        finally:
            os.unlink(temporary)
    except FileExistsError:
        raise StoreFault(
            StoreFaultKind.EXISTS, "A file of that name exists.", "Name another file; nothing was changed."
        ) from None
    except (OSError, sqlite3.Error):
        raise StoreFault(
            StoreFaultKind.UNREADABLE,
            "The authority store could not be written.",
            "Check that its folder exists, that this user may write there, and the free space.",
        ) from None


def add_receipts(connection: sqlite3.Connection) -> None:
    """Make the receipts table unless it is there (contract 6, step 8). Raises sqlite3.Error."""
    _run(connection, _RECEIPTS)


def _apply(connection: sqlite3.Connection, version: int) -> None:
    """Apply every migration after `version` in one transaction, or in the caller's."""
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        _run(connection, script)
        connection.execute(f"PRAGMA user_version = {number}")


def _run(connection: sqlite3.Connection, script: str) -> None:
    """Run a script statement by statement; `executescript` would commit a transaction that is open."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""


def migrate(path: str) -> tuple[int, str] | None:
    """Bring the store to the current version, under the write lock and after a backup copy beside it.

    Returns the version before and the name of the copy, or None when there was nothing to do. Raises StoreFault; the
    store is then as it was.
    """
    if judge_file(path) >= VERSION:
        judge(path)
        return None
    try:
        with closing(connect(path)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            version = int(connection.execute("PRAGMA user_version").fetchone()[0])
            if version >= VERSION:  # somebody else migrated it while the lock was waited for
                connection.execute("ROLLBACK")
                return None
            copy = _back_up(path, version)
            _apply(connection, version)
            connection.execute("COMMIT")
            return version, copy
    except sqlite3.Error as error:
        raise _fault(error) from None


def _back_up(path: str, version: int) -> str:
    """Copy the store as it is committed now; the caller holds the write lock, so it stays so."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    copy = f"{path}.v{version}-{moment}-{secrets.token_hex(2)}.backup"
    try:
        os.close(os.open(copy, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        os.chmod(copy, 0o600)
        with closing(connect(path)) as source, closing(connect(copy)) as target:
            source.backup(target)
            target.execute("PRAGMA journal_mode = DELETE")  # one file that may be moved by itself
        _sync_folder(copy)
    except OSError as error:
        raise StoreFault(
            StoreFaultKind.UNREADABLE,
            f"The backup copy could not be written ({error.strerror}).",
            "Check the permissions of the folder and the free space; the store is unchanged.",
        ) from None
    return copy


def _sync_folder(path: str) -> None:
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
