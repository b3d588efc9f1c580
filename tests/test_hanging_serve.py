"""A real `serve` over a root that hangs, on both stores: who needs no file is answered, and a good mount is served."""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.kit import mounting
from tests.kit.fuse import HangingFiles
from tests.kit.postgres import Database, make_postgres_stand
from tests.kit.projector import write_file
from tests.kit.stand import Answer, Stand, make_stand
from tests.kit.waiting import wait_for

pytestmark = pytest.mark.root
WITHIN_S: Final = 3.0
"""How soon is answered what needs no file, while the root hangs (issue 4)."""
GOOD: Final = {"admission": "ok", "authority": "ok", "root": "ok", "tls": "ok", "crl": "off", "drain": "ok"}
FENCED: Final = {"expectedLeaseVersion": 2}


@pytest.fixture(params=["sqlite", "postgres"])
def stand(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stand]:
    """A stand over either store; nothing is started."""
    if request.param == "postgres":
        database: Database = request.getfixturevalue("database")
        made = make_postgres_stand(tmp_path / "stand", database)
    else:
        made = make_stand(tmp_path / "stand")
    with made:
        yield made


def fenced(stand: Stand) -> str:
    """Ask for what the lease does not give any more."""
    return stand.ask(stand.world.body_bytes(**FENCED)).code


def rejected(stand: Stand) -> str:
    """Ask with a credential that nobody has."""
    return stand.ask(token="ql3w_nobody_" + "A" * 43).code


def health(stand: Stand) -> str:
    """Ask whether the process is alive."""
    return str(json.loads(stand.get("/healthz")[1])["status"])


def metrics(stand: Stand) -> str:
    """Ask for a sample."""
    return str(stand.metric("in_flight") >= 0)


ANSWERED: Final[dict[Callable[[Stand], str], str]] = {
    fenced: "worker_secret_delivery_fenced",
    rejected: "worker_authentication_required",
    health: "alive",
    metrics: "True",
}
"""What needs no file, and its answer."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Hold a block to its time."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


def answered(stand: Stand) -> None:
    """Ask for all that needs no file, at once."""

    def ask(how: Callable[[Stand], str]) -> None:
        with within(WITHIN_S):
            assert how(stand) == ANSWERED[how]

    with ThreadPoolExecutor(len(ANSWERED)) as threads:
        list(threads.map(ask, ANSWERED))


def given(answer: Answer) -> set[str]:
    """Return the values of a delivery."""
    assert answer.status == 200
    return {item["value"] for item in answer.json()["values"]}


def test_a_root_that_hangs_holds_up_nobody_else(stand: Stand, tmp_path: Path) -> None:
    """While the root hangs, 401, 409, health and metrics come within 3 s, and readiness names the root alone.

    A request that must have files is 503, the first after two seconds and the next at once; a good mount in its place
    is served without a restart, beside the thread that is stuck, and so is what comes back once the dead one is gone.
    """
    names = [ref.file_name for ref in stand.world.refs]
    with HangingFiles(stand.root, names) as files:
        stand.start()
        wait_for(lambda: stand.checks() == GOOD)
        assert given(stand.ask()) == {"value"}
        files.hang()
        with ThreadPoolExecutor(1) as threads:
            first = threads.submit(stand.ask)
            wait_for(lambda: stand.metric("in_flight") == 1)
            time.sleep(0.2)
            # The one that hangs holds the lock of the attempt now.
            answered(stand)
            assert first.result().code == "worker_ingress_unavailable"
        wait_for(lambda: stand.metric("stuck_threads") == 1)
        assert stand.checks() == GOOD | {"root": "failed"}
        answered(stand)
        with within(2.0):
            assert stand.ask().code == "worker_ingress_unavailable"
        assert stand.metric("stuck_threads") == 1
        for _ in range(2):
            event = stand.event("request_completed", code="worker_ingress_unavailable")
            assert event["providerReason"] == "root_unavailable"

        with mounting.mounted("good", stand.root, "tmpfs", data="mode=755"):
            for name in names:
                write_file(stand.root / name, b"remounted")
            assert given(stand.ask()) == {"remounted"}
            assert stand.checks() == GOOD
            assert stand.metric("stuck_threads") == 1
        assert stand.checks() == GOOD | {"root": "failed"}
    wait_for(lambda: stand.metric("stuck_threads") == 0)
    assert stand.checks() == GOOD
    assert len(given(stand.ask())) == len(names)
    assert stand.metric("buffers_outstanding") == 0
    assert stand.stop() == 0
    assert stand.stderr() == ""


def test_leaving_does_not_wait_for_a_root_that_hangs(stand: Stand) -> None:
    """With a request stuck on a dead root the process ends with 0, well before the grace period is over."""
    with HangingFiles(stand.root, [ref.file_name for ref in stand.world.refs]) as files:
        stand.start()
        wait_for(lambda: stand.checks() == GOOD)
        files.hang()
        with stand.wire() as wire:
            wire.send(stand.request())
            wait_for(lambda: stand.metric("in_flight") == 1)
            with within(8.0):
                assert stand.stop() == 0
            assert wire.answer().code == "worker_ingress_unavailable"
    assert stand.stderr() == ""
