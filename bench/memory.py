"""`python -m bench.memory`: resident memory of a sidecar over 100,000 deliveries, its slope, and an open connection's.

Memory hardly depends on load, so this may run on a busy machine; it takes as long as the deliveries take.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench.bed import (
    RESULTS,
    Settings,
    ended,
    load,
    pid_of,
    planned,
    processors,
    product,
    resident_kib,
    result_of,
    started,
    store,
)
from bench.workloads import BASE
from tests.kit.stand import Stand

DELIVERIES: Final = 100_000
STEP: Final = 10_000
CONNECTIONS: Final = 8
IDLE: Final = 200
"""Open connections of which the memory of one is taken."""
SETTLED: Final = 2
"""Samples before the slope is taken: at the start caches and pools still fill."""
TARGET_KIB: Final = 56 * 1024


def slope(samples: Sequence[tuple[int, int]]) -> float:
    """Return the least-squares slope of (deliveries, KiB), in KiB for each 1,000 deliveries; 0 for fewer than two."""
    if len(samples) < 2:
        return 0.0
    middle = sum(count for count, _ in samples) / len(samples), sum(kib for _, kib in samples) / len(samples)
    across = sum((count - middle[0]) ** 2 for count, _ in samples)
    return sum((count - middle[0]) * (kib - middle[1]) for count, kib in samples) / across * 1000


def per_connection(stand: Stand, settings: Settings, crowd: Sequence[str]) -> float:
    """Return the KiB by which resident memory grows for each of many connections that stay open without a request."""
    pid, workload = pid_of(stand), replace(BASE, connections=1)
    before = highest = resident_kib(pid)["VmRSS"]
    client = started(
        planned(stand, pid, stand.port, workload, settings, request=crowd[0], idle=IDLE, seconds=1.0, warm_up_s=0.0)
    )
    while client.poll() is None:
        highest = max(highest, resident_kib(pid)["VmRSS"])
        time.sleep(0.05)
    seen = ended(client)
    return (highest - before) / max(1, seen.idle_open)


def measure(directory: Path, settings: Settings, deliveries: int, step: int) -> dict[str, Any]:
    """Deliver so many times and look at the resident memory after each step."""
    workload = replace(BASE, connections=CONNECTIONS)
    samples = []
    with product(directory, workload, settings) as (stand, requests):
        pid, done = pid_of(stand), 0
        after = resident_kib(pid)
        samples.append((0, after["VmRSS"]))
        while done < deliveries:
            seen = load(
                stand, pid, stand.port, workload, settings,
                request=requests[0], others=tuple(requests[1:]), requests=step, seconds=600.0,
            )  # fmt: skip
            done += seen.requests
            after = resident_kib(pid)
            samples.append((done, after["VmRSS"]))
            print(f"bench: {done} deliveries, {after['VmRSS'] / 1024:.1f} MiB", file=sys.stderr, flush=True)
        each = per_connection(stand, settings, crowd=requests)
    return {
        "connections": CONNECTIONS,
        "kib_per_connection": round(each, 1),
        "samples": samples,
        "resident_kib_at_start": samples[0][1],
        "resident_kib_after_first_step": samples[1][1],
        "resident_kib": samples[-1][1],
        "peak_kib": after["VmHWM"],
        "slope_kib_per_1000": round(slope(samples[SETTLED:]), 3),
        "target_kib": TARGET_KIB,
        "reached": samples[-1][1] <= TARGET_KIB,
    }


def main(given: Sequence[str] | None = None) -> int:
    """Measure, write the results, show them."""
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description="Memory over many deliveries.")
    parser.add_argument("--deliveries", type=int, default=DELIVERIES, help="how many (default 100000)")
    parser.add_argument("--step", type=int, default=STEP, help="deliveries between two looks (default 10000)")
    parser.add_argument("--directory", default="/var/tmp", help="where the store is made; a disk (default /var/tmp)")
    parser.add_argument("--output", type=Path, default=RESULTS / "memory.json", help="the results' file")
    asked = parser.parse_args(given)
    settings = Settings(0.0, 0.0, 1, *processors(), True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=asked.directory) as name:
        about = result_of(Path(name), settings)
        found = measure(Path(name) / "stand", settings, asked.deliveries, asked.step)
        result = about | {"memory": found}
    store(result, asked.output)
    print(
        f"resident {found['resident_kib'] / 1024:.1f} MiB after {found['samples'][-1][0]} deliveries (target"
        f" {TARGET_KIB / 1024:.0f}), slope {found['slope_kib_per_1000']:.2f} KiB for each 1,000"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
