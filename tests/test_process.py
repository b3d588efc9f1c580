"""The process: what stands against a start, readiness, and an end that loses nothing, as seen from outside."""

import errno
import json
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provider.outcomes import Close, Reason
from sidecar import devcerts, process
from sidecar.exchange import Gate
from sidecar.metrics import Metrics
from sidecar.reload import IdentityHolder
from tests.kit.inotify import OpenWitness
from tests.kit.pki import pki
from tests.kit.stand import Stand, Wire, make_stand
from tests.kit.surface import Surface, finished
from tests.kit.waiting import wait_for

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("aiohttp", "cryptography", "prometheus_client", "sqlite3", "asyncpg", "psycopg", "watchfiles",
         "provider.mounted", "provider.pipeline", "sidecar.stores", "sidecar.run", "sidecar.process")  # fmt: skip
SLACK_S = 6.0


@dataclass
class Ended:
    """A `serve` that has ended by itself."""

    code: int
    stderr: str
    events: list[dict[str, Any]] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)

    def named(self, event: str) -> list[dict[str, Any]]:
        """Return the events of this name."""
        return [one for one in self.events if one["event"] == event]


def run_to_its_end(environment: dict[str, str]) -> Ended:
    """Run `serve` until it ends; also tell what it had imported by then."""
    program = (
        "import json, sys\n"
        "from sidecar.__main__ import main\n"
        "code = main(['serve'])\n"
        "print(json.dumps({'event': 'modules', 'modules': sorted(sys.modules)}))\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    modules = events.pop()["modules"] if events and events[-1]["event"] == "modules" else []
    return Ended(done.returncode, done.stderr, events, modules)


@contextmanager
def taken_port() -> Iterator[int]:
    """Hold a port of loopback."""
    with closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock.getsockname()[1]


# --- the gate ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("profile", "enabled"),
    [(None, None), ("edge", None), ("edge", "false"), ("worker", "false"), ("standalone", None),
     ("cluster-control", None), ("cluster-control", "false")],
)  # fmt: skip
def test_a_disabled_ingress_reads_imports_and_opens_nothing(
    profile: str | None, enabled: str | None, tmp_path: Path
) -> None:
    """Without the switch the process says so and ends with 0, whatever else is set, right or wrong."""
    stand = make_stand(tmp_path / "stand")
    environment = stand.environment | {"QL3_WORKER_INGRESS_PORT": "nonsense", "QL3_WORKER_INGRESS_NONSENSE": "1"}
    for name, value in (("QL_DEPLOYMENT_PROFILE", profile), ("QL3_WORKER_INGRESS_ENABLED", enabled)):
        environment.pop(name)
        if value is not None:
            environment[name] = value
    with OpenWitness(stand.root, stand.directory / "tls") as witness:
        ended = run_to_its_end(environment)
        assert witness.names() == []
    assert (ended.code, ended.stderr) == (0, "")
    assert [event["event"] for event in ended.events] == ["process_disabled"]
    assert [name for name in ended.modules if name.startswith(HEAVY)] == []


@pytest.mark.parametrize("profile", [None, "edge", "standalone", "worker"])
def test_an_enabled_ingress_under_another_profile_is_a_fault(profile: str | None, tmp_path: Path) -> None:
    """The switch under any profile but cluster-control is 78; that fault alone is told, and nothing is imported."""
    stand = make_stand(tmp_path / "stand")
    environment = stand.environment | {"QL3_WORKER_INGRESS_PORT": "nonsense"}
    environment.pop("QL_DEPLOYMENT_PROFILE")
    if profile is not None:
        environment["QL_DEPLOYMENT_PROFILE"] = profile
    with OpenWitness(stand.root, stand.directory / "tls") as witness:
        ended = run_to_its_end(environment)
        assert witness.names() == []
    assert ended.code == 78
    assert [(e["event"], e["variable"]) for e in ended.events] == [("configuration_fault", "QL_DEPLOYMENT_PROFILE")]
    assert [name for name in ended.modules if name.startswith(HEAVY)] == []


