"""What every test shares: Hypothesis profiles, the reason of a test that cannot run here, the look for canaries."""

import logging
import os
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

import hypothesis
import pytest

from tests.kit import canary
from tests.kit.exceptions import said

if TYPE_CHECKING:
    from tests.kit.postgres import Database, Postgres

# A loaded two-core machine is slow now and then: time is no property of the code under test, so no deadline.
hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
# A change is judged by itself, not by luck: the same examples every time. New ones are looked for by soak runs.
hypothesis.settings.register_profile("ci", hypothesis.settings.get_profile("default"), derandomize=True, database=None)
hypothesis.settings.register_profile("soak", hypothesis.settings.get_profile("default"), max_examples=5000)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked root, saying why, when they were asked for by an ordinary user."""
    if os.geteuid() == 0:
        return
    for item in items:
        if item.get_closest_marker("root"):
            item.add_marker(pytest.mark.skip(reason="needs root: run `make test-root` as root"))


@pytest.fixture(autouse=True)
def nothing_secret_gets_out(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail any test in which a secret reaches a log record, or an output of a stand's process (tests/kit/canary.py)."""
    caplog.set_level(logging.DEBUG)
    yield
    for phase in ("setup", "call", "teardown"):
        for record in caplog.get_records(phase):
            canary.refuse_record(record)
    canary.WATCH.look()


_judge = pytest.RaisesExc.__exit__


def _judge_text(
    expected: "pytest.RaisesExc[BaseException]",
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> bool:
    """As `pytest.raises` judges, and besides no exception that a test expects may say a secret."""
    if error is not None:
        canary.refuse("the text of an exception", said(error))
    return _judge(expected, kind, error, trace)


def pytest_configure() -> None:
    """Let the look for canaries begin."""
    canary.WATCH.awake = True
    pytest.RaisesExc.__exit__ = _judge_text  # type: ignore[method-assign]


@pytest.fixture(scope="session")
def server() -> "Iterator[Postgres]":
    """A running PostgreSQL of this test process; a test that stops it starts it again."""
    from tests.kit.postgres import running

    with running() as made:
        yield made


@pytest.fixture
def database(server: "Postgres") -> "Iterator[Database]":
    """A new database with the seven tables, the receipts and the rights of the role, and nothing in it."""
    with server.database() as made:
        yield made
