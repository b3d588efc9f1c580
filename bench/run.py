"""`make bench`: what a delivery costs beside a bare handler, in turns, on this machine (see README.md).

The figure is the server's processor time a request, bare / product. Servers and client each keep to one processor.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.load import Measured, Plan
from bench.report import Workload, described, machine, show, summary
from tests.kit.stand import Stand, make_stand, value_of

RESULTS: Final = Path(__file__).parent / "results"
CHECKOUT: Final = Path(__file__).resolve().parents[1]
ADDRESSES: Final = 4
MEMORY_REQUESTS: Final = 10_000
MEMORY_CONNECTIONS: Final = 8
LIMITS: Final = {
    "QL3_WORKER_INGRESS_MAX_IN_FLIGHT": "256",
    "QL3_SECRET_SIDECAR_MAX_IN_FLIGHT_PER_CREDENTIAL": "256",
    "QL3_SECRET_SIDECAR_MAX_CONNECTIONS": "4096",
    "QL3_SECRET_SIDECAR_MAX_CONNECTIONS_PER_ADDRESS": "1024",
}
"""Said explicitly, so that no default decides a figure."""


WORKLOADS: Final = (
    Workload("1 ref, kept alive", 1, 100, target=0.25),
    Workload("16 refs, kept alive", 16, 100),
    Workload("1 ref, fresh connections", 1, 1, target=0.90),
    Workload("16 refs, fresh connections", 16, 1),
)
MEMORY_TARGET_KIB: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Settings:
    """How long and how often, and on which processors."""

    seconds: float
    warm_up_s: float
    rounds: int
    server_cpu: int | None
    client_cpu: int | None
    shared: bool
    """Other programs use this machine: the time in which the server was kept waiting counts as busy."""


def processors() -> tuple[int | None, int | None]:
    """Return one processor for the servers and another for the client; none of either on a machine with one."""
    usable = sorted(os.sched_getaffinity(0))
    return (usable[0], usable[1]) if len(usable) > 1 else (None, None)


@contextmanager
def product(directory: Path, refs: int, settings: Settings) -> Iterator[Stand]:
    """A sidecar on a store on disk, with a root in the linked layout, as Kubernetes mounts it."""
    with make_stand(directory, refs=refs) as stand:
        for path in stand.root.iterdir():
            path.unlink()
        stand.link({ref: value_of(number) for number, ref in enumerate(stand.world.refs)})
        stand.start(**LIMITS)
        assert stand.process is not None
        pin(stand.process.pid, settings.server_cpu)
        yield stand


@contextmanager
def bare(stand: Stand, length: int, settings: Settings) -> Iterator[tuple[int, int]]:
    """Start the bare handler with the stand's identity; yield its process and port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.bare", stand.world.target, str(length)],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env=stand.environment,
        cwd=CHECKOUT,
    )
    try:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["port"]
        pin(process.pid, settings.server_cpu)
        yield process.pid, port
    finally:
        process.kill()
        process.communicate()


def pin(pid: int, cpu: int | None) -> None:
    """Keep every thread of a process to one processor."""
    if cpu is not None:
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {cpu})


