"""The comparison of drivers: that it runs, and what it stores."""

import json

from bench import drivers
from bench.bed import CHECKOUT, RESULTS
from bench.driver import DRIVERS
from tests.kit.postgres import Postgres

KEYS = {"cpu_us", "wall_us", "instructions"}


def test_stored_results_have_their_shape() -> None:
    """Each driver has its figures for every number of sessions; what was chosen costs the fewest instructions."""
    found = json.loads((RESULTS / "drivers.json").read_text())
    assert found["drivers"].keys() == DRIVERS.keys()
    for one in found["drivers"].values():
        assert one.keys() == KEYS
        assert {*one["cpu_us"], *one["wall_us"]} == {str(sessions) for sessions in drivers.SESSIONS}
    counted = {name: one["instructions"] for name, one in found["drivers"].items()}
    assert counted["ours"] < counted["asyncpg"] < counted["psycopg"]
    reason = (CHECKOUT / "docs/adr/0009-asyncpg-and-a-pool-of-our-own.md").read_text()
    assert all(f"| {round(one / 1000)} |" in reason for one in counted.values())


def test_the_harness_runs(server: Postgres) -> None:
    """Every driver reads the attempt's row under a lock, and its cost is told."""
    found = drivers.measure(server, 16, 1, counted=False)
    assert all(one["cpu_us"]["1"] > 0 and one["instructions"] is None for one in found.values())
    assert drivers.show(found).count("\n") == len(DRIVERS)
