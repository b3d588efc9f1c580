"""A stand: a valid world, its files, certificates, and a real `secret-sidecar serve` on loopback, seen from outside."""

import http.client
import json
import os
import queue
import shutil
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from provider.refs import SecretRef
from tests.kit.canary import VALUE, WATCH
from tests.kit.pki import Pki, pki
from tests.kit.world import PEPPER_TEXT, PROJECT_ID, World, build_world

START_S = 30.0
GENERATION = "..2026_11_30_00_00_00.000000001"


@dataclass(frozen=True)
class Answer:
    """One answer, as bytes came."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    closed: bool
    """Whether the server ended the connection after it."""

    def header(self, name: str) -> str | None:
        """Return the only value of a header, None when it is missing."""
        found = [value for key, value in self.headers if key.lower() == name]
        assert len(found) <= 1, f"{name} stands twice"
        return found[0] if found else None

    def json(self) -> Any:
        """Return the body as an object."""
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Return the problem's code, or `delivered`."""
        return "delivered" if self.status == 200 else str(self.json()["code"])


def parse_answer(data: bytes, *, closed: bool = False) -> tuple[Answer, bytes]:
    """Split one answer off `data`."""
    head, _, rest = data.partition(b"\r\n\r\n")
    lines = head.decode("ascii").split("\r\n")
    version, status, _ = lines[0].split(" ", 2)
    assert version == "HTTP/1.1"
    headers = [(line.partition(": ")[0], line.partition(": ")[2]) for line in lines[1:]]
    length = next(int(value) for name, value in headers if name.lower() == "content-length")
    return Answer(int(status), headers, rest[:length], closed), rest[length:]


class Wire:
    """A raw TLS connection of a worker."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        """Take a connected socket."""
        self.sock = sock
        self._data = b""

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.sock.sendall(data)

    def answer(self, timeout: float = 20.0, *, head_only: bool = False) -> Answer:
        """Read one answer. Raises EOFError when the connection ends before one is complete."""
        self.sock.settimeout(timeout)
        while True:
            head, found, rest = self._data.partition(b"\r\n\r\n")
            if found:
                length = 0 if head_only else int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
                if len(rest) >= length:
                    if head_only:
                        padded, _ = parse_answer(self._data)
                        self._data = b""
                        return padded
                    answer, self._data = parse_answer(self._data)
                    return answer
            data = self.sock.recv(65536)
            if not data:
                raise EOFError(self._data)
            self._data += data

    def ended(self, timeout: float = 5.0) -> bool:
        """Tell whether the server ends the connection within `timeout`, without a further byte."""
        self.sock.settimeout(timeout)
        try:
            return self.sock.recv(65536) == b"" and not self._data
        except TimeoutError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Close the socket."""
        with suppress(OSError):
            self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def value_of(number: int) -> bytes:
    """Return the default value of the world's ref `number`; every one bears the canary."""
    return f"value-{number}-{VALUE}".encode()


