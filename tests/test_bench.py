"""The harness: what its runs come to, and that it runs at all."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from bench import bed, nginx, report, run
from bench.plan import Measured, Until, processor_time
from bench.workloads import BASE, FULL, SHORT

# What the other programs of bench/ write has a shape and a test of its own.
RESULTS = {"short.json": SHORT, "full.json": FULL}


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


def test_a_run_that_was_kept_waiting_counts_only_on_a_shared_machine() -> None:
    """By default a run counts by the time that the server ran; the time that it wanted to run is only shown."""
    kept = measured(0.5, waited_s=0.4)
    found = report.described("product", 0, kept, shared=False)
    assert not found["counts"]
    assert (found["busy"], found["busy_or_kept_waiting"]) == (0.5, 0.9)
    assert report.described("product", 0, kept, shared=True)["counts"]


def test_processor_time_grows_with_work() -> None:
    """The figure is the kernel's count of what every thread of a process ran."""
    before, _ = processor_time(os.getpid())
    sum(number * number for number in range(200_000))
    after, _ = processor_time(os.getpid())
    assert after > before


@pytest.mark.parametrize("name", RESULTS)
def test_stored_results_have_their_shape(name: str) -> None:
    """Every stored result says what was measured, on what, how often, and how it spread."""
    found = json.loads((bed.RESULTS / name).read_text())
    assert found["format"] == 2
    about = {"processor", "kernel", "python", "openssl", "sqlite", "aiohttp", "nginx", "client", "file_system"}
    assert about <= found["machine"].keys()
    assert [one["name"] for one in found["workloads"]] == [workload.name for workload in RESULTS[name]]
    for one in found["workloads"]:
        assert len(one["runs"]) in (2 * found["settings"]["rounds"], 3 * found["settings"]["rounds"])
        if one["ratio"] is None:
            assert one["target"] is None, f"{one['name']}: no round counts, so its target is not measured"
        else:
            assert one["ratio"]["low"] <= one["ratio"]["median"] <= one["ratio"]["high"]


def test_each_workload_differs_from_the_base_in_one_dimension() -> None:
    """One dimension at a time: a figure of the full set can be read beside the base's."""
    together = {"refs, tmpfs": 3, "store": 2}
    for workload in FULL[1:]:
        changed = [
            field
            for field in ("refs", "requests_per_connection", "connections", "value_bytes", "store", "pool", "receipts",
                          "idle", "rotation_ms", "root_in_memory")
            if getattr(workload, field) != getattr(BASE, field)
        ]  # fmt: skip
        assert len(changed) == together.get(workload.dimension, 1), workload.name
    assert len({workload.name for workload in FULL}) == len(FULL)


def test_a_store_in_memory_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A figure whose audit rows went to memory would be none."""
    monkeypatch.setattr(report, "file_system", lambda _: "tmpfs")
    assert run.main(["--output", "/nonexistent/never-written"]) == 64
    assert "must be on a disk" in capsys.readouterr().err


def test_a_short_run_gives_a_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole harness runs: the servers, the client, the result and its table; what is missing here is said."""
    output = tmp_path / "result.json"
    given = ["--seconds", "0.3", "--warm-up", "0.1", "--rounds", "1", "--only", "1 ref, kept", "--shared"]
    assert run.main([*given, "--output", str(output)]) == 0
    found = json.loads(output.read_text())
    (one,) = found["workloads"]
    beside = {"nginx"} if nginx.program() else set()
    assert {each["server"] for each in one["runs"]} == {"product", "bare"} | beside
    assert all(each["requests"] > 0 and each["cpu_us"] > 0 for each in one["runs"])
    assert (run.NO_NGINX in found["not_compared"]) is (not beside)
    assert "1 ref, kept alive" in capsys.readouterr().out


def test_a_machine_without_nginx_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ceiling that is not installed is named as missing and stops nothing."""
    monkeypatch.setattr(nginx, "program", lambda: None)
    assert "not installed" in nginx.version()
    with nginx.nginx({}, 10) as worker:
        assert worker is None


HARD = ("64 refs of 256 B, root on tmpfs", "receipts on", "rotation every 10 ms")


@pytest.mark.parametrize("name", HARD)
def test_a_workload_delivers(tmp_path: Path, name: str) -> None:
    """Workloads that need more than another number deliver, each to several credentials."""
    (workload,) = (one for one in FULL if one.name == name)
    settings = bed.Settings(0.1, 0.0, 1, None, None, True)
    with bed.product(tmp_path / "stand", workload, settings) as (stand, requests):
        assert len(set(requests)) == min(bed.CREDENTIALS, workload.connections)
        with bed.rotating(stand, workload.rotation_ms, settings):
            crowded = {"request": requests[0], "others": tuple(requests[1:]), "requests": 30, "seconds": 30.0}
            seen = bed.load(stand, bed.pid_of(stand), stand.port, workload, settings, **crowded, statuses=(200, 503))
    assert seen.requests >= 30
    assert seen.p50_s <= seen.p90_s <= seen.p99_s <= seen.p999_s
    assert not workload.root_in_memory or not stand.root.exists()


def test_the_client_counts_what_it_is_told(tmp_path: Path) -> None:
    """Handshakes, refusals of a status, ends without an answer, and idle connections beside are counted as such."""
    settings = bed.Settings(0.1, 0.0, 1, None, None, True)
    workload = report.Workload("w", connections=2, requests_per_connection=1)
    with bed.product(tmp_path / "stand", workload, settings) as (stand, _):

        def few(**changed: Any) -> Measured:
            given = {"requests": 4, "seconds": 30.0} | changed
            return bed.load(stand, bed.pid_of(stand), stand.port, workload, settings, **given)

        assert few(until=Until.HANDSHAKE).requests >= 4
        assert few(until=Until.CUT, pair="").requests >= 4
        assert few(until=Until.CUT, plain=True, request="no TLS\r\n\r\n").requests >= 4
        assert few(request=stand.request(target="/none").decode(), statuses=(404,)).requests >= 4
        assert few(idle=5).idle_open == 5
        with pytest.raises(RuntimeError, match="no such answer was expected"):
            few(statuses=(404,))


@pytest.mark.skipif(nginx.program() is None, reason="nginx is not installed here")
def test_nginx_demands_a_certificate_and_says_why_it_does_not_start(tmp_path: Path) -> None:
    """The ceiling serves a client with a certificate only, and never fails without a word."""
    settings = bed.Settings(0.1, 0.0, 1, None, None, True)
    stand, _ = bed.prepared(tmp_path / "stand", BASE)
    with nginx.nginx(stand.environment, 3000) as worker:
        assert worker is not None
        few: dict[str, Any] = {"requests": 2, "seconds": 30.0, "requests_per_connection": 1}
        assert bed.load(stand, *worker, BASE, settings, **few).requests >= 2
        assert bed.load(stand, *worker, BASE, settings, pair="", statuses=(400,), **few).requests >= 2
    without = stand.environment | {"QL3_WORKER_INGRESS_TLS_CERTIFICATE_FILE": str(tmp_path / "none")}
    with pytest.raises(RuntimeError, match="nginx did not start"), nginx.nginx(without, 10):
        pass