def load(stand: Stand, pid: int, port: int, workload: Workload, settings: Settings, **changed: Any) -> Measured:
    """Run the load client in a process of its own. Raises RuntimeError, with what it said, when it fails."""
    stand.pki.client_context(stand.pki.client, stand.directory)  # writes the pair's file
    plan = Plan(
        pid=pid,
        port=port,
        ca=stand.pki.root.pem.decode(),
        pair=str(stand.directory / f"{stand.pki.client.serial:x}.pem"),
        request=stand.request().decode("ascii"),
        connections=workload.connections,
        requests_per_connection=workload.requests_per_connection,
        addresses=ADDRESSES,
        cpu=settings.client_cpu,
        warm_up_s=settings.warm_up_s,
        seconds=settings.seconds,
    )
    done = subprocess.run(
        [sys.executable, "-m", "bench.load"],
        input=json.dumps(dataclasses.asdict(dataclasses.replace(plan, **changed))),
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the load client failed: {done.stderr.strip().splitlines()[-1:]}")
    return Measured(**json.loads(done.stdout))


def measure(workload: Workload, directory: Path, settings: Settings) -> dict[str, Any]:
    """Load product and bare handler in turns; who begins alternates."""
    runs = []
    with product(directory, workload.refs, settings) as stand:
        assert stand.process is not None
        length = len(stand.ask().body)
        with bare(stand, length, settings) as (pid, port):
            servers = [("product", stand.process.pid, stand.port), ("bare", pid, port)]
            for number in range(settings.rounds):
                for server, of, at in servers if number % 2 == 0 else reversed(servers):
                    measured = load(stand, of, at, workload, settings)
                    runs.append(described(server, number, measured, shared=settings.shared))
    return summary(workload, runs)


def memory(directory: Path, settings: Settings) -> dict[str, Any]:
    """Return the resident memory of a sidecar of its own after 10,000 deliveries."""
    workload = dataclasses.replace(WORKLOADS[0], connections=MEMORY_CONNECTIONS)
    with product(directory, workload.refs, settings) as stand:
        assert stand.process is not None
        pid = stand.process.pid
        before = _resident(pid)["VmRSS"]
        measured = load(
            stand, pid, stand.port, workload, settings, requests=MEMORY_REQUESTS, seconds=120.0
        )  # fmt: skip
        after = _resident(pid)
    return {
        "deliveries": measured.requests,
        "connections": workload.connections,
        "resident_kib_at_start": before,
        "resident_kib": after["VmRSS"],
        "peak_kib": after["VmHWM"],
        "target_kib": MEMORY_TARGET_KIB,
        "reached": after["VmRSS"] <= MEMORY_TARGET_KIB,
    }


def _resident(pid: int) -> dict[str, int]:
    lines = (line.partition(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: int(value.split()[0]) for name, _, value in lines if name in ("VmRSS", "VmHWM")}


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.run",
        description="Measure what a delivery costs beside a bare handler.",
        epilog="example: python -m bench.run --only 'kept alive' --rounds 5",
    )
    parser.add_argument("--seconds", type=float, default=1.5, help="length of one run (default 1.5)")
    parser.add_argument("--warm-up", type=float, default=0.4, help="seconds before it (default 0.4)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each server in a workload (default 3)")
    parser.add_argument("--only", default="", help="workloads whose name holds this text")
    parser.add_argument("--no-memory", action="store_true", help="leave resident memory out")
    parser.add_argument("--shared", action="store_true", help="other programs are busy here: count time kept waiting")
    parser.add_argument("--directory", default="/var/tmp", help="where the store is made; a disk (default /var/tmp)")
    parser.add_argument("--output", type=Path, default=RESULTS / "short.json", help="the results' file")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Measure, write the results, show them. Returns 0, or 64 when the store would not be on a disk."""
    asked = arguments(given)
    server_cpu, client_cpu = processors()
    settings = Settings(asked.seconds, asked.warm_up, asked.rounds, server_cpu, client_cpu, asked.shared)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=asked.directory) as name:
        directory = Path(name)
        about = machine(directory)
        if about["file_system"] in ("tmpfs", "ramfs"):
            print("bench: the store must be on a disk; name a directory on one with --directory", file=sys.stderr)
            return 64
        chosen = [workload for workload in WORKLOADS if asked.only in workload.name]
        result: dict[str, Any] = {
            "format": 1,
            "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": about,
            "settings": dataclasses.asdict(settings),
            "workloads": [
                measure(workload, directory / str(number), settings) for number, workload in enumerate(chosen)
            ],
        }
        if not asked.no_memory:
            result["memory"] = memory(directory / "memory", settings)
    asked.output.write_text(json.dumps(result, indent=1) + "\n")
    print(show(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
