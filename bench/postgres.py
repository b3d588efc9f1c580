"""`python -m bench.postgres`: what a delivery costs with PostgreSQL on the same machine, beside the bare handler.

Each connection of the load has an attempt and a credential of its own, so that none waits for another's lock. Besides,
the time of each round trip, and what the idle sessions of more replicas cost. The server writes to a disk, for good.
"""

import argparse
import asyncio
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.bed import DURABLE, LIMITS, RESULTS, Settings, bare, load, pin, processors
from bench.crowd import crowd
from bench.report import Workload, described, machine, summary
from provider.authority import commit, verify
from provider.credential import authenticate, present
from provider.ports import AuditRecord
from sidecar.stores.postgres import PostgresStore
from tests.kit.environments import POOL
from tests.kit.postgres import Database, Postgres, make_postgres_stand
from tests.kit.postgres_bed import PostgresBed, login, open_every_session
from tests.kit.stand import Stand
from tests.kit.world import CREDENTIAL_ID

CONNECTIONS: Final = 32
TARGET: Final = 0.15
POOLS: Final = (4, 8)
REPLICAS: Final = (1, 4, 16)


@contextmanager
def product(directory: Path, database: Database, pool: int, settings: Settings) -> Iterator[tuple[Stand, list[str]]]:
    """A sidecar with a pool of that size, and a request of each connection."""
    with make_postgres_stand(directory, database, refs=1) as stand:
        requests = crowd(stand, CONNECTIONS)
        stand.start(**LIMITS, **{f"{POOL}MAX_CONNECTIONS": str(pool)})
        assert stand.process is not None
        pin(stand.process.pid, settings.server_cpu)
        yield stand, requests


def measure(directory: Path, server: Postgres, pool: int, settings: Settings) -> dict[str, Any]:
    """Load product and bare handler in turns, then the product with half of what it came to, for its p99."""
    workload = Workload(f"1 ref, kept alive, pool {pool}", 1, 100, TARGET, CONNECTIONS)
    runs = []
    with server.database() as database, product(directory, database, pool, settings) as (stand, requests):
        assert stand.process is not None
        crowded = {"request": requests[0], "others": tuple(requests[1:])}
        with bare(stand, len(stand.ask().body), settings) as (pid, port):
            for number in range(settings.rounds):
                for name in ("product", "bare") if number % 2 == 0 else ("bare", "product"):
                    of, at, what = (stand.process.pid, stand.port, crowded) if name == "product" else (pid, port, {})
                    seen = load(stand, of, at, workload, settings, **what)
                    runs.append(described(name, number, seen, shared=settings.shared))
        most = statistics.median(run["per_second"] for run in runs if run["server"] == "product")
        half = crowded | {"rate": most / 2, "seconds": 2 * settings.seconds}
        seen = load(stand, stand.process.pid, stand.port, workload, settings, **half)
    at_half = {"asked_per_second": round(most / 2, 1), **described("product", 0, seen, shared=True)}
    return {**summary(workload, runs), "half_load": at_half}


async def _one(bed: PostgresBed, steps: dict[str, list[float]]) -> None:
    world, store = bed.world, bed.store
    at = time.perf_counter()

    def tick(name: str) -> None:
        nonlocal at
        now = time.perf_counter()
        steps.setdefault(name, []).append(now - at)
        at = time.perf_counter()

    row, now_ms = await store.newest(CREDENTIAL_ID)
    tick("credential")
    principal = authenticate(present(f"Worker {world.token}".encode()), world.worker_id, row, now_ms, world.peppers)
    at = time.perf_counter()
    await store.record(AuditRecord("request", "allowed", principal))
    tick("audit row")
    deadline = asyncio.get_running_loop().time() + 15
    async with store.hold(principal, world.command(), deadline, slow_material=False) as hold:
        tick("begin, lock and read")
        authority = verify(principal, world.session_id, world.command(), hold)
        at = time.perf_counter()
        await commit(hold, authority, ())
        tick("COMMIT")


def round_trips(server: Postgres, replicas: int, count: int) -> dict[str, float]:
    """Return the median ms of each step of a delivery, while other replicas hold their sessions open."""

    async def main(bed: PostgresBed, others: list[PostgresStore]) -> dict[str, list[float]]:
        steps: dict[str, list[float]] = {}
        for store in (bed.store, *others):
            await store.open()
        for store in others:
            await open_every_session(store)
        for _ in range(count):
            await _one(bed, steps)
        for store in (bed.store, *others):
            store.close()
        return steps

    with server.database() as database:
        bed = PostgresBed(database, receipts=False)
        others = [
            PostgresStore(login(database), receipts=False, on_fault=lambda _: None, on_wrong=lambda _: None)
            for _ in range(replicas - 1)
        ]
        steps = asyncio.run(main(bed, others))
    return {name: round(statistics.median(took) * 1000, 3) for name, took in steps.items()}


def show(result: dict[str, Any]) -> str:
    """Return the results as a table for people."""
    lines = []
    for one in result["workloads"]:
        if one["ratio"] is None:
            lines.append(f"{one['name']}: no round counts")
            continue
        cpu, ratio = one["cpu_us"], one["ratio"]
        lines.append(
            f"{one['name']}: product {cpu['product']['median']:.0f} us, bare {cpu['bare']['median']:.0f} us, ratio"
            f" {ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f}), target {one['target']},"
            f" {one['per_second']['product']['median']:.0f} a second; at half of that p50"
            f" {one['half_load']['p50_ms']:.1f} ms, p99 {one['half_load']['p99_ms']:.1f} ms"
        )
    lines += [f"{replicas} replicas, ms: {steps}" for replicas, steps in result["round_trips_ms"].items()]
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> int:
    """Measure, write the results, show them."""
    parser = argparse.ArgumentParser(prog="python -m bench.postgres", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=1.5, help="length of one run (default 1.5)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each server in a workload (default 3)")
    parser.add_argument("--count", type=int, default=500, help="deliveries of which each step is timed (default 500)")
    parser.add_argument("--shared", action="store_true", help="other programs are busy here: count every run")
    parser.add_argument("--directory", default="/var/tmp", help="where the server writes; a disk (default /var/tmp)")
    parser.add_argument("--output", type=Path, default=RESULTS / "postgres.json", help="the results' file")
    asked = parser.parse_args(given)
    settings = Settings(asked.seconds, 0.4, asked.rounds, *processors(), asked.shared)
    tempfile.tempdir = asked.directory
    with tempfile.TemporaryDirectory(prefix="bench-") as name, Postgres(settings=DURABLE) as server:
        result = {
            "format": 1,
            "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": machine(Path(name)),
            "settings": dataclasses.asdict(settings),
            "workloads": [measure(Path(name) / str(pool), server, pool, settings) for pool in POOLS],
            "round_trips_ms": {str(replicas): round_trips(server, replicas, asked.count) for replicas in REPLICAS},
        }
    tempfile.tempdir = None
    asked.output.write_text(json.dumps(result, indent=1) + "\n")
    print(show(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
