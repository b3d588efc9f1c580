"""What the runs come to: medians, spreads, ratios, and what they depend on."""

import dataclasses
import os
import platform
import re
import sqlite3
import ssl
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from bench.load import Measured
from provider.mounts import mount_id

COUNTS_FROM: Final = 0.85
"""A run counts only if the server was this busy: otherwise the client was measured, or something else."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One way to load both servers, and the ratio to reach."""

    name: str
    refs: int
    requests_per_connection: int
    target: float | None = None
    connections: int = 32


def described(server: str, number: int, measured: Measured, *, shared: bool) -> dict[str, Any]:
    """Return one run as it stands in the results."""
    busy = measured.cpu_s / measured.seconds
    wanted = busy + measured.waited_s / measured.seconds
    return {
        "server": server,
        "round": number,
        "requests": measured.requests,
        "seconds": round(measured.seconds, 3),
        "cpu_us": round(measured.cpu_s / measured.requests * 1e6, 1),
        "busy": round(busy, 3),
        "busy_or_kept_waiting": round(wanted, 3),
        "client_busy": round(measured.client_cpu_s / measured.seconds, 3),
        "per_second": round(measured.requests / measured.seconds, 1),
        "p50_ms": round(measured.p50_s * 1000, 3),
        "p99_ms": round(measured.p99_s * 1000, 3),
        "counts": (wanted if shared else busy) >= COUNTS_FROM,
    }


def spread(values: Sequence[float], digits: int) -> dict[str, float] | None:
    """Return median, lowest and highest; None for nothing."""
    if not values:
        return None
    middle = statistics.median(values)
    return {
        "median": round(middle, digits), "low": round(min(values), digits), "high": round(max(values), digits)
    }  # fmt: skip


def summary(workload: Workload, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a workload's result. A ratio is taken within each round, of two runs that count."""
    ratios = []
    for number in sorted({run["round"] for run in runs}):
        pair = {run["server"]: run["cpu_us"] for run in runs if run["round"] == number and run["counts"]}
        if len(pair) == 2:
            ratios.append(pair["bare"] / pair["product"])
    of = {server: [run for run in runs if run["server"] == server and run["counts"]] for server in ("product", "bare")}
    ratio = spread(ratios, 3)
    return {
        **dataclasses.asdict(workload),
        "ratio": ratio,
        "reached": None if ratio is None or workload.target is None else ratio["median"] >= workload.target,
        "cpu_us": {server: spread([run["cpu_us"] for run in some], 1) for server, some in of.items()},
        "per_second": {server: spread([run["per_second"] for run in some], 1) for server, some in of.items()},
        "p99_ms": {server: spread([run["p99_ms"] for run in some], 3) for server, some in of.items()},
        "runs": list(runs),
    }


def file_system(directory: Path) -> str:
    """Return the kind of file system that a directory is on."""
    descriptor = os.open(directory, os.O_PATH)
    try:
        mount = mount_id(descriptor)
    finally:
        os.close(descriptor)
    mounts = re.findall(r"^([0-9]+) .*? - (\S+) ", Path("/proc/self/mountinfo").read_text(), re.MULTILINE)
    return str(dict(mounts).get(str(mount), "unknown"))


def machine(directory: Path) -> dict[str, Any]:
    """Return what the figures depend on; nothing that names this machine."""
    model = "unknown"
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    return {
        "processor": model,
        "processors": len(os.sched_getaffinity(0)),
        "load_before": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "file_system": file_system(directory),
        "python": platform.python_version(),
        "openssl": ssl.OPENSSL_VERSION,
        "sqlite": sqlite3.sqlite_version,
        "aiohttp": version("aiohttp"),
    }


def show(result: dict[str, Any]) -> str:
    """Return the results as a table for people."""
    lines = [
        f"{'workload':28}{'product us':>12}{'bare us':>10}{'ratio':>8}{'low':>8}{'high':>8}{'target':>8}{'req/s':>9}"
    ]
    for one in result["workloads"]:
        product_us, bare_us, ratio = one["cpu_us"]["product"], one["cpu_us"]["bare"], one["ratio"]
        if ratio is None:
            lines.append(f"{one['name']:28}  no round counts: the server was never {COUNTS_FROM:.0%} busy in both runs")
            continue
        target = "" if one["target"] is None else f"{one['target']:.2f}"
        lines.append(
            f"{one['name']:28}{product_us['median']:12.1f}{bare_us['median']:10.1f}{ratio['median']:8.3f}"
            f"{ratio['low']:8.3f}{ratio['high']:8.3f}{target:>8}{one['per_second']['product']['median']:9.0f}"
        )
    if found := result.get("memory"):
        lines.append(
            f"resident after {found['deliveries']} deliveries: {found['resident_kib'] / 1024:.1f} MiB"
            f" (peak {found['peak_kib'] / 1024:.1f}, at most {found['target_kib'] / 1024:.0f})"
        )
    return "\n".join(lines)
