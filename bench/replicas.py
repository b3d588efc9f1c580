"""`python -m bench.replicas`: one and two sidecars on one PostgreSQL, all on this machine.

What grows with a replica is the database's work and its sessions; the figure of each is processor time a delivery,
which does not depend on how many share the processors. Throughput on one machine shows only that nothing waits.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench.bed import DURABLE, LIMITS, RESULTS, Settings, ended, pid_of, planned, product, result_of, started, store
from bench.plan import processor_time
from bench.report import spread
from bench.workloads import POSTGRES
from sidecar.devpostgres import CannotRun
from tests.kit.environments import POOL
from tests.kit.postgres import Database, Postgres
from tests.kit.stand import Stand

REPLICAS: Final = (1, 2)
SESSIONS: Final = 4
"""Of each replica: the default of the variable."""
CONNECTIONS: Final = 8
"""Of each replica's load."""


def family_time(pid: int) -> float:
    """Return the processor time of a process, its living descendants, and those that it has waited for."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    waited_for = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
    return processor_time(pid)[0] + waited_for + sum(family_time(int(child)) for child in children)


def postmaster(server: Postgres) -> int:
    """Return the process of the database server."""
    return int((server.data / "postmaster.pid").read_text().split("\n", 1)[0])


def run(directory: Path, server: Postgres, database: Database, replicas: int, settings: Settings) -> dict[str, Any]:
    """Load so many replicas at once, each by a client of its own; return what a delivery cost whom."""
    workload = replace(POSTGRES, pool=SESSIONS, connections=CONNECTIONS)
    variables = LIMITS | {f"{POOL}MAX_CONNECTIONS": str(SESSIONS)}
    with ExitStack() as stack:
        first, requests = stack.enter_context(product(directory, workload, settings, database))
        stands = [first]
        for number in range(1, replicas):
            own = directory / f"replica-{number}"
            own.mkdir()
            environment = first.environment | {"QL3_CLUSTER_REPLICA_ID": own.name}
            stands.append(stack.enter_context(Stand(own, first.world, first.pki, first.root, environment)))
            stands[-1].start(**variables)
        before = family_time(postmaster(server))
        crowded = {"request": requests[0], "others": tuple(requests[1:])}
        clients = [
            started(planned(stand, pid_of(stand), stand.port, workload, settings, **crowded)) for stand in stands
        ]
        seen = [ended(client) for client in clients]
        database_s = family_time(postmaster(server)) - before
    deliveries = sum(one.requests for one in seen)
    # The database is seen from before the warm-up until after the end, the sidecars within the window.
    whole = deliveries * (settings.seconds + settings.warm_up_s) / settings.seconds
    return {
        "replicas": replicas,
        "requests": deliveries,
        "per_second": round(sum(one.requests / one.seconds for one in seen), 1),
        "sidecar_us": round(sum(one.cpu_s for one in seen) / deliveries * 1e6, 1),
        "database_us": round(database_s / whole * 1e6, 1),
        "p50_ms": round(max(one.p50_s for one in seen) * 1000, 3),
        "p99_ms": round(max(one.p99_s for one in seen) * 1000, 3),
        "sessions": replicas * SESSIONS,
    }


def measure(directory: Path, settings: Settings) -> list[dict[str, Any]]:
    """Measure one and two replicas in turns."""
    runs = []
    with Postgres(settings=DURABLE) as server:
        for number in range(settings.rounds):
            for replicas in REPLICAS if number % 2 == 0 else reversed(REPLICAS):
                with server.database() as database:
                    where = directory / f"{number}-{replicas}"
                    runs.append({"round": number} | run(where, server, database, replicas, settings))
    return runs


def summarised(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return median, lowest and highest of each figure for each number of replicas."""
    digits = {"per_second": 1, "sidecar_us": 1, "database_us": 1, "p50_ms": 3, "p99_ms": 3, "sessions": 0}
    return {
        str(replicas): {
            key: spread([one[key] for one in runs if one["replicas"] == replicas], places)
            for key, places in digits.items()
        }
        for replicas in REPLICAS
    }


def main(given: Sequence[str] | None = None) -> int:
    """Measure, write the results, show them. Returns 69 where no PostgreSQL can run."""
    parser = argparse.ArgumentParser(prog="python -m bench.replicas", description="One and two replicas on PostgreSQL.")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one run (default 3)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (default 3)")
    parser.add_argument("--shared", action="store_true", help="other programs are busy here")
    parser.add_argument("--directory", default="/var/tmp", help="where the server writes; a disk (default /var/tmp)")
    parser.add_argument("--output", type=Path, default=RESULTS / "replicas.json", help="the results' file")
    asked = parser.parse_args(given)
    # Nobody keeps to a processor: with two replicas, a database and two clients each would wait for the others.
    settings = Settings(asked.seconds, 0.5, asked.rounds, None, None, asked.shared)
    before, tempfile.tempdir = tempfile.tempdir, asked.directory
    try:
        with tempfile.TemporaryDirectory(prefix="bench-") as name:
            about = result_of(Path(name), settings)
            runs = measure(Path(name), settings)
            result = about | {"replicas": summarised(runs), "runs": runs}
    except CannotRun as why:
        print(f"bench: nothing was measured: {why}", file=sys.stderr)
        return 69
    finally:
        tempfile.tempdir = before
    store(result, asked.output)
    for replicas, found in result["replicas"].items():
        print(f"{replicas} replicas: " + ", ".join(f"{key} {of['median']:g}" for key, of in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
