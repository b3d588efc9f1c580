"""A store and a root for the commands that compare them: SQLite or PostgreSQL, filled by hand."""

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import connect
from typing import TYPE_CHECKING, Any

import pytest

from provider.credential import Pepper
from provider.receipts import identify
from provider.refs import SecretRef
from sidecar.__main__ import main
from sidecar.stores import sqlite_make
from tests.kit.folders import quick_path
from tests.kit.projector import write_file
from tests.kit.world import PEPPER_TEXT, plan

if TYPE_CHECKING:
    from tests.kit.postgres import Database

__all__ = ["Shelf", "quick_path", "shelf"]

DAY_MS = 86_400_000
KEY = Pepper.parse(PEPPER_TEXT).receipt_key()


@dataclass
class Shelf:
    """A root, a store and the options that name it."""

    folder: Path
    options: list[str]
    execute: Callable[[str, Sequence[object]], object]
    capsys: pytest.CaptureFixture[str]
    receipts: str

    @property
    def root(self) -> Path:
        return self.folder / "root"

    def revise(self, task: str, revision: int, refs: Sequence[SecretRef], bundle: SecretRef | None = None) -> str:
        """Add a revision of a task that names these refs; return its task_revision."""
        task_revision = f"qltd:v1:{revision}:{'5' * 64}"
        project = refs[0].project_id if refs else "shop"
        self.execute(
            "INSERT INTO task_execution_revisions (project_id, task_id, source_revision, executor_type, task_revision,"
            " source_content_digest, plan_schema, plan_json, content_digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(project, task, revision, "remote_worker", task_revision, "5" * 64),
                *("qinglong/command-execution@v1", json.dumps(plan(refs, bundle)), "e" * 64),
            ),
        )
        return task_revision

    def run(self, task: str, task_revision: str, status: str | None, project: str = "shop") -> None:
        """Add a run of a revision."""
        self.execute(
            "INSERT INTO runs (id, project_id, task_id, task_revision, status) VALUES (?, ?, ?, ?, ?)",
            (str(uuid.uuid4()), project, task, task_revision, status),
        )

    def receipt(self, ref: SecretRef, kind: str, mark: str, **other: Any) -> None:
        """Add a receipt row, as one that was made under the present pepper."""
        row = {
            "receipt_id": identify(KEY),
            "kind": kind,
            "attempt_id": "attempt-1",
            "worker_id": "worker-1",
            "credential_id": "c",
            "credential_version": 1,
            "file_name": ref.file_name,
            "mark": mark,
            "occurred_at_ms": time.time_ns() // 1_000_000,
        } | other
        marks = ", ".join("?" * len(row))
        self.execute(f"INSERT INTO {self.receipts} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))

    def file(self, ref: SecretRef, value: bytes = b"canary-value", age_days: int = 0) -> None:
        """Put a flat file in its place in the root, by rename."""
        path = self.root / ref.file_name
        write_file(self.folder / "new", value)
        (self.folder / "new").replace(path)
        then = time.time() - age_days * 86_400
        os.utime(path, (then, then))

    def call(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Run a command on the store with `--json`; its output never holds a value."""
        code = main([*arguments, *self.options, "--json"])
        output = self.capsys.readouterr().out
        assert "canary" not in output
        return code, json.loads(output)


@pytest.fixture(params=["sqlite", "postgres"])
def shelf(
    request: pytest.FixtureRequest,
    quick_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Shelf]:
    """An empty root and an empty store with receipts, of each kind."""
    (quick_path / "root").mkdir(mode=0o755)
    if request.param == "sqlite":
        path = quick_path / "store.db"
        sqlite_make.create(str(path), receipts=True)

        def execute(statement: str, values: Sequence[object]) -> object:
            with closing(connect(path, isolation_level=None)) as connection:
                return connection.execute(statement, values).fetchall()

        yield Shelf(quick_path, ["--file", str(path)], execute, capsys, "receipts")
        return
    database: Database = request.getfixturevalue("database")
    for name, value in database.environment().items():
        monkeypatch.setenv(name, value)
    url = quick_path / "admin-url"
    url.write_text(database.admin_url)
    url.chmod(0o600)
    yield Shelf(quick_path, ["--admin-url-file", str(url)], database.execute, capsys, "secret_sidecar.receipts")
