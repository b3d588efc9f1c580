"""`python -m bench.footprint`: what a sidecar takes: memory, cold and warm, start to ready, size of what is installed.

The sidecar runs from a clean prefix of exactly the locked packages, as in the image. Run as root it is in a memory
cgroup of its own, whose peak is what a cluster sees: it counts the page cache too, so cold what is read of interpreter
and prefix, and with SQLite the store's own pages, which the kernel takes back when it needs them. Takes two minutes;
memory hardly depends on load, start to ready does.
"""

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.bed import RESULTS, Settings, load, pid_of, prepared, result_of, store
from bench.workloads import BASE
from sidecar.devpostgres import CannotRun
from tests.evidence import prefix
from tests.evidence.limits import Limit, limited
from tests.kit.postgres import Database, Postgres
from tests.kit.stand import Stand, Wire

DELIVERIES: Final = 10_000
CONNECTIONS: Final = 8
IDLE: Final = 50
STARTS: Final = 5
TEMPERATURES: Final = ("cold", "warm")
"""Whether the files of interpreter and prefix are in the page cache before the start; if not, they count too."""
REFERENCE_BYTES: Final = 42_033_152
"""What QL3's own ingress is published to take: another runtime, architecture and kernel."""
TARGETS: Final = {"resident_bytes": 56 << 20, "start_to_ready_s": 0.5}
_JOIN: Final = 'while [ "$1" != -- ]; do echo 0 >"$1"; shift; done; shift; exec "$@"'


def memory(pid: int, limits: Iterable[Limit]) -> dict[str, Any]:
    """Return what the process has resident, its peak, and the peak of its group; None where no group tells one."""
    names = {"VmHWM": "peak_bytes", "VmRSS": "resident_bytes", "RssAnon": "anonymous_bytes", "RssFile": "file_bytes"}
    lines = (line.partition(":") for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines())
    seen: dict[str, Any] = {names[key]: int(text.split()[0]) << 10 for key, _, text in lines if key in names}
    peaks = [limit.peak() for limit in limits if limit.controller == "memory"]
    return seen | {"group_peak_bytes": peaks[0] if peaks else None}


def evict(folders: Iterable[Path]) -> None:
    """Have the kernel forget the files in these folders, except what others have mapped."""
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(descriptor)


def start(stand: Stand, made: Path, limits: Iterable[Limit]) -> float:
    """Start the sidecar from the prefix, in these groups; return the seconds until it said that it was ready."""
    groups = [limit.procs for limit in limits]
    wrapper = ["sh", "-c", _JOIN, "sh", *groups, "--"] if groups else []
    begin = time.monotonic()
    stand.start(wrapper=wrapper, python=str(made / "bin" / "python"), program=("-I", "-m", "sidecar", "serve"))
    return round(time.monotonic() - begin, 3)


def taken(
    directory: Path, made: Path, temperature: str, deliveries: int, database: Database | None = None
) -> dict[str, Any]:
    """Start, deliver so often, then hold idle connections; what is taken at each point."""
    workload = replace(BASE, connections=CONNECTIONS)
    stand, requests = prepared(directory, workload, database)
    if temperature == "cold":
        evict([made, prefix.BASE / "lib"])
    with limited(f"footprint-{temperature}") as (limits, refused), stand:
        ready_s = start(stand, made, limits)
        pid = pid_of(stand)
        ready = memory(pid, limits)
        load(
            stand, pid, stand.port, workload, Settings(0.0, 0.0, 1, None, None, True),
            request=requests[0], others=tuple(requests[1:]), requests=deliveries, seconds=600.0,
        )  # fmt: skip
        after = memory(pid, limits)
        wires = [idle(stand) for _ in range(IDLE)]
        crowded = memory(pid, limits)
        for wire in wires:
            wire.close()
        told = [(limit.version, limit.peak_file) for limit in limits if limit.controller == "memory"]
        stand.stop()
    return {
        "start_to_ready_s": ready_s,
        "at_ready": ready,
        "after_deliveries": after,
        "idle_connection_bytes": (crowded["resident_bytes"] - after["resident_bytes"]) // IDLE,
        "group": {"version": told[0][0], "file": told[0][1]} if told else {"refused": refused},
    }


