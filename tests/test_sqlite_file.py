"""The store file: what is no store is named as such and left alone; making, migrating and backing up."""

import multiprocessing
import os
import random
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from sidecar.stores import sqlite_make, sqlite_schema
from sidecar.stores.faults import StoreFault, StoreFaultKind
from sidecar.stores.sqlite import SqliteStore
from sidecar.stores.sqlite_file import CACHE_KIB, connect, judge, judge_file
from sidecar.stores.sqlite_make import create, migrate
from sidecar.stores.sqlite_schema import MIGRATIONS, VERSION
from tests.kit.folders import quick_path
from tests.kit.world import World, build_world, facts

Bend = Callable[[Path], object]

__all__ = ["quick_path"]  # a fixture, found by its name


@pytest.fixture
def world(quick_path: Path) -> World:
    """A store with a valid world in it, in a folder of its own."""
    return build_world(quick_path / "store.db")


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return mode and content of all that a folder holds."""
    return {path.name: (path.stat().st_mode, path.read_bytes() if path.is_file() else b"") for path in folder.iterdir()}


def fault(path: Path) -> StoreFault:
    """Judge a file as `serve` does, and return what is wrong with it."""
    with pytest.raises(StoreFault) as caught:
        SqliteStore(str(path)).open()
    assert str(path) not in caught.value.wrong + caught.value.mend
    return caught.value


def version_one(path: Path) -> None:
    """Make a store as the first version of the schema had it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_schema, "MIGRATIONS", MIGRATIONS[:1])
        create(str(path))


def version(path: Path) -> int:
    """Return the version that a file says it has."""
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def test_a_new_store_is_whole_and_private(quick_path: Path) -> None:
    """`create` makes one file of mode 0600, whatever the umask, of the current version, in WAL mode, and opens."""
    old = os.umask(0)
    try:
        create(str(quick_path / "store.db"))
    finally:
        os.umask(old)
    assert [path.name for path in quick_path.iterdir()] == ["store.db"]
    assert stat.S_IMODE((quick_path / "store.db").stat().st_mode) == 0o600
    judge(str(quick_path / "store.db"))
    with closing(connect(str(quick_path / "store.db"))) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
        assert connection.execute("PRAGMA synchronous").fetchone() == (1,)


def test_the_schema_has_the_contracts_names(world: World) -> None:
    """Every table and column of contract 6 is there, the key columns first, and no receipts unless asked for."""
    tables = {str(row[0]) for row in world.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    assert tables == {*facts(0, ()), "security_audit_events"}
    for table, row in facts(0, ()).items():
        assert {str(name[1]) for name in world.execute(f"PRAGMA table_info({table})")} == set(row)


def test_log_and_index_are_private_too(world: World) -> None:
    """While a store is open, -wal and -shm beside it have mode 0600, whatever the umask."""
    old = os.umask(0)
    try:
        store = SqliteStore(str(world.path))
        store.open()
        world.change("runs", status="dispatching")
    finally:
        os.umask(old)
    names = {path.name: stat.S_IMODE(path.stat().st_mode) for path in world.path.parent.iterdir()}
    store.close()
    assert names == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}


def test_a_connection_keeps_few_pages(world: World) -> None:
    """What is kept in memory of the file is bounded by us, lest audit rows fill it."""
    with closing(connect(str(world.path))) as connection:
        assert connection.execute("PRAGMA cache_size").fetchone()[0] == -CACHE_KIB


def test_create_replaces_nothing(quick_path: Path) -> None:
    """A file of that name stays as it is, and nothing else is left behind."""
    path = quick_path / "store.db"
    path.write_bytes(b"mine")
    before = everything(quick_path)
    with pytest.raises(StoreFault) as caught:
        create(str(path))
    assert caught.value.kind is StoreFaultKind.EXISTS
    assert everything(quick_path) == before


def test_create_needs_its_folder(quick_path: Path) -> None:
    """Where the folder does not exist nothing is made, not even the folder."""
    with pytest.raises(StoreFault) as caught:
        create(str(quick_path / "missing" / "store.db"))
    assert caught.value.kind is StoreFaultKind.UNREADABLE
    assert everything(quick_path) == {}


def _random(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(20_000))