# --- start -------------------------------------------------------------------------------------------------------
def test_every_fault_of_the_configuration_is_told_at_once(tmp_path: Path) -> None:
    """Faulty variables are all named, on stderr with their mend and as events, never with a value; exit code 78."""
    stand = make_stand(tmp_path / "stand")
    wrong = {
        "QL3_WORKER_INGRESS_PORT": "99999999-c4n4ry-v4lu3",
        "QL3_WORKER_INGRESS_MAX_IN_FLIGHT": "0",
        "QL3_WORKER_CREDENTIAL_PEPPER": "c4n4ry-v4lu3",
        "QL3_WORKER_SECRET_UNHEARD_OF": "c4n4ry-v4lu3",
        "QL3_SECRET_SIDECAR_RECEIPTS": "perhaps",
    }
    ended = run_to_its_end(stand.environment | wrong)
    assert ended.code == 78
    assert {event["variable"] for event in ended.named("configuration_fault")} == set(wrong)
    assert all(name in ended.stderr for name in wrong)
    assert "c4n4ry" not in ended.stderr
    assert "Traceback" not in ended.stderr


def test_everything_that_stands_against_a_start_is_told_at_once(tmp_path: Path) -> None:
    """Root, certificate, store and parser are judged together: each fault is told, nothing listens or is made; 78."""
    stand = make_stand(tmp_path / "stand")
    stand.root.chmod(0o777)
    devcerts.write(stand.directory / "tls" / "tls.key", stand.pki.client.key_pem)
    stand.world.path.unlink()
    with taken_port() as port:
        # A taken port would be told, if anything had come so far.
        environment = stand.environment | {"QL3_WORKER_INGRESS_PORT": str(port), "AIOHTTP_NO_EXTENSIONS": "1"}
        ended = run_to_its_end(environment)
    assert ended.code == 78
    faults = {event["variable"]: event["fault"] for event in ended.named("start_fault")}
    assert faults == {
        "QL3_WORKER_SECRET_ROOT_DIRECTORY": "root_unavailable",
        "QL3_WORKER_INGRESS_TLS_PRIVATE_KEY_FILE": "key_mismatch",
        "QL3_WORKER_SECRET_AUTHORITY_FILE": "store_missing",
        "aiohttp": "http_parser_missing",
    }
    for name in faults:
        assert f"secret-sidecar serve: {name}: " in ended.stderr
    # Each is a line of two sentences: what is wrong, and how it is mended.
    for line in ended.stderr.splitlines():
        assert re.fullmatch(r"secret-sidecar serve: \w+: [^.]+\. [A-Z].*[^.]\.", line), line
    assert [event["event"] for event in ended.events][-1] == "process_failed"
    assert ended.events[-1]["exitCode"] == 78
    assert not stand.world.path.exists()


@pytest.mark.parametrize("fault", ["root_unavailable", "http_parser_missing"])
def test_one_fault_is_enough_against_a_start(tmp_path: Path, fault: str) -> None:
    """Where all else is good, a root that others may write to, or a missing parser, prevents a start."""
    stand = make_stand(tmp_path / "stand")
    environment = dict(stand.environment)
    if fault == "root_unavailable":
        stand.root.chmod(0o777)
    else:
        environment["AIOHTTP_NO_EXTENSIONS"] = "1"
    with taken_port() as port:
        # Should it try to listen after all, it ends with 1.
        ended = run_to_its_end(environment | {"QL3_WORKER_INGRESS_PORT": str(port)})
    assert ended.code == 78
    assert [event["fault"] for event in ended.named("start_fault")] == [fault]
    assert ended.named("process_ready") == []


def test_a_root_that_can_be_none_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    """Reason.INVALID_CONFIGURATION never meets a request: such a root is found before anything listens."""
    stand = make_stand(tmp_path / "stand")
    for root in ("/", "relative", f"{stand.root}/../root", f"{stand.root}/"):
        ended = run_to_its_end(stand.environment | {"QL3_WORKER_SECRET_ROOT_DIRECTORY": root})
        assert ended.code == 78
        told = ended.named("configuration_fault") + ended.named("start_fault")
        assert [event["variable"] for event in told] == ["QL3_WORKER_SECRET_ROOT_DIRECTORY"]
        for event in ended.named("start_fault"):
            assert event["fault"] == Reason.INVALID_CONFIGURATION.value.provider_reason