def idle(stand: Stand) -> Wire:
    """Open a connection that has made a request and waits."""
    wire = stand.wire()
    wire.send(stand.request())
    wire.answer()
    return wire


def measure(directory: Path, deliveries: int, starts: int) -> dict[str, Any]:
    """Take everything."""
    made = directory / "prefix"
    prefix.make(made)
    packages = sorted(prefix.packages(made).iterdir(), key=prefix.size, reverse=True)
    found: dict[str, Any] = {
        "deliveries": deliveries,
        "connections": CONNECTIONS,
        "reference_bytes": REFERENCE_BYTES,
        "targets": TARGETS,
        "prefix_bytes": prefix.size(made),
        "largest_bytes": {path.name: prefix.size(path) for path in packages[:6]},
        "sqlite": {},
        "postgres": {},
    }
    for temperature in TEMPERATURES:
        found["sqlite"][temperature] = taken(directory / temperature, made, temperature, deliveries)
    try:
        with Postgres() as server:
            for temperature in TEMPERATURES:
                where = directory / f"postgres-{temperature}"
                with server.database() as database:
                    found["postgres"][temperature] = taken(where, made, temperature, deliveries, database)
    except CannotRun as why:
        found["postgres"] = {"refused": str(why)}
    times = []
    for number in range(starts):
        stand, _ = prepared(directory / f"start-{number}", BASE)
        with stand:
            times.append(start(stand, made, ()))
            stand.stop()
    found["start_to_ready_s"] = {"median": median(times), "lowest": min(times), "highest": max(times)}
    return found


def main(given: Sequence[str] | None = None) -> int:
    """Measure, write the results, show them."""
    parser = argparse.ArgumentParser(prog="python -m bench.footprint", description="What a sidecar takes.")
    parser.add_argument("--deliveries", type=int, default=DELIVERIES, help="how many (default 10000)")
    parser.add_argument("--starts", type=int, default=STARTS, help="how many starts are timed (default 5)")
    parser.add_argument("--directory", default="/var/tmp", help="where all is made; a disk (default /var/tmp)")
    parser.add_argument("--output", type=Path, default=RESULTS / "footprint.json", help="the results' file")
    asked = parser.parse_args(given)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=asked.directory) as name:
        found = measure(Path(name), asked.deliveries, asked.starts)
        result = result_of(Path(name), Settings(0.0, 0.0, 1, None, None, True), footprint=found)
    store(result, asked.output)
    print(shown(found))
    return 0


def shown(found: dict[str, Any]) -> str:
    """Return the figures as lines."""
    head = f"{'':<18}{'ready s':>8}{'resident':>10}{'peak':>8}{'group peak':>12}"
    lines = [f"{head}   MiB after {found['deliveries']} deliveries"]
    for name, temperature in itertools.product(("sqlite", "postgres"), TEMPERATURES):
        row = found[name].get(temperature)
        if row is not None:
            after = row["after_deliveries"]
            cells = [after["resident_bytes"], after["peak_bytes"], after["group_peak_bytes"]]
            resident, peak, group = ("-" if cell is None else f"{cell / (1 << 20):.1f}" for cell in cells)
            ready_s = row["start_to_ready_s"]
            lines.append(f"{f'{name}, {temperature}':<18}{ready_s:>8.2f}{resident:>10}{peak:>8}{group:>12}")
    ready = found["start_to_ready_s"]
    lines.append(f"start to ready {ready['median']:.2f} s ({ready['lowest']:.2f} to {ready['highest']:.2f})")
    lines.append(f"an idle connection takes {found['sqlite']['warm']['idle_connection_bytes'] / 1024:.0f} KiB")
    lines.append(f"the prefix has {found['prefix_bytes'] / (1 << 20):.1f} MiB")
    lines.append(f"reference {REFERENCE_BYTES / (1 << 20):.1f} MiB (another runtime, architecture and kernel)")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
