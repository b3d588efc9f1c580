"""The harness: what its runs come to, and that it runs at all."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from bench import report, run
from bench.load import Measured, processor_time

# What bench/worker.py, bench/postgres.py and bench/deploy.py write has a shape and a test of its own.
OTHERS = ("worker.json", "postgres.json", "deploy.json")
RESULTS = sorted(path for path in run.RESULTS.glob("*.json") if path.name not in OTHERS)


def measured(cpu_s: float, *, waited_s: float = 0.0, requests: int = 1000) -> Measured:
    """Return a second in which the server ran for `cpu_s` seconds."""
    return Measured(requests, 1.0, cpu_s, waited_s, client_cpu_s=0.4, p50_s=0.001, p99_s=0.002)


def runs(product: list[float], bare: list[float]) -> list[dict[str, Any]]:
    """Return the runs of rounds in which the servers ran for these shares of a second."""
    return [
        report.described(server, number, measured(cpu, requests=1000), shared=False)
        for server, all_of in (("product", product), ("bare", bare))
        for number, cpu in enumerate(all_of)
    ]


def test_a_ratio_is_taken_within_a_round_of_two_runs_that_count() -> None:
    """Rounds in which either server was less than 85 % busy give no ratio."""
    workload = report.Workload("w", 1, 100, target=0.9)
    found = report.summary(workload, runs([0.9, 1.0, 0.5], [0.9, 0.86, 0.9]))
    assert found["ratio"] == {"median": 0.93, "low": 0.86, "high": 1.0}
    assert found["reached"] is True
    assert found["cpu_us"]["product"] == {"median": 950.0, "low": 900.0, "high": 1000.0}


def test_no_ratio_without_a_round_that_counts() -> None:
    """A server that was never busy is not measured, and the table says so instead of showing a figure."""
    found = report.summary(report.Workload("idle", 1, 100, target=0.1), runs([0.5], [0.9]))
    assert found["ratio"] is None
    assert found["reached"] is None
    assert "no round counts" in report.show({"workloads": [found]})


def test_time_kept_waiting_counts_only_on_a_shared_machine() -> None:
    """By default a run counts by the time that the server ran, not by the time that it wanted to."""
    kept = measured(0.5, waited_s=0.4)
    assert not report.described("product", 0, kept, shared=False)["counts"]
    assert report.described("product", 0, kept, shared=True)["counts"]


def test_processor_time_grows_with_work() -> None:
    """The figure is the kernel's count of what every thread of a process ran."""
    before, _ = processor_time(os.getpid())
    sum(number * number for number in range(200_000))
    after, _ = processor_time(os.getpid())
    assert after > before


@pytest.mark.parametrize("path", RESULTS, ids=[path.name for path in RESULTS])
def test_stored_results_have_their_shape(path: Path) -> None:
    """Every stored result says what was measured, on what, how often, and how it spread."""
    found = json.loads(path.read_text())
    assert found["format"] == 1
    assert {"processor", "kernel", "python", "openssl", "sqlite", "aiohttp", "file_system"} <= found["machine"].keys()
    assert [one["name"] for one in found["workloads"]] == [workload.name for workload in run.WORKLOADS]
    for one in found["workloads"]:
        assert len(one["runs"]) == 2 * found["settings"]["rounds"]
        assert one["ratio"]["low"] <= one["ratio"]["median"] <= one["ratio"]["high"]
    assert found["memory"]["deliveries"] >= run.MEMORY_REQUESTS


def test_a_store_in_memory_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A figure whose audit rows went to memory would be none."""
    monkeypatch.setattr(report, "file_system", lambda _: "tmpfs")
    assert run.main(["--output", "/nonexistent/never-written"]) == 64
    assert "must be on a disk" in capsys.readouterr().err


def test_a_short_run_gives_a_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole harness runs: both servers, the client, the result and its table."""
    output = tmp_path / "result.json"
    given = ["--seconds", "0.3", "--warm-up", "0.1", "--rounds", "1", "--only", "1 ref, kept", "--no-memory"]
    assert run.main([*given, "--output", str(output)]) == 0
    (one,) = json.loads(output.read_text())["workloads"]
    assert {each["server"] for each in one["runs"]} == {"product", "bare"}
    assert all(each["requests"] > 0 and each["cpu_us"] > 0 for each in one["runs"])
    assert "1 ref, kept alive" in capsys.readouterr().out
