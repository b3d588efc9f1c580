"""What every benchmark stands on: the servers, each on one processor, and the client on another."""

import dataclasses
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.crowd import crowd
from bench.plan import Measured, Plan
from bench.report import Workload, machine
from tests.kit.canary import VALUE
from tests.kit.environments import POOL
from tests.kit.postgres import Database, make_postgres_stand
from tests.kit.stand import Stand, make_stand

RESULTS: Final = Path(__file__).parent / "results"
CHECKOUT: Final = Path(__file__).resolve().parents[1]
ADDRESSES: Final = 4
CREDENTIALS: Final = 16
MEMORY: Final = Path("/dev/shm")
DURABLE: Final = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}
"""A PostgreSQL of a test puts its writes off; one that is measured does not."""
LIMITS: Final = {
    "QL3_WORKER_INGRESS_MAX_IN_FLIGHT": "256",
    "QL3_SECRET_SIDECAR_MAX_IN_FLIGHT_PER_CREDENTIAL": "256",
    "QL3_SECRET_SIDECAR_MAX_CONNECTIONS": "4096",
    "QL3_SECRET_SIDECAR_MAX_CONNECTIONS_PER_ADDRESS": "1024",
}
"""Said explicitly, so that no default decides a figure."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How long and how often, and on which processors."""

    seconds: float
    warm_up_s: float
    rounds: int
    server_cpu: int | None
    client_cpu: int | None
    shared: bool
    """Other programs use this machine: runs count however busy the server was, and the result is worth less."""


def processors() -> tuple[int | None, int | None]:
    """Return one processor for the servers and another for the client; none of either on a machine with one."""
    usable = sorted(os.sched_getaffinity(0))
    return (usable[0], usable[1]) if len(usable) > 1 else (None, None)


def more_descriptors() -> None:
    """Allow this process, and what it starts, as many descriptors as the system lets it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def prepared(directory: Path, workload: Workload, database: Database | None = None) -> tuple[Stand, list[str]]:
    """Return a stand with a root in the linked layout, as Kubernetes mounts it, and requests of several credentials."""
    if database is not None:
        stand = make_postgres_stand(directory, database, refs=workload.refs)
    else:
        stand = make_stand(directory, refs=workload.refs, receipts=workload.receipts)
    if workload.root_in_memory:
        stand.root = MEMORY / f"bench-{os.getpid()}-{directory.name}"
        stand.root.mkdir(mode=0o755)
        stand.environment["QL3_WORKER_SECRET_ROOT_DIRECTORY"] = str(stand.root)
    for path in stand.root.iterdir():
        path.unlink()
    # The canary stands in every value: whatever a bench prints or stores can be searched for it.
    values = {ref: VALUE.encode().ljust(workload.value_bytes, b".") for ref in stand.world.refs}
    stand.link({ref: value[: workload.value_bytes] for ref, value in values.items()})
    return stand, crowd(stand, min(CREDENTIALS, workload.connections))


@contextmanager
def product(
    directory: Path,
    workload: Workload,
    settings: Settings,
    database: Database | None = None,
    variables: Mapping[str, str] = {},
) -> Iterator[tuple[Stand, list[str]]]:
    """A sidecar on a store on disk (or in the database), and requests of several credentials."""
    stand, requests = prepared(directory, workload, database)
    receipts = {"QL3_SECRET_SIDECAR_RECEIPTS": "on"} if workload.receipts else {}
    pool = {f"{POOL}MAX_CONNECTIONS": str(workload.pool)} if database is not None and workload.pool else {}
    try:
        with stand:
            stand.start(**(LIMITS | receipts | pool | dict(variables)))
            pin(pid_of(stand), settings.server_cpu)
            yield stand, requests
    finally:
        if workload.root_in_memory:
            subprocess.run(["rm", "-r", "--", str(stand.root)], check=True)


@contextmanager
def bare(stand: Stand, length: int, settings: Settings, program: str = "bench.bare") -> Iterator[tuple[int, int]]:
    """Start the bare handler (or another floor) with the stand's identity; yield its process and port."""
    process = subprocess.Popen(
        [sys.executable, "-m", program, stand.world.target, str(length)],
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


@contextmanager
def rotating(stand: Stand, every_ms: int | None, settings: Settings) -> Iterator[None]:
    """Publish a new generation of the stand's root so often while the block runs; nothing for None."""
    if every_ms is None:
        yield
        return
    names = [ref.file_name for ref in stand.world.refs]
    command = [sys.executable, "-m", "tests.kit.projector", str(stand.root), str(1000 / every_ms), *names]
    with subprocess.Popen(command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as projector:
        pin(projector.pid, settings.client_cpu)
        try:
            yield
        finally:
            projector.communicate(b"\n", timeout=30)


def pid_of(stand: Stand) -> int:
    """Return the process of a stand that was started."""
    assert stand.process is not None
    return stand.process.pid


def pin(pid: int, cpu: int | None) -> None:
    """Keep every thread of a process to one processor."""
    if cpu is not None:
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {cpu})


def planned(stand: Stand, pid: int, port: int, workload: Workload, settings: Settings, **changed: Any) -> Plan:
    """Return the plan of a run, with these fields of it changed."""
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
        idle=workload.idle,
    )
    return dataclasses.replace(plan, **changed)


def started(plan: Plan) -> "subprocess.Popen[str]":
    """Start the load client in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.load"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=CHECKOUT,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(dataclasses.asdict(plan)))
    process.stdin.close()
    process.stdin = None
    return process


def ended(process: "subprocess.Popen[str]") -> Measured:
    """Wait for the load client. Raises RuntimeError, with what it said, when it fails."""
    output, errors = process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"the load client failed: {errors.strip().splitlines()[-1:]}")
    return Measured(**json.loads(output))


def load(stand: Stand, pid: int, port: int, workload: Workload, settings: Settings, **changed: Any) -> Measured:
    """Run the load client to its end. Raises RuntimeError, with what it said, when it fails."""
    return ended(started(planned(stand, pid, port, workload, settings, **changed)))


def resident_kib(pid: int) -> dict[str, int]:
    """Return the resident memory of a process and its highest so far, in KiB."""
    lines = (line.partition(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: int(value.split()[0]) for name, _, value in lines if name in ("VmRSS", "VmHWM")}


def result_of(directory: Path, settings: Settings, **found: Any) -> dict[str, Any]:
    """Return a result: when, on what, with which settings, and what was found.

    Called before anything is measured where the load of that moment is to be told.
    """
    return {
        "format": 2,
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(directory),
        "settings": dataclasses.asdict(settings),
        **found,
    }


def store(result: dict[str, Any], path: Path) -> None:
    """Write a result."""
    path.write_text(json.dumps(result, indent=1) + "\n")


def in_memory(directory: Path) -> bool:
    """Whether a directory is in memory, where audit rows cost less than on a disk."""
    return machine(directory)["file_system"] in ("tmpfs", "ramfs")


def chosen(names: Sequence[Workload], text: str) -> list[Workload]:
    """Return the workloads whose name holds that text."""
    return [workload for workload in names if text in workload.name]
