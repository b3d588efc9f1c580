"""`python -m bench.stages`: the processor time of a delivery, split by stage, so that the next saving is a fact.

The shares come from `bench.profiled`, the sum from the kernel: the main thread's processor time is split by the
samples, that of the other threads (events, checkpoints) is read as it is, and what a sidecar without sampler uses
stands beside.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from bench.bed import (
    DURABLE,
    LIMITS,
    RESULTS,
    Settings,
    load,
    pid_of,
    pin,
    prepared,
    processors,
    product,
    result_of,
    store,
)
from bench.plan import processor_time
from bench.profiled import EVERY_MS, STAGES
from bench.report import Workload
from bench.workloads import BASE, FRESH, FULL, POSTGRES
from sidecar.devpostgres import CannotRun
from tests.kit.postgres import Database, Postgres
from tests.kit.stand import Stand

SIXTY_FOUR: Final = next(one for one in FULL if one.refs == 64)
CASES: Final = (BASE, SIXTY_FOUR, FRESH)
WRITTEN_S: Final = 20.0
PLAIN_S: Final = 3.0
"""Length of the run without sampler, which shows only what the sampler itself costs."""


def split(counts: Mapping[str, int], main_us: float, threads_us: float) -> dict[str, float]:
    """Return the microseconds of each stage; they sum to both. Raises ValueError for no sample."""
    samples = sum(counts.values())
    if samples == 0:
        raise ValueError("there is no sample: the run was too short")
    found = {stage: round(counts.get(stage, 0) / samples * main_us, 1) for stage in STAGES}
    return found | {"threads": round(threads_us, 1)}


def main_time(pid: int) -> float:
    """Return the seconds that a process's main thread ran."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def written(out: Path) -> dict[str, int]:
    """Return the counts once the sampler has written them. Raises TimeoutError."""
    end = time.monotonic() + WRITTEN_S
    while not out.exists():
        if time.monotonic() > end:
            raise TimeoutError("the sampler has written nothing")
        time.sleep(0.02)
    found: dict[str, int] = json.loads(out.read_text())
    return found


def sampled(stand: Stand, crowded: dict[str, Any], workload: Workload, settings: Settings, out: Path) -> dict[str, Any]:
    """Load a sidecar that samples itself; return what it counted and what the kernel did."""
    pid = pid_of(stand)
    load(stand, pid, stand.port, workload, settings, **crowded | {"seconds": settings.warm_up_s})
    stand.process.send_signal(signal.SIGUSR1)  # type: ignore[union-attr]
    time.sleep(0.1)
    main_s, (all_s, _) = main_time(pid), processor_time(pid)
    seen = load(stand, pid, stand.port, workload, settings, **crowded | {"warm_up_s": 0.0})
    main_s, all_s = main_time(pid) - main_s, processor_time(pid)[0] - all_s
    stand.process.send_signal(signal.SIGUSR2)  # type: ignore[union-attr]
    counts = written(out)
    each = 1e6 / seen.requests
    stages = split(counts, main_s * each, (all_s - main_s) * each)
    return {
        "requests": seen.requests,
        "samples": sum(counts.values()),
        "cpu_us": round(all_s * each, 1),
        "stages_us": stages,
        "sum_us": round(sum(stages.values()), 1),
    }


def measure(workload: Workload, directory: Path, settings: Settings, server: Postgres | None = None) -> dict[str, Any]:
    """Split a delivery's processor time; measure the same without sampler. A server is for the store PostgreSQL."""
    with ExitStack() as stack:
        databases = [None if server is None else stack.enter_context(server.database()) for _ in range(2)]
        return _measured(workload, directory, settings, *databases)


def _measured(
    workload: Workload, directory: Path, settings: Settings, first: Database | None, second: Database | None
) -> dict[str, Any]:
    out = directory / "samples.json"
    stand, requests = prepared(directory / "sampled", workload, first)
    crowded = {"request": requests[0], "others": tuple(requests[1:])}
    with stand:
        stand.start(program=("-m", "bench.profiled", str(out)), **LIMITS)
        pin(pid_of(stand), settings.server_cpu)
        found = sampled(stand, crowded, workload, settings, out)
    with product(directory / "plain", workload, settings, second) as (stand, requests):
        crowded = {"request": requests[0], "others": tuple(requests[1:])}
        plain = load(
            stand,
            pid_of(stand),
            stand.port,
            workload,
            settings,
            **crowded | {"seconds": min(PLAIN_S, settings.seconds)},
        )
    return {"name": workload.name, **found, "without_sampler_us": round(plain.cpu_s / plain.requests * 1e6, 1)}


def split_all(settings: Settings) -> dict[str, Any]:
    """Split every case and return the result; what cannot run here is said."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        about = result_of(Path(name), settings)
        cases = []
        for number, workload in enumerate(CASES):
            (Path(name) / str(number)).mkdir()
            cases.append(measure(workload, Path(name) / str(number), settings))
        missed = []
        try:
            with Postgres(settings=DURABLE) as server:
                (Path(name) / "postgres").mkdir()
                cases.append(measure(POSTGRES, Path(name) / "postgres", settings, server))
        except CannotRun as why:
            missed.append(f"{POSTGRES.name} was not split: {why}")
        return about | {"every_ms": EVERY_MS, "cases": cases, "not_compared": missed}


def show(result: dict[str, Any]) -> str:
    """Return the split as a table for people."""
    cases = result["cases"]
    lines = [f"{'us a delivery':20}" + "".join(f"{one['name']:>28}" for one in cases)]
    lines += [f"{stage:20}" + "".join(f"{one['stages_us'][stage]:28.1f}" for one in cases) for stage in STAGES]
    sums = ("sum_us", "cpu_us", "without_sampler_us", "samples")
    lines += [f"{key:20}" + "".join(f"{one[key]:28}" for one in cases) for key in sums]
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> int:
    """Measure, write the results, show them."""
    parser = argparse.ArgumentParser(prog="python -m bench.stages", description="A delivery's time, split by stage.")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of one run (default 10)")
    parser.add_argument("--directory", default="/var/tmp", help="where the stores are made; a disk (default /var/tmp)")
    parser.add_argument("--output", type=Path, default=RESULTS / "stages.json", help="the results' file")
    asked = parser.parse_args(given)
    settings = Settings(asked.seconds, min(0.5, asked.seconds), 1, *processors(), True)
    before, tempfile.tempdir = tempfile.tempdir, asked.directory
    try:
        result = split_all(settings)
    finally:
        tempfile.tempdir = before
    store(result, asked.output)
    print(show(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
