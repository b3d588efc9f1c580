"""The `authority` commands on a database, as an operator runs them: the variables of `serve`, and a file with a URL."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sidecar.__main__ import main
from tests.kit.postgres import Database
from tests.kit.world import PEPPER_TEXT


@dataclass
class Shell:
    """A folder, a database, and `authority` commands on it as its owner."""

    folder: Path
    database: Database
    capture: pytest.CaptureFixture[str]
    out: str = field(default="")
    err: str = field(default="")

    def run(self, *arguments: str, admin: bool = True) -> int:
        """Run `authority ...` and return its exit code."""
        url = ("--admin-url-file", str(self.folder / "admin.url")) if admin else ()
        try:
            code = main(["authority", *arguments, *url])
        except SystemExit as ended:
            code = int(ended.code or 0)
        self.out, self.err = self.capture.readouterr()
        return code

    def done(self, *arguments: str, admin: bool = True) -> str:
        """Run an action that succeeds in silence but for its result, and return that."""
        assert self.run(*arguments, admin=admin) == 0, self.err
        assert self.err == ""
        return self.out


def shell_on(
    database: Database, folder: Path, capture: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    """Return a shell on a database, in whose environment are the variables of `serve` and a pepper."""
    for name in [name for name in os.environ if name.startswith(("QL3_", "QL_"))]:
        monkeypatch.delenv(name)
    for name, value in (database.environment() | {"QL3_WORKER_CREDENTIAL_PEPPER": PEPPER_TEXT}).items():
        monkeypatch.setenv(name, value)
    url = folder / "admin.url"
    url.write_text(database.admin_url + "\n")
    url.chmod(0o600)
    return Shell(folder, database, capture)
