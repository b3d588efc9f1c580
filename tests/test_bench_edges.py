"""The benchmarks of refusals, handshakes, replicas and memory: that they run, and what they make of their runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench import handshakes, memory, refusals, replicas
from bench.bed import RESULTS, Settings
from tests.kit.postgres import Postgres

BRIEF = Settings(0.1, 0.0, 1, None, None, True)


def stored(name: str) -> dict[str, Any]:
    """Return a stored result."""
    found: dict[str, Any] = json.loads((RESULTS / name).read_text())
    assert found["format"] == 2
    return found


def test_a_refusal_is_judged_beside_a_delivery_of_its_own_round() -> None:
    """A slow round does not judge a fast one; kept refusals are held against deliveries on kept connections."""
    some = [one for one in refusals.REFUSALS if one.name.startswith("not the command")]
    figures = {
        0: {"served, fresh": 100, "served, kept alive": 20, "not the command": 90, "not the command, kept alive": 25},
        1: {"served, fresh": 300, "served, kept alive": 60, "not the command": 210, "not the command, kept alive": 72},
    }
    runs = [
        {"server": name, "round": number, "pair": one.name, "cpu_us": float(of[name])}
        for number, of in figures.items()
        for one in some
        for name in (refusals.SERVED[one.kept], one.name)
    ]
    fresh, kept = refusals.judged(runs, some)
    assert (fresh["share"]["low"], fresh["share"]["high"], fresh["held"]) == (0.7, 0.9, True)
    assert (kept["share"]["low"], kept["share"]["high"], kept["held"]) == (1.2, 1.25, False)


def test_every_stage_that_can_refuse_is_measured() -> None:
    """No stage of a request is left out."""
    early = ["before the handshake", "handshake", "head", "parse", "route", "authentication", "shield", "headers"]
    assert list(dict.fromkeys(one.stage for one in refusals.REFUSALS)) == [
        *early, "body", "command", "authority", "material"
    ]  # fmt: skip
    assert {one.stage for one in refusals.REFUSALS if one.kept} == {"body", "command", "authority", "material"}


def test_refusals_are_measured(tmp_path: Path) -> None:
    """One of each kind of end, on each kind of sidecar, with the answer that it is named for."""
    first = {(one.sidecar, one.status is None): one for one in reversed(refusals.REFUSALS) if not one.kept}
    some = tuple(first.values())
    runs = refusals.measure(tmp_path, BRIEF, some)
    assert {run["server"] for run in runs} == {refusals.SERVED[False], *(one.name for one in some)}
    assert all(run["requests"] > 0 and run["cpu_us"] > 0 for run in runs)
    assert len(refusals.judged(runs, some)) == len(some)


def test_the_stored_refusals_name_every_one() -> None:
    """The stored result holds every refusal, each with its share of a delivery."""
    found = stored("refusals.json")
    assert [one["name"] for one in found["refusals"]] == [one.name for one in refusals.REFUSALS]
    assert refusals.NOT_MEASURED in refusals.show(found)


def test_handshakes_go_on_in_a_storm(tmp_path: Path) -> None:
    """With the identity renewed again and again handshakes are made, and the figure says how many a second are left."""
    settings = Settings(1.0, 0.0, 1, None, None, True)
    runs = handshakes.measure(tmp_path / "stand", settings, 0.05)
    found = handshakes.summarised(runs)
    assert found["storm"]["reloads"]["median"] >= 1
    assert found["none"]["reloads"]["median"] == 0
    assert found["left_by_a_storm"]["median"] > 0
    assert handshakes.UNBOUNDED in handshakes.show({"handshakes": found})
    assert stored("handshakes.json")["handshakes"].keys() == found.keys()


def test_two_replicas_deliver_at_once(tmp_path: Path, server: Postgres) -> None:
    """Two sidecars on one database deliver, and a delivery's processor time is told apart for them and the database."""
    settings = Settings(1.0, 0.2, 1, None, None, True)
    with server.database() as database:
        found = replicas.run(tmp_path / "two", server, database, 2, settings)
    assert found["requests"] > 0
    assert found["sidecar_us"] > 0
    assert found["database_us"] > 0
    stored_ones = stored("replicas.json")["replicas"]
    assert stored_ones.keys() == {"1", "2"}
    assert replicas.summarised([found, found | {"replicas": 1}])["2"]["sessions"]["median"] == 2 * replicas.SESSIONS


@pytest.mark.parametrize(
    ("samples", "slope"), [([], 0.0), ([(1000, 5)], 0.0), ([(0, 9), (1000, 9)], 0.0), ([(0, 1), (1000, 3)], 2.0)]
)
def test_the_slope_is_of_least_squares(samples: list[tuple[int, int]], slope: float) -> None:
    """Memory that does not grow has the slope zero."""
    assert memory.slope(samples) == slope


def test_memory_is_looked_at_after_each_step(tmp_path: Path) -> None:
    """Every step gives a sample, and the first one stands for the start."""
    found = memory.measure(tmp_path / "stand", BRIEF, 40, 20)
    assert len(found["samples"]) == 3
    assert found["resident_kib"] > 10_000
    assert stored("memory.json")["memory"].keys() == found.keys()
