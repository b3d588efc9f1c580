"""`python -m bench.memory`: resident memory of a sidecar over 100,000 deliveries, and its slope.

Memory hardly depends on load, so this may run on a busy machine; it takes as long as the deliveries take. What an open
connection costs, and start to ready, are `bench.footprint`'s.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench.bed import RESULTS, Settings, load, pid_of, processors, product, resident_kib, result_of, store
from bench.workloads import BASE

DELIVERIES: Final = 100_000
STEP: Final = 10_000
CONNECTIONS: Final = 8
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
    return {
        "connections": CONNECTIONS,
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
        found = measure(Path(name) / "stand", settings, asked.deliveries, asked.step)
        result = result_of(Path(name), settings, memory=found)
    store(result, asked.output)
    print(
        f"resident {found['resident_kib'] / 1024:.1f} MiB after {found['samples'][-1][0]} deliveries (target"
        f" {TARGET_KIB / 1024:.0f}), slope {found['slope_kib_per_1000']:.2f} KiB for each 1,000"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
