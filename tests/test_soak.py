"""A running sidecar under mixed traffic for long: memory is flat, and what was open, held or locked is given back."""

import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from provider import limits
from provider.memory import BufferPool
from provider.refs import SecretRef
from tests.kit.flat import slope
from tests.kit.mixed import Ask, Plan, written
from tests.kit.pki import put_server, server
from tests.kit.stand import Stand, make_stand, value_of
from tests.kit.waiting import wait_for
from tests.kit.world import EXECUTION_DIGEST, PROJECT_ID, plan

REQUESTS: Final = 100_000
WARM_UP: Final = 30_000
"""Requests before memory is looked at: pools, caches and arenas have their size by then."""
BYTES_A_REQUEST: Final = 24.0
"""Bound of the slope of resident memory. No Python object is smaller than that and bears anything."""
UNLUCKY: Final = 0.001
"""Share of deliveries that may meet two swaps of the root and be unavailable."""
PROCESSES: Final = 2
LANES: Final = 8
LARGE_REFS: Final = tuple(SecretRef.of(PROJECT_ID, f"large-{number}") for number in range(16))
LARGE_BYTES: Final = limits.BATCH_BYTES // len(LARGE_REFS)
SETTINGS: Final = {
    "QL3_SECRET_SIDECAR_RECEIPTS": "on",
    "QL3_WORKER_INGRESS_AUTH_RATE_PER_PEER": "1000000",
    "QL3_WORKER_INGRESS_AUTH_RATE_GLOBAL": "1000000",
    "QL3_SECRET_SIDECAR_MAX_IN_FLIGHT_PER_CREDENTIAL": "64",
}
"""Every lane is the same worker with the same certificate, from the same address."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What the process held at one moment."""

    requests: int
    resident: int
    """Bytes of anonymous memory: neither the program's own files nor the database's."""


@dataclass(frozen=True, slots=True)
class Rest:
    """What the process holds when nobody is connected."""

    descriptors: int
    threads: int
    connections: int
    in_flight: int
    outstanding: int