@pytest.mark.parametrize("listener", ["QL3_WORKER_INGRESS", "QL3_SECRET_SIDECAR_HEALTH", "QL3_SECRET_SIDECAR_METRICS"])
def test_a_port_that_is_taken_is_a_failure(listener: str, tmp_path: Path) -> None:
    """An address that cannot be had is told in a line and ends the process with 1, nothing left behind."""
    stand = make_stand(tmp_path / "stand")
    with taken_port() as port:
        ended = run_to_its_end(stand.environment | {f"{listener}_PORT": str(port)})
    assert ended.code == 1
    assert ended.stderr.count("\n") == 1
    assert "in use" in ended.stderr
    assert [event["event"] for event in ended.events] == ["process_starting", "process_failed"]
    assert ended.events[-1]["exitCode"] == 1


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_a_signal_before_the_serving_half_is_imported_is_not_lost(tmp_path: Path, number: str) -> None:
    """A signal that comes before aiohttp is even imported waits, and ends the process in good order: 0."""
    program = (
        "import os, signal, sys, sidecar.cli.serve as command\n"
        "from sidecar.__main__ import main\n"
        "real = command.import_module\n"
        "def early(name):\n"
        f"    os.kill(os.getpid(), signal.{number})\n"
        "    return real(name)\n"
        "command.import_module = early\n"
        "sys.exit(main(['serve']))\n"
    )
    stand = make_stand(tmp_path / "stand")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=stand.environment, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()][-2:] == [
        "process_stopping",
        "process_stopped",
    ]


def test_a_signal_while_starting_is_not_lost(tmp_path: Path) -> None:
    """SIGTERM while the store is being opened ends the process in good order once it has started: 0."""
    program = (
        "import os, signal, sys, sidecar.process as process\n"
        "from sidecar.__main__ import main\n"
        "prepare = process.prepare_store\n"
        "async def slow(*args):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return await prepare(*args)\n"
        "process.prepare_store = slow\n"
        "sys.exit(main(['serve']))\n"
    )
    stand = make_stand(tmp_path / "stand")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=stand.environment, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()][-2:] == [
        "process_stopping",
        "process_stopped",
    ]


# --- readiness ---------------------------------------------------------------------------------------------------
class Health:
    """A store or provider of which only the health is asked."""

    def __init__(self) -> None:
        self.state = "ok"

    def health(self) -> str:
        """The state."""
        return self.state


GOOD = {"admission": "ok", "authority": "ok", "root": "ok", "tls": "ok", "crl": "ok", "drain": "ok"}


