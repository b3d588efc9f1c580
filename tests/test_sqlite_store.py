"""The embedded store, serve side: the conformance suite, and what only SQLite has."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.stores.sqlite import SqliteStore
from tests.conformance.store_suite import StoreSuite
from tests.kit.world import World, build_world


class SqliteBed:
    """A SQLite file with a valid world, served; the outside hand is another connection."""

    untyped = True

    def __init__(self, path: Path, template: World) -> None:
        """Copy the template's file and open the copy."""
        shutil.copy(template.path, path)
        self.world = replace(template, path=path)
        self.store = SqliteStore(str(path), receipts=True)
        self.store.open()

    async def change(self, table: str, **columns: object) -> None:
        """Change columns of every row."""
        self.world.change(table, **columns)

    async def insert(self, table: str, **row: object) -> None:
        """Insert a row."""
        marks = ", ".join("?" * len(row))
        self.world.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))

    async def delete(self, table: str) -> None:
        """Delete every row."""
        self.world.execute(f"DELETE FROM {table}")

    async def rows(self, table: str) -> list[dict[str, object]]:
        """Return every row, in the order they were written."""
        with closing(sqlite3.connect(self.world.path)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(f"SELECT * FROM {table} ORDER BY rowid")]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A valid world, made once: each making waits for the disk."""
    return build_world(tmp_path_factory.mktemp("template") / "store.db", receipts=True)


@pytest.fixture
def bed(tmp_path: Path, template: World) -> Iterator[SqliteBed]:
    """A served valid world, closed at the end."""
    made = SqliteBed(tmp_path / "store.db", template)
    yield made
    made.store.close()


class TestConformance(StoreSuite):
    """The suite over SQLite."""