@dataclass
class Soak:
    """A running sidecar and its traffic."""

    stand: Stand
    large: dict[str, object]
    """The body that asks for sixteen secrets."""
    samples: list[Sample] = field(default_factory=list)
    _generation: Iterator[int] = field(default_factory=lambda: count(1))

    def status(self, name: str) -> int:
        """A number of the process's status: KiB, or a count."""
        assert self.stand.process is not None
        text = Path(f"/proc/{self.stand.process.pid}/status").read_text(encoding="utf-8")
        (line,) = (line for line in text.splitlines() if line.startswith(f"{name}:"))
        return int(line.split()[1])

    def requests(self) -> int:
        """Requests told so far, whatever became of them."""
        text = self.stand.get("/metrics", self.stand.metrics_port)[1]
        lines = (line for line in text.splitlines() if line.startswith("secret_sidecar_requests_total{"))
        return int(sum(float(line.rpartition(" ")[2]) for line in lines))

    def rest(self) -> Rest:
        """Wait until nobody is connected and tell what is held then, by most of several looks.

        What looks is itself a connection, and a reload or a checkpoint opens a file now and then.
        """
        stand = self.stand
        wait_for(lambda: stand.metric("connections") == stand.metric("handshaking_connections") == 0)
        looks = Counter[Rest]()
        for _ in range(9):
            looks[self._held()] += 1
            time.sleep(0.1)
        return looks.most_common(1)[0][0]

    def _held(self) -> Rest:
        stand = self.stand
        return Rest(
            descriptors=int(stand.metric("open_descriptors")),
            threads=self.status("Threads"),
            connections=int(stand.metric("connections")),
            in_flight=int(stand.metric("in_flight")),
            outstanding=int(stand.metric("buffers_outstanding")),
        )

    def rotate(self) -> None:
        """Publish every value anew, as the kubelet does."""
        values = {ref: value_of(number) for number, ref in enumerate(self.stand.world.refs)}
        values |= dict.fromkeys(LARGE_REFS, b"v" * LARGE_BYTES)
        self.stand.link(values, f"..2026_11_30_00_00_00.{next(self._generation):09d}")

    def renew(self) -> None:
        """Give the listener a new certificate and key."""
        files = self.stand.pki.write(self.stand.directory / "tls")
        put_server(files, server(self.stand.pki.root))

    def plan(self, seed: int) -> Plan:
        """The traffic of one process."""
        stand, world = self.stand, self.stand.world
        large = json.dumps(self.large, separators=(",", ":")).encode()
        stranger = "ql3w_nobody_" + "A" * 43
        kept = [
            (stand.request(), "delivered", 50),
            (stand.request(large), "delivered", 25),
            (stand.request(world.body_bytes(leaseGeneration=77)), "worker_secret_delivery_fenced", 15),
            (stand.request(b'{"a":1,"a":2}'), "invalid_json", 5),
            (stand.request(b"{}"), "invalid_worker_request", 5),
        ]
        last = [
            (stand.request(token=stranger), "worker_authentication_required", 4),
            (stand.request(headers={"authorization": None}), "worker_authentication_required", 2),
            (stand.request(headers={"content-length": "x"}), "malformed_request", 2),
            (stand.request(headers={"transfer-encoding": "chunked", "content-length": None}), "length_required", 1),
            (stand.request(headers={"content-type": "text/plain"}), "unsupported_content_type", 1),
            (stand.request(target="/api/v3/nothing"), "worker_route_not_found", 1),
            (stand.request(b"", method="GET"), "method_not_allowed", 1),
        ]
        stand.pki.client_context(stand.pki.client, stand.directory)
        return Plan(
            port=stand.port,
            ca=stand.pki.root.pem.decode(),
            pair=str(stand.directory / f"{stand.pki.client.serial:x}.pem"),
            kept=[Ask(data.decode("ascii"), code, share) for data, code, share in kept],
            last=[Ask(data.decode("ascii"), code, share) for data, code, share in last],
            large=stand.request(large).decode("ascii"),
            lanes=LANES,
            seed=seed,
        )

    def drive(self, requests: int, patience_s: float) -> Counter[str]:
        """Let traffic run until the sidecar has told so many requests more; return what the clients say they did."""
        with ExitStack() as ending:
            clients = [self._client(seed, ending) for seed in range(PROCESSES)]
            self._watch(clients, requests, time.monotonic() + patience_s)
            faults, counted = self._ended(clients)
        assert faults == []
        return counted

    def _watch(self, clients: Sequence["subprocess.Popen[str]"], requests: int, end: float) -> None:
        """Take samples, publish and renew, until so many requests more were told."""
        renewed = shown = started = time.monotonic()
        until = self.requests() + requests
        while (told := self.requests()) < until:
            now = time.monotonic()
            assert now < end, f"{until - told} of {requests} requests are missing"
            assert [client.poll() for client in clients] == [None] * PROCESSES, self._ended(clients)
            self.samples.append(Sample(told, self.status("RssAnon") * 1024))
            self.rotate()
            if now > renewed + 3:
                renewed = now
                self.renew()
            if now > shown + 10:
                shown = now
                done, resident = requests - (until - told), self.samples[-1].resident >> 10
                print(f"  {now - started:4.0f} s  {done:7,} requests  {resident:,} KiB")
            time.sleep(0.25)

    def _client(self, seed: int, ending: ExitStack) -> "subprocess.Popen[str]":
        """Start one client, which does not outlive `ending`."""
        client = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.mixed"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parents[1],
        )
        ending.enter_context(client)
        ending.callback(client.kill)
        assert client.stdin is not None
        client.stdin.write(written(self.plan(seed)))
        client.stdin.flush()
        return client

    def _ended(self, clients: Sequence["subprocess.Popen[str]"]) -> tuple[list[str], Counter[str]]:
        """End the clients; return their faults, and what they did all together."""
        faults, done = [], Counter[str]()
        for client in clients:
            output, _ = client.communicate(timeout=90)
            told = json.loads(output)
            faults += [told["fault"]] if told["fault"] else []
            done.update(told["done"])
        return faults, done


@contextmanager
def soaking(directory: Path, *program: str) -> Iterator[Soak]:
    """A sidecar on a store with receipts, with one attempt of one secret and another of sixteen."""
    with make_stand(directory, refs=1, receipts=True) as stand:
        world = stand.world
        for path in stand.root.iterdir():
            path.unlink()
        made = Soak(stand, second_attempt(stand))
        made.rotate()
        stand.start(**SETTINGS, **({"program": program} if program else {}))  # type: ignore[arg-type]
        assert stand.ask().code == stand.ask(json.dumps(made.large).encode()).code == "delivered"
        assert world.audit()
        yield made


def second_attempt(stand: Stand) -> dict[str, object]:
    """Write a second run, of another task, whose plan has sixteen secrets; return the body that asks for them."""
    world = stand.world
    names = {
        "runs": {"id": "run-16", "task_id": "task-16"},
        "run_attempts": {"id": "attempt-16", "run_id": "run-16"},
        "run_dispatch_leases": {"attempt_id": "attempt-16", "run_id": "run-16"},
        "task_execution_revisions": {"task_id": "task-16", "plan_json": json.dumps(plan(LARGE_REFS))},
    }
    for table, changed in names.items():
        row = dict(world.rows[table]) | changed
        marks = ", ".join("?" * len(row))
        world.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", [*row.values()])
    return world.body(
        runId="run-16",
        attemptId="attempt-16",
        taskId="task-16",
        executionDigest=EXECUTION_DIGEST,
        secretRefs=[ref.text for ref in LARGE_REFS],
    )