def test_each_gate_broken_alone_is_named_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Admission, authority, root, certificates and CRL fail by themselves; without provider or CRL a gate is off."""
    world = pki()
    soon = b"".join(devcerts.make_crl(ca, days=1) for ca in (world.root, world.intermediate))
    holder = IdentityHolder(world.write(tmp_path / "tls", crl=soon))
    late_crl = IdentityHolder(world.write(tmp_path / "other", crl=world.crl_pem()))
    plain = IdentityHolder(world.write(tmp_path / "plain"))
    app, store, provider = SimpleNamespace(gate=Gate.OPEN), Health(), Health()

    def checks(identity: IdentityHolder = holder, root: Health | None = provider, days: float = 0) -> dict[str, str]:
        now = time.time() + days * 86_400
        monkeypatch.setattr(process, "time", SimpleNamespace(time=lambda: now))
        return process._checks(app, root, identity, store)  # type: ignore[arg-type]

    assert checks() == GOOD
    assert list(checks()) == list(GOOD)
    app.gate = Gate.STARTING
    assert checks() == GOOD | {"admission": "failed"}
    app.gate = Gate.LEAVING
    assert checks() == GOOD | {"drain": "failed"}
    app.gate = Gate.WITHDRAWN
    assert checks() == GOOD | {"admission": "failed", "drain": "failed"}
    app.gate = Gate.OPEN
    store.state = "failed"
    assert checks() == GOOD | {"authority": "failed"}
    store.state, provider.state = "ok", "failed"
    assert checks() == GOOD | {"root": "failed"}
    provider.state = "ok"
    assert checks(days=2) == GOOD | {"crl": "failed"}
    assert checks(plain, days=8) == GOOD | {"tls": "failed", "crl": "off"}
    assert checks(late_crl, days=2) == GOOD
    assert checks(plain, root=None) == GOOD | {"root": "off", "crl": "off"}


def test_readiness_of_a_running_process(tmp_path: Path) -> None:
    """A lost store and a bad root are each named alone, in `/readyz` and in the metric, and recovery is seen."""
    good = GOOD | {"crl": "off"}
    with make_stand(tmp_path / "stand") as stand:
        stand.start()
        assert stand.get("/readyz")[0] == 200
        assert stand.checks() == good

        def hide(path: Path) -> Any:
            return path.rename(path.with_name("hidden")), lambda: path.with_name("hidden").rename(path)

        for check, path in (("authority", stand.world.path), ("root", stand.root)):
            _, restore = hide(path)
            status, text = stand.get("/readyz")
            assert (status, json.loads(text)) == (503, {"status": "not_ready", "checks": good | {check: "failed"}})
            ready = {name: stand.metric(f'ready{{check="{name}"}}') for name in good}
            assert ready == {name: 0.0 if name == check else 1.0 for name in good}
            assert stand.get("/healthz")[0] == 200
            restore()
            assert stand.checks() == good
        for path in stand.root.iterdir():
            path.unlink()
        assert stand.checks() == good
        days = stand.metric('certificate_expiry_seconds{kind="server"}') / 86_400
        assert 6 < days < 7.1


# --- the end -----------------------------------------------------------------------------------------------------
def leave(stand: Stand, number: signal.Signals = signal.SIGTERM) -> float:
    """Send a signal; return when."""
    assert stand.process is not None
    stand.process.send_signal(number)
    return time.monotonic()


def attach(stand: Stand) -> list[Any]:
    """Attach clients who will not help: idle, half-sent, unshaken, and ones that keep other ports open."""
    idle, half, early = stand.wire(), stand.wire(), socket.create_connection(("127.0.0.1", stand.port))
    half.send(stand.request()[:100])
    held: list[Any] = [idle, half, early]
    for port in (stand.health_port, stand.metrics_port):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.sendall(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n")
        held.append(sock)
    return held


def test_leaving(tmp_path: Path) -> None:
    """Readiness says no at once; the delay serves to the last; then 503 `not_ready`; what runs ends well; exit 0."""
    with make_stand(tmp_path / "stand") as stand, OpenWitness(stand.root) as witness:
        surface = Surface(stand)
        stand.start(QL3_SECRET_SIDECAR_SHUTDOWN_DELAY_MS="4000")
        held = attach(stand)
        kept, fresh, running = stand.wire(), stand.wire(), stand.wire()
        kept.send(stand.request())
        assert surface.read(kept, None).header("connection") is None
        running.send(stand.request()[:-1])
        wait_for(lambda: stand.metric("in_flight") == 1)
        began = leave(stand)
        wait_for(lambda: stand.get("/readyz")[0] == 503)
        assert stand.checks() == GOOD | {"crl": "off", "drain": "failed"}
        assert stand.get("/healthz")[0] == 200
        # In the delay: served on old and new connections, each to its end.
        late = stand.wire()
        for wire in (kept, fresh, late):
            wire.send(stand.request())
            assert surface.read(wire, None).header("connection") == "close"
        assert time.monotonic() - began < 4, "too slow a machine to tell"
        # A second signal changes nothing.
        leave(stand)
        wait_for(lambda: stand.checks()["admission"] == "failed")
        assert time.monotonic() - began >= 4
        opened = witness.opens()
        surface.ask(stand.request(), Reason.NOT_ADMITTING)
        surface.ask(stand.request(target="/elsewhere"), Reason.OUTSIDE_API)
        surface.ask(stand.request(method="GET"), Reason.NOT_ADMITTING)
        surface.ask(stand.request(target="/api/v3/x"), Reason.NOT_ADMITTING)
        assert witness.opens() == opened
        assert stand.process is not None
        assert stand.process.poll() is None
        running.send(b"}")
        assert surface.check(running.answer(), None).header("connection") == "close"
        answered = time.monotonic()
        assert stand.process.wait(30) == 0
        assert time.monotonic() - answered < 2 + SLACK_S
        assert stand.stderr() == ""
        wait_for(lambda: stand.events[-1]["event"] == "process_stopped")
        surface.verify()
        told = [event["code"] for event in stand.events if event["event"] == "request_completed"]
        assert sorted(told) == sorted(["delivered"] * 5 + ["not_ready"] * 3 + ["not_found"])
        for one in (*held, kept, fresh, late, running):
            one.close()


def test_what_still_runs_at_the_limit_is_reset(tmp_path: Path) -> None:
    """A request that does not end inside the drain limit is reset and told unanswered; the process still ends with 0.

    The client sees a reset, not an end that could be taken for an empty answer.
    """
    with make_stand(tmp_path / "stand") as stand:
        stand.start(QL3_WORKER_INGRESS_DRAIN_TIMEOUT_MS="400")
        stuck = stand.wire()
        stuck.send(stand.request()[:-1])
        wait_for(lambda: stand.metric("in_flight") == 1)
        began = leave(stand)
        assert stand.process is not None
        assert stand.process.wait(30) == 0
        took = time.monotonic() - began
        assert 0.4 <= took < 4 + SLACK_S
        event = stand.event("request_completed")
        assert (event["code"], event["stage"]) == ("unanswered", "body")
        with pytest.raises(OSError, match="reset"), closing(socket.socket(fileno=stuck.sock.detach())) as beneath:
            while beneath.recv(65536):
                pass
        assert stand.stderr() == ""


def test_leaving_by_interrupt_under_load_loses_nothing(tmp_path: Path) -> None:
    """SIGINT is as SIGTERM. Workers that ask all the while get an answer to each request until the listener closes."""
    with make_stand(tmp_path / "stand") as stand:
        stand.start(QL3_SECRET_SIDECAR_SHUTDOWN_DELAY_MS="500")
        answers: list[str] = []
        cut = 0
        began = 0.0
        ended = False
        while not ended:
            if not began and len(answers) >= 20:
                began = leave(stand, signal.SIGINT)
            try:
                wire: Wire = stand.wire()
            except OSError:
                ended = True
                break
            with wire:
                for _ in range(3):
                    try:
                        wire.send(stand.request())
                        answer = wire.answer()
                    except (OSError, EOFError):
                        # Only a connection that the closing listener never took may end without an answer.
                        cut += 1
                        ended = True
                        break
                    answers.append(answer.code)
                    if answer.header("connection") == "close":
                        assert finished(wire)
                        break
        assert stand.process is not None
        assert stand.process.wait(30) == 0
        assert cut <= 1
        assert set(answers) <= {"delivered", "not_ready"}
        told = [event for event in stand.events if event["event"] == "request_completed"]
        wait_for(lambda: stand.events[-1]["event"] == "process_stopped")
        assert len(told) == len(answers)


# --- from outside ------------------------------------------------------------------------------------------------
def test_output_that_nobody_reads_holds_up_no_request(tmp_path: Path) -> None:
    """With a full pipe as standard output requests are served as ever, and the process still ends with 0."""
    stand = make_stand(tmp_path / "stand")
    with subprocess.Popen(
        [sys.executable, "-m", "sidecar", "serve"], cwd=ROOT, env=stand.environment, stdout=subprocess.PIPE
    ) as started:
        try:
            assert started.stdout is not None
            stand.process = started
            ready = next(event for event in map(json.loads, started.stdout) if event["event"] == "process_ready")
            stand.port, stand.metrics_port = ready["port"], ready["metricsPort"]
            # Nothing is read from here on: a pipe holds some two hundred lines.
            for _ in range(8):
                with stand.wire() as wire:
                    for _ in range(100):
                        wire.send(stand.request())
                        assert wire.answer().status == 200
            assert stand.metric("events_dropped_total") == 0
            began = leave(stand)
            assert started.wait(30) == 0
            assert time.monotonic() - began < 5 + SLACK_S
        finally:
            started.kill()


def test_what_the_loop_meets_is_told_by_its_type_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """An error that nobody took is a line without text, repr or stack; want of descriptors is counted, and no line."""
    metrics = Metrics()
    said = {"message": "Exception in callback c4n4ry-v4lu3", "handle": "c4n4ry-v4lu3"}
    process._unexpected(said | {"exception": ValueError("c4n4ry-v4lu3")}, metrics)
    process._unexpected(said, metrics)
    assert capsys.readouterr() == (
        "",
        "secret-sidecar serve: unexpected in the event loop: ValueError\n"
        "secret-sidecar serve: unexpected in the event loop: no exception\n",
    )
    process._unexpected(said | {"exception": OSError(errno.EMFILE, "")}, metrics)
    assert (capsys.readouterr(), metrics.accept_pauses) == (("", ""), 1)


def test_running_out_of_descriptors(tmp_path: Path) -> None:
    """With every descriptor taken the process answers whom it has let in, and serves again once some are free.

    That accepting had to wait is counted, and nothing is said of it elsewhere.
    """
    with make_stand(tmp_path / "stand") as stand:
        stand.start()
        assert stand.process is not None
        wires = [stand.wire(source=f"127.0.0.{number}") for number in range(2, 22)]
        wait_for(lambda: stand.metric("connections") == 20)
        room = int(stand.metric("open_descriptors")) + 8
        before = resource.prlimit(stand.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(stand.process.pid, resource.RLIMIT_NOFILE, (room, before[1]))
        queued = [
            socket.create_connection(("127.0.0.1", port), source_address=(f"127.0.1.{number}", 0))
            for number in range(1, 41)
            for port in (stand.port, stand.health_port)
        ]
        time.sleep(0.5)
        # Its files cannot be opened.
        wires[-1].send(stand.request())
        assert wires[-1].answer().code == "worker_ingress_unavailable"
        for sock in queued:
            sock.close()
        wait_for(lambda: stand.metric("handshaking_connections") == 0)
        assert stand.metric("accept_pauses_total") > 0

        def is_served() -> bool:
            wires[-1].send(stand.request())
            return wires[-1].answer().status == 200

        # Who had been let in is served, once the health port has let go of those who left; and so is who comes now.
        wait_for(is_served)
        assert stand.ask().status == 200
        for wire in wires:
            wire.close()
        wait_for(lambda: stand.metric("connections") == 0)
        assert stand.metric("open_descriptors") <= room
        assert stand.stderr() == ""


def test_configured_limits_of_connections_are_in_force(tmp_path: Path) -> None:
    """`serve` holds the limits of its environment: for one address and for all, each counted by its name."""
    with make_stand(tmp_path / "stand") as stand:
        stand.start(QL3_SECRET_SIDECAR_MAX_CONNECTIONS="16", QL3_SECRET_SIDECAR_MAX_CONNECTIONS_PER_ADDRESS="3")
        wires: list[Wire] = []

        def connect(source: str) -> None:
            wires.append(stand.wire(source=source))
            wait_for(lambda: stand.metric("connections") == len(wires))

        for _ in range(3):
            connect("127.0.0.2")
        with pytest.raises(OSError):
            stand.wire(source="127.0.0.2")
        for number in range(3, 16):
            connect(f"127.0.0.{number}")
        with pytest.raises(OSError):
            stand.wire(source="127.0.0.16")
        for cause in ("address_limit", "connection_limit"):
            assert stand.metric(f'silent_closes_total{{cause="{cause}"}}') == 1
        wires[0].send(stand.request())
        assert wires[0].answer().status == 200
        for wire in wires:
            wire.close()


@pytest.mark.skipif(not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
def test_one_listener_for_both_families(tmp_path: Path) -> None:
    """On `::` workers are served over IPv4 and over IPv6."""
    with make_stand(tmp_path / "stand") as stand:
        stand.start(QL3_WORKER_INGRESS_HOST="::")
        for host in ("127.0.0.1", "::1"):
            raw = socket.create_connection((host, stand.port))
            context = stand.pki.client_context(stand.pki.client, stand.directory)
            with Wire(context.wrap_socket(raw, server_hostname="localhost")) as wire:
                wire.send(stand.request())
                assert wire.answer().status == 200


def test_no_request_makes_a_series(tmp_path: Path) -> None:
    """Whatever requests hold, the series of `/metrics` are the same as before the first one, and at least these."""
    with make_stand(tmp_path / "stand") as stand:
        stand.start()

        def series() -> set[str]:
            lines = stand.get("/metrics", stand.metrics_port)[1].splitlines()
            return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}

        before = series()
        for number in range(30):
            odd = f"odd-{number}"
            stand.ask(headers={"x-request-id": odd, odd: odd}, target=f"/api/v3/{odd}")
            stand.ask(headers={"authorization": f"Worker ql3w_{odd}_x"})
            stand.ask(method="GET", target=f"/{odd}")
        assert series() == before
        for name in ("requests_total", "stage_seconds_bucket", "in_flight", "material_opens_total", "drift_total",
                     "ready", "certificate_expiry_seconds", "build_info"):  # fmt: skip
            assert any(line.startswith(f"secret_sidecar_{name}") for line in before), name
        assert {f'secret_sidecar_silent_closes_total{{cause="{cause.value}"}}' for cause in Close} <= before