def _foreign(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE runs (id)")
    path.chmod(0o600)


def _truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _overwritten(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(3 * 4096)
        file.write(random.Random(1).randbytes(4096))


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir(mode=0o700)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def _version(number: int) -> Bend:
    def bend(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA user_version = {number}")

    return bend


BENT = [
    ("missing", Path.unlink, StoreFaultKind.MISSING),
    ("empty", lambda path: path.write_bytes(b""), StoreFaultKind.NOT_A_STORE),
    ("random bytes", _random, StoreFaultKind.NOT_A_STORE),
    ("another program's", _foreign, StoreFaultKind.NOT_A_STORE),
    ("a folder", _folder, StoreFaultKind.NOT_A_STORE),
    ("a fifo", _fifo, StoreFaultKind.NOT_A_STORE),
    ("truncated", _truncated, StoreFaultKind.CORRUPT),
    ("overwritten", _overwritten, StoreFaultKind.CORRUPT),
    ("older", _version(VERSION - 1), StoreFaultKind.OLDER),
    ("newer", _version(VERSION + 1), StoreFaultKind.NEWER),
    *((f"mode {mode:o}", lambda path, mode=mode: path.chmod(mode), StoreFaultKind.TOO_OPEN) for mode in (0o640, 0o604)),
]


@pytest.mark.parametrize(("bend", "kind"), [case[1:] for case in BENT], ids=[case[0] for case in BENT])
def test_what_is_no_good_store_is_refused_and_left_alone(world: World, bend: Bend, kind: StoreFaultKind) -> None:
    """Each kind of bad file has its own fault with a mend, and judging it creates and changes nothing."""
    bend(world.path)
    before = everything(world.path.parent)
    found = fault(world.path)
    assert found.kind is kind
    assert found.mend
    assert everything(world.path.parent) == before


def test_a_log_that_is_open_to_others_is_refused(world: World) -> None:
    """A -wal of another mode shows rows to others as the file itself would."""
    world.path.with_name("store.db-wal").touch(0o644)
    world.path.with_name("store.db-wal").chmod(0o644)
    assert fault(world.path).kind is StoreFaultKind.TOO_OPEN


def test_a_name_in_a_file_is_no_folder(world: World) -> None:
    """A path that leads through a file is unreadable, not missing."""
    assert fault(world.path / "store.db").kind is StoreFaultKind.UNREADABLE


def test_what_this_user_may_not_write_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that can only be read would be used without the write lock, so it is not used."""
    monkeypatch.setattr(os, "access", lambda path, mode, **_: mode & os.W_OK == 0)
    assert fault(world.path).kind is StoreFaultKind.UNREADABLE


def test_a_locked_store_is_named_as_such(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that another program keeps for itself alone is locked, not corrupt."""
    monkeypatch.setattr("sidecar.stores.sqlite_file.WRITE_LOCK_WAIT_S", 0)
    monkeypatch.setattr(connect, "__defaults__", (0,))
    with closing(sqlite3.connect(world.path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN IMMEDIATE")
        other.execute("UPDATE runs SET status = 'dispatching'")
        assert fault(world.path).kind is StoreFaultKind.LOCKED


@pytest.mark.parametrize("name", ["store db?mode=memory#x", "100%25.db", "\N{SNOWMAN}.db", "a&b=c.db"])
def test_any_file_name_will_do(quick_path: Path, name: str) -> None:
    """Characters that mean something in a URI mean nothing in a store's path."""
    create(str(quick_path / name))
    judge(str(quick_path / name))
    assert [path.name for path in quick_path.iterdir()] == [name]


def test_a_large_store_is_judged_by_its_tables(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound only the tables of authority are read, so that start does not take minutes."""
    statements: list[str] = []
    monkeypatch.setattr("sidecar.stores.sqlite_file._WHOLE_CHECK_BYTES", 1)
    with closing(connect(str(world.path))) as connection:
        connection.set_trace_callback(statements.append)
        monkeypatch.setattr("sidecar.stores.sqlite_file.connect", lambda _: connection)
        assert judge_file(str(world.path), thorough=True) == VERSION
    checks = [statement for statement in statements if "quick_check" in statement]
    assert checks == [f"PRAGMA quick_check({table})" for table in facts(0, ())]


def test_an_old_store_is_migrated_after_a_copy(quick_path: Path) -> None:
    """`migrate` makes a private copy of the store as it was, then brings the store forward with its rows."""
    path = quick_path / "store.db"
    version_one(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO runs (id, status) VALUES ('kept', 'dispatching')")
    assert fault(path).kind is StoreFaultKind.OLDER
    done = migrate(str(path))
    assert done is not None
    before, copy = done
    assert before == 1
    assert (version(path), version(Path(copy))) == (VERSION, 1)
    assert sorted(everything(quick_path)) == sorted(["store.db", Path(copy).name])
    assert Path(copy).name.startswith("store.db.v1-")
    for file in (path, Path(copy)):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        with closing(sqlite3.connect(file)) as connection:
            assert connection.execute("SELECT id, status FROM runs").fetchall() == [("kept", "dispatching")]
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    judge(str(path))


def test_a_migrated_store_is_a_new_store(quick_path: Path) -> None:
    """Going forward from the first version makes the very schema that a new store has."""
    version_one(quick_path / "old.db")
    migrate(str(quick_path / "old.db"))
    create(str(quick_path / "new.db"))
    schemas = []
    for name in ("old.db", "new.db"):
        with closing(sqlite3.connect(quick_path / name)) as connection:
            schemas.append(connection.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY name").fetchall())
    assert schemas[0] == schemas[1]


def test_a_current_store_is_not_migrated(world: World) -> None:
    """There is nothing to do, so there is no copy either."""
    assert migrate(str(world.path)) is None
    assert [path.name for path in world.path.parent.iterdir()] == ["store.db"]


def test_a_newer_store_is_not_migrated(world: World) -> None:
    """What a newer program wrote is not touched."""
    _version(VERSION + 1)(world.path)
    before = everything(world.path.parent)
    with pytest.raises(StoreFault) as caught:
        migrate(str(world.path))
    assert caught.value.kind is StoreFaultKind.NEWER
    assert everything(world.path.parent) == before


def test_a_failed_migration_changes_nothing(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration that breaks off rolls back; the store is of the old version and the copy is kept."""
    path = quick_path / "store.db"
    version_one(path)
    monkeypatch.setattr(sqlite_schema, "MIGRATIONS", (MIGRATIONS[0], MIGRATIONS[1] + "CREATE TABLE runs (id);\n"))
    with pytest.raises(StoreFault):
        migrate(str(path))
    assert version(path) == 1
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'runs_by_status'").fetchall() == []
    assert len(everything(quick_path)) == 2


def test_without_a_copy_there_is_no_migration(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the copy cannot be written the store stays as it was, and no part of a copy is left."""
    path = quick_path / "store.db"
    version_one(path)

    def fail(_: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sqlite_make, "_sync_folder", fail)
    with pytest.raises(StoreFault, match="backup copy"):
        migrate(str(path))
    assert version(path) == 1
    assert sorted(everything(quick_path)) == ["store.db"]


def test_two_migrations_at_once_make_one(quick_path: Path) -> None:
    """Of two programs that migrate at the same time one does it and the other finds it done."""
    path = quick_path / "store.db"
    version_one(path)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        results = pool.map(migrate, [str(path)] * 2)
    assert sorted(result is None for result in results) == [False, True]
    assert version(path) == VERSION


def test_a_store_left_by_a_killed_program_is_taken_up(world: World) -> None:
    """A log that a killed program left behind is part of the store: its rows are there and nothing is lost."""
    script = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA wal_autocheckpoint = 0")
connection.execute("UPDATE runs SET cancel_requested_at_ms = 5")
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", script, str(world.path)], check=True)
    assert world.path.with_name("store.db-wal").stat().st_size > 0
    judge(str(world.path))
    assert world.execute("SELECT cancel_requested_at_ms FROM runs") == [(5,)]


def test_judging_beside_a_running_store_does_no_harm(world: World) -> None:
    """`check` and the commands judge a store that this very process serves from; its locks and its log stay."""
    store = SqliteStore(str(world.path))
    store.open()
    world.change("runs", status="running")
    for _ in range(3):
        judge(str(world.path))
        assert world.path.with_name("store.db-wal").exists()
    assert store.health() == "ok"
    store.close()
    assert world.execute("SELECT status FROM runs") == [("running",)]
