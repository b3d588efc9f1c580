"""Receipts of a real `serve`, on both stores: no row, no byte; and the same answer on every replica (contract 6.8)."""

import itertools
import json
import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.kit.canary import VALUE
from tests.kit.environments import LOGIN
from tests.kit.folders import quick_path
from tests.kit.memscan import ROOT
from tests.kit.postgres import Database, make_postgres_stand
from tests.kit.stand import Stand, make_stand
from tests.kit.tcpproxy import TcpProxy
from tests.kit.waiting import wait_for

__all__ = ["quick_path"]

REFS = 2
RELEASED, DELIVERED = ["released"] * REFS, ["delivered"] * REFS


class Store(ABC):
    """A stand with receipts on, and ways to break its store at the moment of a release."""

    stand: Stand
    table: str

    def kinds(self) -> list[str]:
        """The kinds of all receipts."""
        return sorted(str(row[0]) for row in self.stand.world.execute(f"SELECT kind FROM {self.table}"))

    def forget(self) -> None:
        """Delete every receipt."""
        self.stand.world.execute(f"DELETE FROM {self.table}")

    @abstractmethod
    def refuse(self, kind: str) -> None:
        """Refuse every receipt of a kind from now on."""

    @abstractmethod
    def accept(self) -> None:
        """Take receipts again."""

    @abstractmethod
    def spoil(self, way: str) -> None:
        """From now on a COMMIT of receipts ends so; see `tests.kit.forgetful`."""

    @abstractmethod
    def mend(self, way: str) -> None:
        """Let the next COMMIT be, and wait until the store serves."""


class Sqlite(Store):
    """The embedded store; `serve` runs in a process that spoils its own COMMIT."""

    table = "receipts"

    def __init__(self, folder: Path) -> None:
        """Start it."""
        self.control = folder / "control"
        self.stand = make_stand(folder / "stand", refs=REFS, receipts=True)
        program = ("-m", "tests.kit.forgetful", str(self.control))
        self.stand.start(program=program, QL3_SECRET_SIDECAR_RECEIPTS="on")

    def refuse(self, kind: str) -> None:
        when = f"WHEN NEW.kind = '{kind}' BEGIN SELECT RAISE(ABORT, 'no'); END"
        self.stand.world.execute(f"CREATE TRIGGER refuse BEFORE INSERT ON receipts {when}")

    def accept(self) -> None:
        self.stand.world.execute("DROP TRIGGER refuse")

    def spoil(self, way: str) -> None:
        self.control.write_text(way)

    def mend(self, way: str) -> None:
        self.control.unlink()


class Postgres(Store):
    """A server behind a proxy; what goes wrong with COMMIT does so there, or between the two."""

    table = "secret_sidecar.receipts"

    def __init__(self, folder: Path, database: Database, proxy: TcpProxy) -> None:
        """Start it, and wait until it has its store."""
        self.database, self.proxy = database, proxy
        self.stand = make_postgres_stand(folder, database, refs=REFS)
        self.stand.start(QL3_SECRET_SIDECAR_RECEIPTS="on", **{f"{LOGIN}PORT": str(proxy.port)})
        self._healthy()

    def _healthy(self) -> None:
        wait_for(lambda: self.stand.checks()["authority"] == "ok")

    def _trigger(self, head: str, when: str) -> None:
        self.database.psql(
            "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;"
            f"CREATE {head} INSERT ON {self.table} {when} EXECUTE FUNCTION public.refuse()"
        )

    def refuse(self, kind: str) -> None:
        self._trigger("TRIGGER refuse BEFORE", f"FOR EACH ROW WHEN (NEW.kind = '{kind}')")

    def accept(self) -> None:
        self.database.psql("DROP FUNCTION public.refuse() CASCADE")

    def spoil(self, way: str) -> None:
        if way == "rollback":
            # The rows go in, and COMMIT itself fails.
            self._trigger("CONSTRAINT TRIGGER refuse AFTER", "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW")
            return

        def sent(data: bytes) -> None:
            if b"COMMIT\0" not in data:
                return
            self.proxy.sent = lambda _data: None
            self.proxy.mute_server = True
            if way == "kill-before":
                self.proxy.deaf = True  # the server never sees it
                self._kill()
            else:
                threading.Thread(target=self._once_committed, args=(way,)).start()

        self.proxy.sent = sent

    def _once_committed(self, way: str) -> None:
        wait_for(lambda: self.kinds() == RELEASED)
        if way == "kill-after":
            self._kill()
        else:
            self.proxy.cut()

    def _kill(self) -> None:
        assert self.stand.process is not None
        self.stand.process.kill()

    def mend(self, way: str) -> None:
        if way == "rollback":
            self.accept()
            return
        self.proxy.sent, self.proxy.mute_server, self.proxy.deaf = (lambda _data: None), False, False
        self.proxy.cut()
        if self.stand.process is not None and self.stand.process.poll() is None:
            self._healthy()


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, quick_path: Path) -> Iterator[Store]:
    """A stand over each store, with receipts on."""
    with ExitStack() as held:
        made: Store
        if request.param == "sqlite":
            made = Sqlite(quick_path)
        else:
            database: Database = request.getfixturevalue("database")
            made = Postgres(quick_path, database, held.enter_context(TcpProxy(database.server.port)))
        held.enter_context(made.stand)
        yield made


