"""The benchmark over PostgreSQL: that it runs, and what it stores."""

import json
from pathlib import Path

from bench import postgres
from bench.bed import RESULTS, Settings
from tests.kit.postgres import Postgres

STEPS = {"credential", "audit row", "begin, lock and read", "COMMIT"}


def test_stored_results_have_their_shape() -> None:
    """The stored figures say on what, how often, for both pools, and the time of every step for each size."""
    found = json.loads((RESULTS / "postgres.json").read_text())
    assert found["format"] == 1
    assert [one["name"].rpartition(" ")[2] for one in found["workloads"]] == [str(pool) for pool in postgres.POOLS]
    for one in found["workloads"]:
        assert len(one["runs"]) == 2 * found["settings"]["rounds"]
        most = one["per_second"]["product"]["median"]
        half = one["half_load"]
        assert 0.45 * most < half["asked_per_second"] < 0.55 * most
        assert 0.8 * half["asked_per_second"] < half["per_second"] < 1.25 * half["asked_per_second"]
        assert half["p99_ms"] > 0
    assert found["round_trips_ms"].keys() == {str(replicas) for replicas in postgres.REPLICAS}
    assert all(steps.keys() == STEPS for steps in found["round_trips_ms"].values())


def test_the_harness_runs(tmp_path: Path, server: Postgres) -> None:
    """A run of one pool delivers for every attempt and credential of its own, and every step is timed."""
    settings = Settings(2.0, 0.2, 1, None, None, True)
    found = postgres.measure(tmp_path / "pool", server, 4, settings)
    assert {run["server"] for run in found["runs"]} == {"product", "bare"}
    assert all(run["requests"] > 0 for run in found["runs"])
    assert 0 < found["half_load"]["per_second"] < 1.5 * found["half_load"]["asked_per_second"]
    steps = postgres.round_trips(server, 2, 3)
    assert steps.keys() == STEPS
    assert "ms" in postgres.show({"workloads": [found | {"ratio": None}], "round_trips_ms": {"2": steps}})
