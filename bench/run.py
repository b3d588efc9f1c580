"""`make bench` and `make bench-full`: what a delivery costs beside two ceilings, in turns, on this machine.

The figure is the server's processor time a request; the ratio is the ceiling's over the product's, within one round
(see README.md). Servers and client each keep to one processor.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from bench import nginx
from bench.bed import (
    DURABLE,
    RESULTS,
    Settings,
    bare,
    chosen,
    in_memory,
    load,
    more_descriptors,
    pid_of,
    pin,
    processors,
    product,
    result_of,
    rotating,
    store,
)
from bench.report import COUNTS_FROM, Workload, described, show, summary
from bench.workloads import FULL, SHORT
from sidecar.devpostgres import CannotRun
from tests.kit.postgres import Database, Postgres
from tests.kit.stand import Stand

Where = tuple[int, int]
"""A server's process and port."""
NO_NGINX: Final = "nginx is not installed here: nothing was compared with it"


@contextmanager
def ceilings(stand: Stand, length: int, settings: Settings) -> Iterator[dict[str, Where]]:
    """Start the bare handler and, where there is one, nginx, with an answer of that length; yield them by name."""
    with bare(stand, length, settings) as handler, nginx.nginx(stand.environment, length) as worker:
        found = {"bare": handler}
        if worker is not None:
            pin(worker[0], settings.server_cpu)
            found["nginx"] = worker
        yield found


def measure(
    workload: Workload, directory: Path, settings: Settings, database: Database | None = None
) -> dict[str, Any]:
    """Load product and ceilings in turns; who begins changes from round to round."""
    runs = []
    with product(directory, workload, settings, database) as (stand, requests):
        crowded = {"request": requests[0], "others": tuple(requests[1:])}
        with (
            ceilings(stand, len(stand.ask().body), settings) as beside,
            rotating(stand, workload.rotation_ms, settings),
        ):
            servers = {"product": (pid_of(stand), stand.port), **beside}
            order = list(servers)
            for number in range(settings.rounds):
                for server in (*order[number % len(order) :], *order[: number % len(order)]):
                    changed: dict[str, Any] = dict(crowded) if server == "product" else {}
                    if workload.rotation_ms is not None:
                        changed["statuses"] = (200, 503)
                    measured = load(stand, *servers[server], workload, settings, **changed)
                    counts_from = COUNTS_FROM if workload.saturates and server != "nginx" else 0.0
                    runs.append(described(server, number, measured, shared=settings.shared, busy_from=counts_from))
    return summary(workload, runs)


def measured(workloads: Sequence[Workload], directory: Path, settings: Settings) -> dict[str, Any]:
    """Measure them all; a PostgreSQL is started if one of them needs it."""
    found, missed = [], [] if nginx.program() else [NO_NGINX]
    with ExitStack() as stack:
        server: Postgres | None = None
        for number, workload in enumerate(workloads):
            where = directory / str(number)
            print(f"bench: {workload.name} ...", file=sys.stderr, flush=True)
            if workload.store != "postgres":
                found.append(measure(workload, where, settings))
                continue
            try:
                server = server or stack.enter_context(Postgres(settings=DURABLE))
            except CannotRun as why:
                missed.append(f"{workload.name} was not measured: {why}")
                continue
            with server.database() as database:
                found.append(measure(workload, where, settings, database))
    return {"workloads": found, "not_compared": missed}


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.run",
        description="Measure what a delivery costs beside a bare handler and nginx.",
        epilog="example: python -m bench.run --only 'kept alive' --rounds 5",
    )
    parser.add_argument("--full", action="store_true", help="every dimension, not only the workloads with a target")
    parser.add_argument("--seconds", type=float, default=1.5, help="length of one run (default 1.5)")
    parser.add_argument("--warm-up", type=float, default=0.4, help="seconds before it (default 0.4)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each server in a workload (default 3)")
    parser.add_argument("--only", default="", help="workloads whose name holds this text")
    parser.add_argument("--shared", action="store_true", help="other programs are busy here: count every run")
    parser.add_argument("--directory", default="/var/tmp", help="where the stores are made; a disk (default /var/tmp)")
    parser.add_argument("--output", type=Path, help="the results' file (default results/short.json or full.json)")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Measure, write the results, show them. Returns 0, or 64 when the store would not be on a disk."""
    asked = arguments(given)
    settings = Settings(asked.seconds, asked.warm_up, asked.rounds, *processors(), asked.shared)
    more_descriptors()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=asked.directory) as name:
        directory = Path(name)
        if in_memory(directory):
            print("bench: the store must be on a disk; name a directory on one with --directory", file=sys.stderr)
            return 64
        about = result_of(directory, settings)
        before, tempfile.tempdir = tempfile.tempdir, asked.directory
        try:
            found = measured(chosen(FULL if asked.full else SHORT, asked.only), directory, settings)
        finally:
            tempfile.tempdir = before
        result = about | found
    store(result, asked.output or RESULTS / ("full.json" if asked.full else "short.json"))
    print(show(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
