"""Make a store file, and migrate one to the current version after a backup copy (issue 2: store life).

Run by commands only, never by `serve`.
"""

import os
import secrets
import sqlite3
import time
from contextlib import closing, suppress

from sidecar.stores.faults import StoreFault, StoreFaultKind
from sidecar.stores.sqlite_file import connect, judge, judge_file, store_fault
from sidecar.stores.sqlite_schema import APPLICATION_ID, VERSION, add_receipts, apply_after


def create(path: str, *, receipts: bool = False) -> None:
    """Make a new store of the current version, mode 0600. It never exists half made and replaces nothing.

    Raises StoreFault(EXISTS) when there is a file of that name, StoreFault(UNREADABLE) when it cannot be written.
    """
    temporary = f"{path}.{secrets.token_hex(8)}.tmp"
    try:
        _touch(temporary)
        try:
            with closing(connect(temporary)) as connection:
                connection.execute("BEGIN")
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                apply_after(connection, 0)
                if receipts:
                    add_receipts(connection)
                connection.execute("COMMIT")
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


def migrate(path: str) -> tuple[int, str] | None:
    """Bring a store to the current version, under the write lock and after a backup copy beside it.

    Returns the version before and the copy's path, or None when there was nothing to do. Raises StoreFault; the store
    is then as it was.
    """
    if judge_file(path, thorough=True) >= VERSION:
        judge(path)
        return None
    with store_fault(), closing(connect(path)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version >= VERSION:  # somebody else migrated it while the lock was waited for
            connection.execute("ROLLBACK")
            return None
        copy = _back_up(path, version)
        apply_after(connection, version)
        connection.execute("COMMIT")
        return version, copy


def _back_up(path: str, version: int) -> str:
    """Copy the store as it is committed now and return the copy's path. The caller holds the write lock."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    copy = f"{path}.v{version}-{moment}-{secrets.token_hex(2)}.backup"
    try:
        _touch(copy)
        try:
            with closing(connect(path)) as source, closing(connect(copy)) as target:
                source.backup(target)
                target.execute("PRAGMA journal_mode = DELETE")  # one file that may be moved by itself
            _sync_folder(copy)
        except BaseException:
            with suppress(OSError):
                os.unlink(copy)
            raise
    except OSError as error:
        raise StoreFault(
            StoreFaultKind.UNREADABLE,
            f"The backup copy could not be written ({error.strerror}).",
            "Check the permissions of the folder and the free space; the store is unchanged.",
        ) from None
    return copy


def _touch(path: str) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)  # whatever the umask
    finally:
        os.close(descriptor)


def _sync_folder(path: str) -> None:
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
