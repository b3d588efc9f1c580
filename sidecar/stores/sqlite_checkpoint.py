"""Moves the write-ahead log into the store file, in a thread of its own: the loop must not wait for the disk's sync."""

import os
import sqlite3
import threading
from contextlib import closing
from typing import Final

from sidecar.stores.sqlite_file import connect

_EVERY_S: Final = 1.0  # at most this much of the audit can be lost to a power cut, and the log stays short
_HURRY_COMMITS: Final = 2000  # about 16 MiB of log
_TRUNCATE_BYTES: Final = 64 << 20  # the log is written again from its start, so it is cut only after a rare burst


class Checkpointer:
    """A daemon thread with a connection of its own. `wrote` is called after each commit, on the loop's thread."""

    def __init__(self, path: str) -> None:
        """Prepare for the store at `path`; nothing runs before `start`."""
        self._path = path
        self._commits = 0
        self._dirty = threading.Event()
        self._hurry = threading.Event()
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="sqlite-checkpoint", daemon=True)
        self.failures = 0
        """Checkpoints that failed (full disk, I/O error); the next one tries again."""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wrote(self) -> None:
        """Count a commit; the log is moved within a second, sooner when there were many."""
        if not self._dirty.is_set():
            self._dirty.set()
        self._commits += 1
        if self._commits >= _HURRY_COMMITS:
            self._commits = 0
            self._hurry.set()

    def stop(self, wait_s: float = 5.0) -> None:
        """End the thread; the last connection to close moves what is left of the log."""
        self._stop = True
        self._hurry.set()
        self._dirty.set()
        self._thread.join(wait_s)

    def _run(self) -> None:
        while not self._stop:
            self._dirty.wait()
            self._hurry.wait(_EVERY_S)
            self._hurry.clear()
            self._dirty.clear()
            try:
                # A fresh connection: one that met an I/O error once is not trusted with the next checkpoint.
                with closing(connect(self._path, wait_s=0)) as connection:
                    connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
                    if os.stat(f"{self._path}-wal").st_size > _TRUNCATE_BYTES:
                        # Writers wait for this one; after the passive one there is little left to move.
                        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except (sqlite3.Error, OSError):
                self.failures += 1
