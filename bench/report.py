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

from bench import nginx
from bench.plan import PERCENTILES, Measured
from provider.mounts import mount_id

COUNTS_FROM: Final = 0.85
"""A run counts only if the server was this busy: otherwise the client was measured, or something else."""

CLIENT: Final = "bench/load.py, one process of its own; ab is not used"
SHOWN: Final = {"cpu_us": 1, "per_second": 1, **{f"p{name}_ms": 3 for name in PERCENTILES}}
"""Figures of a run that are summarised, with their digits."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One way to load both servers, and the ratio to reach."""

    name: str
    refs: int = 1
    requests_per_connection: int = 100
    """One: every request has a connection of its own."""
    target: float | None = None
    connections: int = 16
    value_bytes: int = 64
    store: str = "sqlite"
    pool: int | None = None
    """Sessions of the PostgreSQL pool."""
    receipts: bool = False
    idle: int = 0
    """Further connections that are open and send nothing."""
    rotation_ms: int | None = None
    """A projector publishes a new generation this often."""
    root_in_memory: bool = False
    """The root is on tmpfs, as a Kubernetes Secret is; otherwise beside the store on the disk."""
    dimension: str = ""
    """What it varies from the base; nothing for the base itself."""

    @property
    def saturates(self) -> bool:
        """Whether the load can keep a server busy, so that a run in which it was not does not count."""
        return self.connections > 1 and self.rotation_ms is None and self.store == "sqlite"


def described(
    server: str, number: int, measured: Measured, *, shared: bool, busy_from: float = COUNTS_FROM
) -> dict[str, Any]:
    """Return one run as it stands in the results; it counts if the server was that busy, or the machine is shared."""
    busy = measured.cpu_s / measured.seconds
    return {
        "server": server,
        "round": number,
        "requests": measured.requests,
        "seconds": round(measured.seconds, 3),
        "cpu_us": round(measured.cpu_s / measured.requests * 1e6, 1),
        "busy": round(busy, 3),
        "busy_or_kept_waiting": round(busy + measured.waited_s / measured.seconds, 3),
        "client_busy": round(measured.client_cpu_s / measured.seconds, 3),
        "per_second": round(measured.requests / measured.seconds, 1),
        **{f"p{name}_ms": round(getattr(measured, f"p{name}_s") * 1000, 3) for name in PERCENTILES},
        "other": measured.other,
        "idle_open": measured.idle_open,
        "counts": shared or busy >= busy_from,
    }


def spread(values: Sequence[float], digits: int) -> dict[str, float] | None:
    """Return median, lowest and highest; None for nothing."""
    if not values:
        return None
    middle = statistics.median(values)
    return {
        "median": round(middle, digits), "low": round(min(values), digits), "high": round(max(values), digits)
    }  # fmt: skip


def ratios(runs: Sequence[dict[str, Any]], ceiling: str) -> list[float]:
    """Return ceiling / product of each round in which both were measured and count."""
    found = []
    for number in sorted({run["round"] for run in runs}):
        pair = {run["server"]: run["cpu_us"] for run in runs if run["round"] == number and run["counts"]}
        if {"product", ceiling} <= pair.keys():
            found.append(pair[ceiling] / pair["product"])
    return found


def summary(workload: Workload, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a workload's result. A ratio is taken within each round, of two runs that count."""
    servers = list(dict.fromkeys(["product", "bare", *(run["server"] for run in runs)]))
    of = {server: [run for run in runs if server == run["server"] and run["counts"]] for server in servers}
    ratio = spread(ratios(runs, "bare"), 3)
    return {
        **dataclasses.asdict(workload),
        "ratio": ratio,
        "ratio_nginx": spread(ratios(runs, "nginx"), 3),
        "reached": None if ratio is None or workload.target is None else ratio["median"] >= workload.target,
        **{
            key: {server: spread([run[key] for run in some], digits) for server, some in of.items()}
            for key, digits in SHOWN.items()
        },
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
        "nginx": nginx.version(),
        "client": CLIENT,
    }


def show(result: dict[str, Any]) -> str:
    """Return the results as a table for people."""
    lines = [
        f"{'workload':34}{'product us':>11}{'bare us':>9}{'nginx us':>9}{'ratio':>8}{'low':>7}{'high':>7}{'target':>8}"
        f"{'req/s':>8}{'p99 ms':>8}"
    ]
    for one in result["workloads"]:
        cpu, ratio = one["cpu_us"], one["ratio"]
        if ratio is None:
            lines.append(f"{one['name']:34}  no round counts: the server was never {COUNTS_FROM:.0%} busy in both runs")
            continue
        beside = cpu.get("nginx")
        lines.append(
            f"{one['name']:34}{cpu['product']['median']:11.1f}{cpu['bare']['median']:9.1f}"
            f"{format(beside['median'], '.1f') if beside else '-':>9}{ratio['median']:8.3f}{ratio['low']:7.3f}"
            f"{ratio['high']:7.3f}{'' if one['target'] is None else format(one['target'], '.2f'):>8}"
            f"{one['per_second']['product']['median']:8.0f}{one['p99_ms']['product']['median']:8.1f}"
        )
    return "\n".join([*lines, *result.get("not_compared", [])])
