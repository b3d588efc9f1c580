"""`python -m bench.worker`: fetches a second of the client beside aiohttp's, and what `exec` adds to a start.

The clients fetch from the bare handler, which answers what the contract has a sidecar answer, so that the server is the
same and cheap. `exec` fetches from a real sidecar. Server and client each keep to one processor.
"""

import argparse
import asyncio
import dataclasses
import json
import os
import resource
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from bench.bed import CHECKOUT, RESULTS, processors
from bench.report import machine
from sidecar.client import BlockingClient, Client, Offer
from tests.kit.commands import exec_argv
from tests.kit.scripted import body
from tests.kit.stand import Stand, make_stand, value_of
from tests.kit.worker import WorkerFiles, write_worker

MODES: Final = ("fd", "env", "stdin", "files")
SIDE_BY_SIDE: Final = 8
"""Fetches on their way at once; the blocking client has one."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What one client came to in one run."""

    client: str
    per_second: float
    client_cpu_us: float
    """Processor time of the client's process for a fetch."""


@contextmanager
def bare(stand: Stand) -> Iterator[int]:
    """Start the bare handler with the contract's answer to the stand's offer; yield its port."""
    content = stand.directory / "content"
    values: dict[str, bytes | str] = {ref.text: value_of(number) for number, ref in enumerate(stand.world.refs)}
    content.write_bytes(body(stand.world.offer, values))
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.bare", stand.world.target, "0", "--content", str(content)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=stand.environment,
        cwd=CHECKOUT,
    )
    try:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["port"]
        server_cpu, _ = processors()
        if server_cpu is not None:
            os.sched_setaffinity(process.pid, {server_cpu})
        yield port
    finally:
        process.kill()
        process.communicate()


def blocking(files: WorkerFiles, port: int, count: int) -> None:
    """Fetch one after the other."""
    offer = Offer.read(str(files.offer))
    with BlockingClient(f"https://localhost:{port}", **files.identity()) as client:
        for _ in range(count):
            with client.fetch(offer) as secrets:
                assert secrets


async def _side_by_side(fetch: Callable[[], Awaitable[None]], count: int) -> None:
    left = iter(range(count))

    async def one() -> None:
        for _ in left:
            await fetch()

    await asyncio.gather(*(one() for _ in range(SIDE_BY_SIDE)))


async def ours(files: WorkerFiles, port: int, count: int) -> None:
    """Fetch with our client, eight at once."""
    offer = Offer.read(str(files.offer))
    async with Client(f"https://localhost:{port}", **files.identity()) as client:

        async def fetch() -> None:
            async with client.fetch(offer) as secrets:
                assert secrets

        await _side_by_side(fetch, count)


async def theirs(files: WorkerFiles, port: int, count: int) -> None:
    """Fetch with aiohttp's client as one usually would, eight at once: nothing is checked and nothing is wiped."""
    offer = Offer.read(str(files.offer))
    context = ssl.create_default_context(cafile=str(files.ca))
    context.load_cert_chain(files.cert, files.key)
    headers = {
        "authorization": f"Worker {files.credential.read_text().strip()}",
        "content-type": "application/json",
    }
    connector = aiohttp.TCPConnector(ssl=context, limit=SIDE_BY_SIDE)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

        async def fetch() -> None:
            async with session.post(f"https://localhost:{port}{offer.target}", data=offer.body) as answer:
                assert (await answer.json())["values"]

        await _side_by_side(fetch, count)


CLIENTS: Final[dict[str, Callable[[WorkerFiles, int, int], None]]] = {
    "client, blocking, 1": blocking,
    "client, 8": lambda *given: asyncio.run(ours(*given)),
    "aiohttp's client, 8": lambda *given: asyncio.run(theirs(*given)),
}


def rates(stand: Stand, files: WorkerFiles, count: int, rounds: int) -> list[Rate]:
    """Let each client fetch so often, in turns."""
    found = []
    with bare(stand) as port:
        for _ in range(rounds):
            for name, run in CLIENTS.items():
                began, used = time.perf_counter(), time.process_time()
                run(files, port, count)
                seconds, cpu = time.perf_counter() - began, time.process_time() - used
                found.append(Rate(name, round(count / seconds, 1), round(cpu / count * 1e6, 1)))
    return found


def starts(stand: Stand, files: WorkerFiles, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return ms from start to end of `true`, and ms of processor time: by itself and under `exec`, in turns."""
    commands: dict[str, Sequence[str]] = {"alone": []}
    for mode in MODES:
        options = ("--inject", mode, *(("--dir", f"/dev/shm/bench-exec-{os.getpid()}") if mode == "files" else ()))
        commands[mode] = exec_argv(files, stand.port, *options)
    # Compiled modules are kept, as in an installation; the first round makes them and does not count.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(stand.directory / "compiled")
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, argv in commands.items():
            began, used = time.perf_counter(), _children_ran()
            subprocess.run([*argv, "true"], check=True, cwd=CHECKOUT, env=environment)
            if number:
                took = (time.perf_counter() - began) * 1000, (_children_ran() - used) * 1000
                times[name].append((round(took[0], 2), round(took[1], 2)))
    return times


def _children_ran() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(given: Sequence[str] | None = None) -> int:
    """Measure, write the results, show them."""
    parser = argparse.ArgumentParser(prog="python -m bench.worker", description="Measure the worker's half.")
    parser.add_argument("--fetches", type=int, default=2000, help="fetches of one run (default 2000)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each client (default 3)")
    parser.add_argument("--starts", type=int, default=15, help="starts of each mode (default 15)")
    parser.add_argument("--output", type=Path, default=RESULTS / "worker.json", help="the results' file")
    asked = parser.parse_args(given)
    with tempfile.TemporaryDirectory(prefix="bench-", dir="/var/tmp") as name:
        directory = Path(name)
        stand = make_stand(directory / "stand")
        files = write_worker(directory / "worker", stand.world)
        result: dict[str, Any] = {"format": 1, "machine": machine(directory)}
        _, client_cpu = processors()
        with stand.start():
            result["starts_ms"] = starts(stand, files, asked.starts)
        usable = os.sched_getaffinity(0)
        if client_cpu is not None:
            os.sched_setaffinity(0, {client_cpu})
        try:
            result["rates"] = [dataclasses.asdict(rate) for rate in rates(stand, files, asked.fetches, asked.rounds)]
        finally:
            os.sched_setaffinity(0, usable)
    asked.output.write_text(json.dumps(result, indent=1) + "\n")
    print(show(result))
    return 0


def show(result: dict[str, Any]) -> str:
    """Return the medians as two tables."""
    lines = ["| client | fetches a second | client us a fetch |", "|---|---|---|"]
    for name in CLIENTS:
        runs = [run for run in result["rates"] if run["client"] == name]
        rate, cpu = (statistics.median(run[key] for run in runs) for key in ("per_second", "client_cpu_us"))
        lines.append(f"| {name} | {rate:.0f} | {cpu:.0f} |")
    lines += ["", "| start of `true` | ms | of that processor ms |", "|---|---|---|"]
    for name, times in result["starts_ms"].items():
        middle, ran = (statistics.median(column) for column in zip(*times, strict=True))
        lines.append(f"| {name} | {middle:.0f} | {ran:.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