def growth(samples: Sequence[Sample]) -> float:
    """Bytes by which anonymous memory grows with each request."""
    return slope([(one.requests, one.resident) for one in samples])


# --- the statistic -----------------------------------------------------------------------------------------------


def series(bytes_a_request: float, *, noise: int, spikes: bool) -> list[Sample]:
    """A hundred samples of a process that grows so much, with noise, and with spikes in every fifth."""
    chance = random.Random(7)
    samples = []
    for number in range(100):
        requests = number * 1000
        high = (8 << 20) if spikes and number % 5 == 0 else 0
        resident = (60 << 20) + int(bytes_a_request * requests) + chance.randrange(noise) + high
        samples.append(Sample(requests, resident))
    return samples


@pytest.mark.parametrize("spikes", [False, True])
def test_a_leak_shows_through_noise(spikes: bool) -> None:
    """The slope of a process that keeps 32 bytes a request is over the bound, whatever noise and spikes lie on it."""
    assert growth(series(32, noise=1 << 20, spikes=spikes)) > BYTES_A_REQUEST


@pytest.mark.parametrize("spikes", [False, True])
def test_noise_is_no_leak(spikes: bool) -> None:
    """The slope of a process that keeps nothing is under a quarter of the bound, whatever noise and spikes it has."""
    assert math.fabs(growth(series(0, noise=1 << 20, spikes=spikes))) < BYTES_A_REQUEST / 4


def test_too_few_samples_tell_nothing() -> None:
    """A slope of fewer than eight points, or of points in one place, is not told."""
    with pytest.raises(ValueError, match="too few"):
        slope([(number, 0.0) for number in range(7)])
    with pytest.raises(ValueError, match="same x"):
        slope([(1.0, float(number)) for number in range(9)])


# --- the traffic -------------------------------------------------------------------------------------------------


@pytest.mark.timeout(400)
def test_mixed_traffic_is_answered_and_leaves_nothing(tmp_path: Path) -> None:
    """A short run: every answer is the right one, every kind of traffic came, and what was held is given back."""
    with soaking(tmp_path) as soak:
        soak.drive(300, 120)
        time.sleep(1.5)  # the log is moved into the file within a second of it: SQLite keeps one descriptor of that
        before = soak.rest()
        done = soak.drive(300, 120)
        assert soak.rest() == before
        assert {"delivered", "worker_secret_delivery_fenced", "worker_authentication_required"} <= done.keys()
        assert soak.stand.stderr() == ""


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_memory_is_flat_under_mixed_traffic(capsys: pytest.CaptureFixture[str]) -> None:
    """After 100,000 mixed requests memory does not grow, and descriptors, threads and buffers are as at the start."""
    # Not below pytest's folder: its files are kept, and the store grows by a row for each request.
    with tempfile.TemporaryDirectory() as directory, capsys.disabled(), soaking(Path(directory) / "stand") as soak:
        print("\n  warming up")
        warmed = soak.drive(WARM_UP, 600)
        before = soak.rest()
        soak.samples.clear()
        print("  measured")
        done = soak.drive(REQUESTS - WARM_UP, 1200)
        after = soak.rest()
        grown = growth(soak.samples)
        print(
            f"  {grown:+.1f} bytes a request (at most {BYTES_A_REQUEST:.0f}), {len(soak.samples)} samples; {dict(done)}"
        )
        assert after == before
        assert grown <= BYTES_A_REQUEST
        assert soak.stand.metric("memory_locked_bytes") <= soak.stand.metric("memory_mapped_bytes")
        assert soak.stand.metric("memory_mapped_bytes") <= BufferPool()._retain
        every = done + warmed
        assert every["worker_ingress_unavailable"] <= UNLUCKY * every["delivered"]
        assert {
            "delivered", "reset", "half", "slow", "worker_secret_delivery_fenced", "worker_authentication_required",
            "malformed_request", "invalid_json", "invalid_worker_request", "length_required", "method_not_allowed",
        } <= every.keys()  # fmt: skip
        assert soak.stand.metric("identity_reloads_total") > 10
        assert soak.stand.stderr() == ""
        assert soak.stand.stop() == 0


LEAK: Final = """
import runpy
from sidecar.metrics import Metrics
kept, observe = [], Metrics.observe
def keep(self, stage, seconds):
    kept.append(bytearray(64))
    observe(self, stage, seconds)
Metrics.observe = keep
import sys
sys.argv = ["secret-sidecar", "serve"]
runpy.run_module("sidecar", run_name="__main__")
"""
"""A sidecar that keeps an object for each stage of each request."""


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_leaky_sidecar_is_found_out(tmp_path: Path) -> None:
    """The measurement can fail: a sidecar that keeps a small object for each stage is far over the bound."""
    with soaking(tmp_path, "-c", LEAK) as soak:
        soak.drive(10_000, 500)
        assert growth(soak.samples[len(soak.samples) // 3 :]) > 4 * BYTES_A_REQUEST
