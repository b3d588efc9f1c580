"""`serve` over an embedded store whose COMMIT of receipts goes wrong: `python -m tests.kit.forgetful CONTROL`.

CONTROL is a file that says what happens at the next one; an empty or missing one lets it be:
`rollback` (it fails, and nothing is kept), `lost` (it is done, and its answer is an error), `kill-before` and
`kill-after` (the process is killed at once, before or after it is done).
"""

import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

from sidecar.__main__ import main

CONTROL = Path(sys.argv[1])


class Forgetful(sqlite3.Connection):
    """A connection that knows whether its transaction releases values."""

    releases = False

    def executemany(self, statement: str, rows: Any) -> sqlite3.Cursor:
        """Note the rows of a release."""
        given = list(rows)
        self.releases = "receipts" in statement and any("released" in row for row in given)
        return super().executemany(statement, given)

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        """Do as CONTROL says at the COMMIT of a release."""
        if statement != "COMMIT" or not self.releases:
            return super().execute(statement, *values)
        self.releases = False
        way = CONTROL.read_text() if CONTROL.exists() else ""
        if way in ("lost", "kill-after"):
            super().execute("COMMIT")
        if way in ("kill-before", "kill-after"):
            os.kill(os.getpid(), signal.SIGKILL)
        if way in ("lost", "rollback"):
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute("COMMIT")


if __name__ == "__main__":
    connect = sqlite3.connect
    sqlite3.connect = lambda *args, **kwargs: connect(*args, **kwargs, factory=Forgetful)  # type: ignore[assignment]
    sys.exit(main(["serve"]))