def refused(store: Store) -> None:
    """Ask, and be refused without a byte of a value."""
    answer = store.stand.ask()
    assert (answer.status, answer.code) == (503, "worker_ingress_unavailable")
    assert VALUE.encode() not in answer.body


def served(store: Store) -> None:
    """Ask, and have the values and every receipt."""
    assert store.stand.ask().status == 200
    wait_for(lambda: store.kinds() == DELIVERED + RELEASED)
    store.forget()


def test_no_row_no_byte(store: Store) -> None:
    """A receipt that is refused, a COMMIT that rolls back: 503 without a byte, and no row; the next one is served."""
    served(store)
    store.refuse("released")
    refused(store)
    assert store.kinds() == []
    store.accept()
    served(store)
    store.spoil("rollback")
    refused(store)
    assert store.kinds() == []
    store.mend("rollback")
    served(store)


def test_a_lost_answer_to_commit_is_no_delivery(store: Store) -> None:
    """The rows `released` stand, the word of it is lost: 503 without a byte, and never a row `delivered`."""
    store.spoil("lost")
    refused(store)
    wait_for(lambda: store.kinds() == RELEASED)
    store.mend("lost")
    store.forget()
    served(store)


def test_a_receipt_delivered_is_best_effort(store: Store) -> None:
    """What cannot be written after the last byte costs nobody the values: it is counted, and `released` stands."""
    store.refuse("delivered")
    assert store.stand.ask().status == 200
    wait_for(lambda: store.stand.metric("receipts_unacknowledged_total") == REFS)
    assert store.kinds() == RELEASED
    store.accept()


@pytest.mark.parametrize(("way", "left"), [("kill-before", []), ("kill-after", RELEASED)])
def test_killed_at_commit(store: Store, way: str, left: list[str]) -> None:
    """Killed before COMMIT: no row, no byte. Killed after it: the rows `released` stand, and still no byte."""
    store.spoil(way)
    with store.stand.wire() as wire:
        wire.send(store.stand.request())
        assert wire.ended(20)
    assert store.stand.process is not None
    assert store.stand.process.wait(20) == -signal.SIGKILL
    store.mend(way)
    assert store.kinds() == left


def listed(stand: Stand, *options: str) -> dict[str, Any]:
    """What `receipts list` says with the variables of this replica."""
    command = [sys.executable, "-m", "sidecar", "receipts", "list", *options, "--json"]
    done = subprocess.run(command, cwd=ROOT, env=stand.environment, capture_output=True, timeout=60, check=True)
    summary: dict[str, Any] = json.loads(done.stdout)["summary"]
    return summary


def test_every_replica_tells_the_same(quick_path: Path, database: Database) -> None:
    """Two replicas, a rotation between their deliveries: one command says who has which value, the same on both."""
    first = make_postgres_stand(quick_path / "first", database, refs=REFS)
    other = make_stand(quick_path / "second", refs=REFS)
    paths = {name: text for name, text in other.environment.items() if str(other.directory) in text}
    del paths["QL3_WORKER_SECRET_AUTHORITY_FILE"]
    second = replace(other, world=first.world, environment=first.environment | paths)
    url = quick_path / "admin-url"
    url.write_text(database.admin_url)
    url.chmod(0o600)
    options = ("--admin-url-file", str(url))
    with first.start(QL3_SECRET_SIDECAR_RECEIPTS="on"), second.start(QL3_SECRET_SIDECAR_RECEIPTS="on"):
        for stand in (first, second):
            wait_for(lambda stand=stand: stand.checks()["authority"] == "ok")  # type: ignore[misc]
        rotated = second.world.refs[0]
        # The same values have the same marks on every replica.
        for stand in (first, second):
            assert stand.ask().status == 200
        wait_for(lambda: database.execute("SELECT count(*) FROM secret_sidecar.receipts") == [(4 * REFS,)])
        assert len({(one["fileName"], one["mark"]) for one in listed(first, *options)["receipts"]}) == REFS
        # Those went to another worker; then all values are rotated, and ours takes them from the second replica.
        database.execute("UPDATE secret_sidecar.receipts SET worker_id = 'worker-before'")
        for stand, ref in itertools.product((first, second), first.world.refs):
            stand.put(ref, f"rotated-{VALUE}".encode())
        assert second.ask().status == 200
        wait_for(lambda: database.execute("SELECT count(*) FROM secret_sidecar.receipts") == [(6 * REFS,)])
        told = [listed(stand, *options) for stand in (first, second)]
        assert told[0] == told[1]
        holds = {one["workerId"]: one["value"] for one in told[0]["workers"] if one["fileName"] == rotated.file_name}
        assert holds == {"worker-before": "before", second.world.worker_id: "now"}