@dataclass
class Stand:
    """A directory with everything that a sidecar needs, and the process."""

    directory: Path
    world: World
    pki: Pki
    root: Path
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    port: int = 0
    health_port: int = 0
    metrics_port: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    output: list[str] = field(default_factory=list)
    """Every line of standard output."""
    _seen: int = 0
    _seen_errors: int = 0
    _lines: "queue.Queue[dict[str, Any]]" = field(default_factory=queue.Queue)

    # --- files ---------------------------------------------------------------------------------------------------
    def put(self, ref: SecretRef, value: bytes, mode: int = 0o440) -> Path:
        """Write one value in the flat layout, by rename."""
        path = self.root / ref.file_name
        temporary = self.directory / "put.tmp"
        temporary.write_bytes(value)
        temporary.chmod(mode)
        temporary.rename(path)
        return path

    def link(self, values: Mapping[SecretRef, bytes], generation: str = GENERATION) -> Path:
        """Write values in the linked layout as the kubelet does, and return the generation's directory."""
        directory = self.root / generation
        directory.mkdir(mode=0o755)
        directory.chmod(0o755)
        for ref, value in values.items():
            (directory / ref.file_name).write_bytes(value)
            (directory / ref.file_name).chmod(0o440)
        temporary = self.root / "..data_tmp"
        temporary.symlink_to(generation)
        old = os.readlink(self.root / "..data") if (self.root / "..data").is_symlink() else None
        temporary.rename(self.root / "..data")
        for ref in values:
            if not (self.root / ref.file_name).is_symlink():
                (self.root / ref.file_name).symlink_to(f"..data/{ref.file_name}")
        if old:
            shutil.rmtree(self.root / old)
        return directory

    # --- process -------------------------------------------------------------------------------------------------
    def start(
        self,
        *,
        wrapper: Sequence[str] = (),
        python: str = sys.executable,
        program: Sequence[str] = ("-m", "sidecar", "serve"),
        **variables: str,
    ) -> Self:
        """Start the sidecar and wait until it is ready."""
        WATCH.add(self)
        with (self.directory / "stderr").open("ab") as errors:
            self.process = subprocess.Popen(
                [*wrapper, python, *program],
                stdout=subprocess.PIPE,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                env=self.environment | variables,
                cwd=Path(__file__).resolve().parents[2],
            )
        threading.Thread(target=self._pump, daemon=True).start()
        ready = self.event("process_ready", START_S)
        self.port, self.health_port, self.metrics_port = ready["port"], ready["healthPort"], ready["metricsPort"]
        return self

    def _pump(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.output.append(line.decode())
                event = json.loads(line)
                self.events.append(event)
                self._lines.put(event)

    def event(self, name: str, timeout: float = 10.0, **fields: object) -> dict[str, Any]:
        """Return the next event of this name (with these fields)."""
        end = time.monotonic() + timeout
        while True:
            try:
                event = self._lines.get(timeout=max(0.01, min(0.2, end - time.monotonic())))
            except queue.Empty:
                dead = self.process is not None and self.process.poll() is not None
                if time.monotonic() > end or (dead and self._lines.empty()):
                    raise AssertionError(
                        f"no event {name}; stderr: {self.stderr()!r}; saw {self.events[-3:]}"
                    ) from None
                continue
            if event["event"] == name and fields.items() <= event.items():
                return event

    def stderr(self) -> str:
        """Return what the process has written to stderr."""
        return (self.directory / "stderr").read_text()

    def stop(self, *, kill: bool = False) -> int:
        """End the process and return its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            WATCH.look_at(self._shown())
            self.process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        return self.process.wait(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        running = self.process is not None and self.process.poll() is None
        try:
            WATCH.leave(self, self._shown() if running else self._kept())
        finally:
            if self.process is not None and running:
                self.process.kill()
                self.process.wait()

    # --- canaries ------------------------------------------------------------------------------------------------
    def let_out(self) -> Iterator[tuple[str, str]]:
        """Yield what standard output and standard error got since the last call."""
        lines, errors = self.output[self._seen :], self.stderr()[self._seen_errors :]
        self._seen += len(lines)
        self._seen_errors += len(errors)
        yield "standard output", "\n".join(lines)
        yield "standard error", errors

    def _shown(self) -> Iterator[tuple[str, str]]:
        with suppress(OSError, http.client.HTTPException):
            yield "metrics", self.get("/metrics", self.metrics_port)[1]
        yield from self._kept()

    def _kept(self) -> Iterator[tuple[str, str]]:
        with suppress(sqlite3.Error):
            yield "audit rows", "\n".join(map(repr, self.world.audit()))

    # --- worker --------------------------------------------------------------------------------------------------
    def wire(self, pair: Any = None, source: str | None = None, *, certificate: bool = True) -> Wire:
        """Open a TLS connection as a worker."""
        context = self.pki.client_context((pair or self.pki.client) if certificate else None, self.directory)
        raw = socket.create_connection(
            ("127.0.0.1", self.port), timeout=20, source_address=(source, 0) if source else None
        )
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Wire(context.wrap_socket(raw, server_hostname="localhost"))

    def request(
        self,
        body: bytes | None = None,
        headers: Mapping[str, str | None] = {},
        *,
        target: str | None = None,
        method: str = "POST",
        token: str | None = None,
    ) -> bytes:
        """Return a valid request's bytes, with changes; a header of None is left out."""
        content = self.world.body_bytes() if body is None else body
        fields: dict[str, str | None] = {
            "host": f"localhost:{self.port}",
            "authorization": f"Worker {token or self.world.token}",
            "content-type": "application/json",
            "content-length": str(len(content)),
        }
        fields.update(headers)
        lines = [f"{method} {target or self.world.target} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in fields.items() if value is not None]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + content

    def ask(self, *args: Any, **changed: Any) -> Answer:
        """Make one request on a connection of its own."""
        with self.wire() as wire:
            wire.send(self.request(*args, **changed))
            return wire.answer(head_only=changed.get("method") == "HEAD")

    # --- operator ------------------------------------------------------------------------------------------------
    def get(self, path: str, port: int | None = None, headers: Mapping[str, str] = {}) -> tuple[int, str]:
        """Return status and text of a plain GET on the health port (or another)."""
        connection = http.client.HTTPConnection("127.0.0.1", port or self.health_port, timeout=10)
        try:
            connection.request("GET", path, headers=dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def checks(self) -> dict[str, str]:
        """Return the readiness checks."""
        return dict(json.loads(self.get("/readyz")[1])["checks"])

    def metric(self, sample: str) -> float:
        """Return the value of one sample, written as Prometheus shows it, labels included."""
        text = self.get("/metrics", self.metrics_port)[1]
        for line in text.splitlines():
            if line.rpartition(" ")[0] == f"secret_sidecar_{sample}":
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"no sample {sample}")


def make_stand(
    directory: Path, *, refs: int | Sequence[SecretRef] = 2, bundle: SecretRef | None = None, **world: Any
) -> Stand:
    """Prepare a stand in a new directory: flat root with a value for each ref; nothing is started."""
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o755)
    made = build_world(directory / "store.sqlite3", refs=refs, bundle=bundle, **world)
    certificates = pki()
    files = certificates.write(directory / "tls")
    root = directory / "root"
    root.mkdir(mode=0o755)
    root.chmod(0o755)
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "PYTHONDONTWRITEBYTECODE": "1",
        "QL_DEPLOYMENT_PROFILE": "cluster-control",
        "QL3_WORKER_INGRESS_ENABLED": "true",
        "QL3_WORKER_INGRESS_HOST": "127.0.0.1",
        "QL3_WORKER_INGRESS_PORT": "0",
        "QL3_SECRET_SIDECAR_HEALTH_HOST": "127.0.0.1",
        "QL3_SECRET_SIDECAR_HEALTH_PORT": "0",
        "QL3_SECRET_SIDECAR_METRICS_HOST": "127.0.0.1",
        "QL3_SECRET_SIDECAR_METRICS_PORT": "0",
        "QL3_SECRET_SIDECAR_SHUTDOWN_DELAY_MS": "0",
        "QL3_WORKER_INGRESS_TLS_PRIVATE_KEY_FILE": files.private_key,
        "QL3_WORKER_INGRESS_TLS_CERTIFICATE_FILE": files.certificate,
        "QL3_WORKER_INGRESS_TLS_CLIENT_CA_FILE": files.client_ca,
        "QL3_WORKER_CREDENTIAL_PEPPER": PEPPER_TEXT,
        "QL3_WORKER_SECRET_PROVIDER": "mounted-files",
        "QL3_WORKER_SECRET_ROOT_DIRECTORY": str(root),
        "QL3_WORKER_SECRET_AUTHORITY": "sqlite",
        "QL3_WORKER_SECRET_AUTHORITY_FILE": str(made.path),
        "QL3_CLUSTER_REPLICA_ID": "replica-1",
    }
    stand = Stand(directory, made, certificates, root, environment)
    for number, ref in enumerate(made.refs):
        stand.put(ref, value_of(number))
    if bundle is not None:
        stand.put(bundle, f"A=1\nB={VALUE}\n".encode())
    return stand


def another(name: str) -> SecretRef:
    """Return a ref of the world's project that no plan names."""
    return SecretRef.of(PROJECT_ID, name)
