"""docs/failure-modes.md, docs/threat-model.md: every row has its metric, its test and its mutant, and they are real."""

import asyncio
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from provider.outcomes import Close, Reason
from sidecar import compose, devcerts
from sidecar.config import load
from sidecar.events import EVENTS
from sidecar.metrics import Metrics
from tests.kit.stand import make_stand
from tests.mutants.failure import PREFIX, Failure, Group, Line, Seen, Silent
from tests.mutants.failures import FAILURES, numbered
from tests.mutants.mechanisms import MECHANISMS
from tests.mutants.mutant import Mutant
from tests.mutants.promises import PROMISES
from tests.mutants.showing import SHOWING
from tests.mutants.table import MUTANTS
from tests.test_mutants_table import functions_of

ROWS = numbered()
DOCS = Path(__file__).resolve().parents[1] / "docs"
_POSTGRES = {
    "QL3_WORKER_SECRET_AUTHORITY": "postgres",
    "QL3_POSTGRES_WORKER_INGRESS_HOST": "127.0.0.1",
    "QL3_POSTGRES_WORKER_INGRESS_PORT": "1",
    "QL3_POSTGRES_WORKER_INGRESS_DATABASE": "ql3",
    "QL3_POSTGRES_WORKER_INGRESS_USER": "role",
    "QL3_POSTGRES_WORKER_INGRESS_PASSWORD": "nobody-listens",
    "QL3_WORKER_INGRESS_POSTGRES_TLS_MODE": "disable",
    "QL3_WORKER_INGRESS_POSTGRES_ALLOW_INSECURE": "true",
}


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What `/metrics` shows, of a running sidecar with a CRL, and of the PostgreSQL store besides."""
    with make_stand(tmp_path_factory.mktemp("failures")) as stand:
        crl = stand.directory / "tls" / "ca.crl"
        devcerts.write(crl, stand.pki.crl_pem(number=1))
        stand.environment["QL3_WORKER_INGRESS_TLS_CLIENT_CRL_FILE"] = str(crl)
        stand.start()
        other = {name: value for name, value in stand.environment.items() if "AUTHORITY" not in name}
        yield stand.get("/metrics", port=stand.metrics_port)[1] + postgres_series(other | _POSTGRES)


def postgres_series(environment: dict[str, str]) -> str:
    """What the PostgreSQL store shows; there is no server, and none is needed."""

    async def shown() -> str:
        metrics = Metrics()
        hooks = compose.StoreHooks(lambda _: None, lambda *_, **__: None)
        store = await compose.STORES["postgres"](load(environment), metrics, hooks)
        try:
            return generate_latest(metrics.registry()).decode()
        finally:
            store.close()

    return asyncio.run(shown())


def is_shown(series: str, name: str) -> bool:
    """Tell whether a metric, with the labels that it is named with, is among the series."""
    bare, _, labels = name.partition("{")
    wanted = re.escape(labels.removesuffix("}"))
    return re.search(rf"^{bare}(?:\{{[^}}]*{wanted}[^}}]*\}})? ", series, re.MULTILINE) is not None


def missing_in(failure: Failure, series: str) -> list[str]:
    """Everything that a row lacks or names in vain."""
    lacks = [f"the mutant {line}" for line in failure.mutants if not line.mutants()]
    lacks += [f"the metric {name}" for name in failure.shown() if not is_shown(series, name)]
    lacks += [f"the event {name}" for name in failure.told() if name not in EVENTS]
    lacks += [f"the test {test}" for test in failure.proof() if not exists(test)]
    words = {"a mutant": failure.mutants, "a test": failure.proof(), "an answer": failure.seen, "advice": failure.do}
    lacks += [word for word, value in words.items() if not value]
    if not failure.shown() and not isinstance(failure.metrics, Silent):
        lacks.append("a metric")
    return lacks


@cache
def exists(test: str) -> bool:
    """Tell whether a test, its parameters left out, is a function of its file or of a suite that stores share."""
    file, *_, name = test.split("::")
    root = Path(__file__).resolve().parents[1]
    suites = [str(path.relative_to(root)) for path in (root / "tests" / "conformance").glob("*_suite.py")]
    return (root / file).is_file() and any(name in functions_of(one) for one in (file, *suites))


@pytest.mark.parametrize("number", ROWS)
def test_a_failure_has_all_that_proves_it(series: str, number: str) -> None:
    """A row has an answer, advice, a metric that is shown or says why not, known events, tests and mutants."""
    assert missing_in(ROWS[number], series) == []


@pytest.mark.parametrize("name", PROMISES)
def test_a_promise_shows_somewhere(series: str, name: str) -> None:
    """A promise has a mechanism, a mutant, and metrics that are shown or one of the few reasons why there is none."""
    shown = SHOWING[name]
    assert MECHANISMS[name]
    assert any(mutant.promise == name for mutant in MUTANTS)
    assert isinstance(shown, Silent) or (shown and all(is_shown(series, f"{PREFIX}{one}") for one in shown))


def test_the_three_tables_of_promises_agree() -> None:
    """Promises, mechanisms and metrics have the same names in the same order."""
    assert list(PROMISES) == list(MECHANISMS) == list(SHOWING)


def test_no_failure_stands_twice() -> None:
    """Each section has rows, and no two rows say the same."""
    happenings = [failure.happens for failure in ROWS.values()]
    assert len(set(happenings)) == len(happenings)
    assert list(FAILURES) == list(Group) and all(FAILURES.values())


def test_every_refusal_and_close_is_a_failure_mode() -> None:
    """Whatever a worker may be told or cut off with by way of failure stands in some row."""
    told = {one for failure in ROWS.values() for one in failure.seen}
    # What is left is a worker's own mistake, judged by the rows of docs/wire-contract.md, and no failure of operation.
    slips = {
        Reason.EXPECTATION, Reason.INVALID_TARGET, Reason.OUTSIDE_API, Reason.METHOD, Reason.UNKNOWN_WORKER_PATH,
        Reason.CONTENT_ENCODING, Reason.NO_LENGTH, Reason.DECLARED_TOO_LARGE, Reason.CONTENT_TYPE,
        Reason.INVALID_CONFIGURATION,
    }  # fmt: skip
    assert set(Reason) - told == slips
    assert set(Close) <= told


def test_every_metric_says_something(series: str) -> None:
    """Each metric shows some failure or promise; what remains are the version and what only counts visits."""
    shown = {name for failure in ROWS.values() for name in failure.shown()}
    shown |= {f"{PREFIX}{name}" for names in SHOWING.values() if isinstance(names, tuple) for name in names}
    there = {
        name.removesuffix("_bucket").removesuffix("_sum")
        for name in re.findall(rf"^({PREFIX}\w+)", series, re.MULTILINE)
    }
    remains = there - {name.partition("{")[0] for name in shown} - {f"{PREFIX}stage_seconds"}
    assert remains == {f"{PREFIX}build_info", f"{PREFIX}connections_accepted_total"}


def test_every_reason_without_a_metric_is_used() -> None:
    """The closed set of reasons for having no metric, and of what is seen, holds no member that nobody uses."""
    silent = {one for one in SHOWING.values() if isinstance(one, Silent)}
    silent |= {failure.metrics for failure in ROWS.values() if isinstance(failure.metrics, Silent)}
    assert silent == set(Silent)
    assert {one for failure in ROWS.values() for one in failure.seen if isinstance(one, Seen)} == set(Seen)


GOOD = Failure("all is well", (Reason.JSON,), "nothing", (Line("crl.py", "_is_older"),), tests=())
BAD: list[tuple[Failure, str]] = [
    (Failure("", (Reason.JSON,), "do", (Line("crl.py", "no such line"),)), "the mutant"),
    (Failure("", (Reason.JSON,), "do", ()), "a mutant"),
    (Failure("", (Reason.JSON,), "", GOOD.mutants), "advice"),
    (Failure("", (), "do", GOOD.mutants, metrics=("requests_total",)), "an answer"),
    (Failure("", (Seen.NOTHING,), "do", GOOD.mutants), "a metric"),
    (Failure("", (Seen.NOTHING,), "do", GOOD.mutants, metrics=("no_such_total",)), "the metric"),
    (Failure("", (Seen.NOTHING,), "do", GOOD.mutants, metrics=('ready{check="none"}',)), "the metric"),
    (Failure("", (Reason.JSON,), "do", GOOD.mutants, events=("no_such_event",)), "the event"),
    (Failure("", (Reason.JSON,), "do", GOOD.mutants, tests=("tests/test_crl.py::test_none",)), "the test"),
    (Failure("", (Reason.JSON,), "do", GOOD.mutants, tests=("tests/test_none.py::test_none",)), "the test"),
]


def test_a_row_that_lacks_something_is_noticed(series: str) -> None:
    """The check can fail: on each thing that a row may lack or name in vain, and on nothing else."""
    assert missing_in(GOOD, series) == []
    for failure, lack in BAD:
        found = missing_in(failure, series)
        assert found and any(one.startswith(lack) for one in found), (failure, found)


def test_the_document_has_every_row() -> None:
    """docs/failure-modes.md shows each failure twice: what happens, and what proves it."""
    shown = re.findall(r"^\| (F\d+) \|", (DOCS / "failure-modes.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(shown, key=lambda number: int(number[1:])) == [number for number in ROWS for _ in range(2)]


def test_a_line_names_its_own_mutants_alone() -> None:
    """A part of a line finds the mutants of that file and of no other."""
    found: list[Mutant] = Line("crl.py", "_is_older").mutants()
    assert {mutant.file for mutant in found} == {"sidecar/crl.py"}
    assert Line("rl.py", "_is_older").mutants() == []
