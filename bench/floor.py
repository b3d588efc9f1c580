"""`python -m bench.floor`: what a delivery cannot be cheaper than, from its parts measured alone.

Each part is the least that does the work: a hot loop in one process with nothing around it, so that caches are warm and
every figure is a lower bound. A target that asks for less than the sum of the parts cannot be met with this library,
this store and this order of steps; by how much one that can be met is missed, the same table says.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench.bed import LIMITS, MEMORY, RESULTS, Settings, bare, load, prepared, processors, product, result_of, store
from bench.floor_parts import files_loop, handshake_loop, postgres_loop, python_loop, sqlite_loops
from bench.report import spread
from bench.workloads import BASE, FILES_TARGET, FRESH, POSTGRES, SMALL_FILES
from sidecar.devpostgres import CannotRun

ROUND_TRIPS: Final = 2
"""Of a delivery's own on PostgreSQL: BEGIN, lock and read; COMMIT. Credential and audit row go with others'."""
COUNTED: Final = (200, 400)
"""Deliveries of the two traced runs: their difference leaves the start out."""
NO_TRACE: Final = "system calls were not counted: strace is missing or may not trace"
SERVERS: Final = {"bare": "bench.bare", "TLS alone": "bench.tls_floor"}


def served(directory: Path, settings: Settings) -> dict[str, dict[str, Any]]:
    """Return processor time a request of the two floors that are servers, on kept and fresh connections, in turns."""
    found: dict[str, dict[str, list[float]]] = {name: {"kept": [], "fresh": []} for name in SERVERS}
    with product(directory, BASE, settings) as (stand, _):
        length = len(stand.ask().body)
        with bare(stand, length, settings) as handler, bare(stand, length, settings, SERVERS["TLS alone"]) as alone:
            for _ in range(settings.rounds):
                for kind, workload in (("kept", BASE), ("fresh", FRESH)):
                    for name, (pid, port) in zip(SERVERS, (handler, alone), strict=True):
                        seen = load(stand, pid, port, workload, settings)
                        found[name][kind].append(seen.cpu_s / seen.requests * 1e6)
    return {name: {kind: spread(of, 1) for kind, of in kinds.items()} for name, kinds in found.items()}


def can_trace() -> bool:
    """Whether strace is here and the system lets it trace."""
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, check=False).returncode == 0


def system_calls(directory: Path, settings: Settings) -> dict[str, float] | None:
    """Return the system calls of a delivery by name; None where strace is missing or may not trace.

    Two runs are traced from start to end and their difference taken, so what a start costs is left out.
    """
    if not can_trace():
        return None
    counts = []
    for deliveries in COUNTED:
        folder = directory / str(deliveries)
        stand, requests = prepared(folder, BASE)
        out = folder / "calls"
        with stand:
            stand.start(wrapper=("strace", "-f", "-c", "-U", "calls,name", "-o", str(out)), **LIMITS)
            assert stand.process is not None
            tracer = stand.process.pid
            load(stand, tracer, stand.port, replace(BASE, connections=1), settings, request=requests[0],
                 requests=deliveries, seconds=120.0)  # fmt: skip
            # The tracer ends, and writes, when what it traces has ended.
            children = Path(f"/proc/{tracer}/task/{tracer}/children").read_text().split()
            os.kill(int(children[0]), 15)
            stand.process.wait(60)
        counts.append(_counted(out.read_text()))
    fewer, more = counts
    each = {name: (number - fewer.get(name, 0)) / (COUNTED[1] - COUNTED[0]) for name, number in more.items()}
    return {name: round(number, 2) for name, number in sorted(each.items(), key=lambda one: -one[1]) if number >= 0.05}


def _counted(table: str) -> dict[str, int]:
    rows = (line.split() for line in table.splitlines())
    return {row[1]: int(row[0]) for row in rows if len(row) == 2 and row[0].isdigit() and row[1] != "total"}


def parts(directory: Path, count: int, *, cold: bool = False) -> dict[str, float]:
    """Return the microseconds of each part alone, the lowest median of three."""
    best: dict[str, float] = {}
    work: list[Callable[[], Mapping[str, float]]] = [
        lambda: sqlite_loops(directory, count, cold=cold),
        lambda: files_loop(directory, count, cold=cold),
        lambda: python_loop(count, cold=cold),
    ]
    if not cold:  # a handshake is arithmetic on a few hundred bytes
        work.append(lambda: handshake_loop(max(20, count // 50)))
    if MEMORY.is_dir():
        work.append(lambda: files_loop(MEMORY, count, " on tmpfs", cold=cold))
    for _ in range(3):
        for measure in work:
            for name, us in measure().items():
                best[name] = min(us, best.get(name, us))
    return {name: round(us, 2) for name, us in best.items()}


def concluded(
    alone: Mapping[str, float], servers: Mapping[str, Mapping[str, Any]], round_trip_us: float | None
) -> list[dict[str, Any]]:
    """Return, for each target, what it allows, the floor, and the best ratio (or rate) that the floor permits."""
    bare_kept, bare_fresh = (servers["bare"][kind]["median"] for kind in ("kept", "fresh"))
    tls_kept, tls_fresh = (servers["TLS alone"][kind]["median"] for kind in ("kept", "fresh"))
    work = alone["credential, select"] + alone["JSON, HMAC and digests"] + alone["one file, checked"]
    sqlite_us = work + alone["audit row, committed"] + alone["BEGIN IMMEDIATE, read, COMMIT"]
    rows = [
        ("SQLite, kept alive", BASE.target, bare_kept, tls_kept + sqlite_us),
        ("SQLite, fresh", FRESH.target, bare_fresh, tls_fresh + sqlite_us),
    ]
    if round_trip_us is not None:
        postgres_us = alone["JSON, HMAC and digests"] + alone["one file, checked"] + ROUND_TRIPS * round_trip_us
        rows.append(("PostgreSQL, kept alive", POSTGRES.target, bare_kept, tls_kept + postgres_us))
    found: list[dict[str, Any]] = [
        {
            "name": name,
            "target": target,
            "allowed_us": round(bare_us / target, 1),
            "floor_us": round(floor_us, 1),
            "best": round(bare_us / floor_us, 3),
            "possible": floor_us <= bare_us / target,
        }
        for name, target, bare_us, floor_us in rows
        if target is not None
    ]
    if (each := alone.get("one file, checked on tmpfs")) is not None:
        shared_out = (tls_kept + sqlite_us - alone["one file, checked"]) / SMALL_FILES.refs
        found.append({
            "name": "files a second a core, 64 refs of 256 B",
            "target": FILES_TARGET,
            "allowed_us": round(1e6 / FILES_TARGET, 2),
            "floor_us": round(each + shared_out, 2),
            "best": round(1e6 / (each + shared_out)),
            "possible": each + shared_out <= 1e6 / FILES_TARGET,
        })  # fmt: skip
    return found


def show(result: dict[str, Any]) -> str:
    """Return the results as tables for people."""
    found = result["floor"]
    cold = found["parts_cold_us"]
    lines = [
        f"{name:40}{us:10.2f} us{f', cold {cold[name]:.2f}' if name in cold else ''}"
        for name, us in found["parts_us"].items()
    ]
    lines += [
        f"{name + ', ' + kind:40}{of['median']:10.2f} us"
        for name, kinds in found["servers_us"].items()
        for kind, of in kinds.items()
    ]
    calls = found["system_calls"]
    lines.append(NO_TRACE if calls is None else f"system calls: {json.dumps(calls)}")
    lines += [
        f"{one['name']:40} target {one['target']:g}: allows {one['allowed_us']:g} us, floor {one['floor_us']:g} us,"
        f" best {one['best']:g}{'' if one['possible'] else ': NOT POSSIBLE'}"
        for one in found["targets"]
    ]
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> int:
    """Measure, write the results, show them."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.floor", description="What a delivery cannot be cheaper than."
    )
    parser.add_argument("--seconds", type=float, default=1.5, help="length of one run of a server (default 1.5)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each server (default 3)")
    parser.add_argument("--count", type=int, default=2000, help="turns of a loop (default 2000)")
    parser.add_argument("--directory", default="/var/tmp", help="where the store is made; a disk (default /var/tmp)")
    parser.add_argument("--output", type=Path, default=RESULTS / "floor.json", help="the results' file")
    asked = parser.parse_args(given)
    settings = Settings(asked.seconds, min(0.4, asked.seconds), asked.rounds, *processors(), False)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=asked.directory) as name:
        directory = Path(name)
        about = result_of(directory, settings)
        alone, servers = parts(directory, asked.count), served(directory / "served", settings)
        cold = parts(directory, asked.count // 4, cold=True)
        try:
            round_trip: float | None = round(postgres_loop(asked.count), 1)
            missed = []
        except CannotRun as why:
            round_trip, missed = None, [f"PostgreSQL was not measured: {why}"]
        missed += [] if can_trace() else [NO_TRACE]
        (directory / "traced").mkdir()
        found = {
            "parts_us": alone,
            "parts_cold_us": cold,
            "servers_us": servers,
            "postgres_round_trip_us": round_trip,
            "round_trips": ROUND_TRIPS,
            "system_calls": system_calls(directory / "traced", settings),
            "targets": [
                one | {"floor_cold_us": other["floor_us"]}
                for one, other in zip(
                    concluded(alone, servers, round_trip), concluded(cold, servers, round_trip), strict=True
                )
            ],
        }
        result = about | {"floor": found, "not_compared": missed}
    store(result, asked.output)
    print(show(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
