"""A sidecar in namespaces of its own, as seen from outside: its network, its events, its answers."""

import http.client
import json
import queue
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from tests.evidence.gates import Failed
from tests.evidence.launch import LINK, Spec
from tests.evidence.prefix import ROOT
from tests.kit.stand import Answer, Wire
from tests.kit.world import World

WORKER_PORT, HEALTH_PORT, METRICS_PORT = 5801, 8080, 9090
_PATIENCE_S: Final = 30.0


def ip(*command: str) -> None:
    """Run `ip` of iproute2. Raises Failed when there is none, and when it refuses."""
    try:
        done = subprocess.run(["ip", *command], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise Failed("there is no program ip here; install iproute2") from None
    if done.returncode != 0:
        raise Failed(f"ip {command[0]} {command[1]}: {done.stderr.strip()}")


class Cell:
    """One sidecar. Its link's far end is `link`; `outside` and `inside` are the two addresses on it."""

    def __init__(self, number: int, directory: Path) -> None:
        """Prepare; nothing exists yet."""
        self.name = f"replica-{number}"
        self.link = f"cell{number}"
        self.outside, self.inside = f"198.18.{number}.1", f"198.18.{number}.2"
        self.root = directory / self.name
        self.pid = 0
        self.output: list[str] = []
        self.started = 0.0
        self._errors = directory / f"{self.name}.stderr"
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._ours, self._theirs = socket.socketpair()
        self._ours.settimeout(_PATIENCE_S)
        self.launcher: subprocess.Popen[bytes] | None = None

    def connect(self) -> None:
        """Make the link; both ends are still here."""
        ip("link", "add", self.link, "type", "veth", "peer", "name", f"{self.link}-far")
        ip("addr", "add", f"{self.outside}/30", "dev", self.link)
        ip("link", "set", self.link, "up")

    def start(self, spec: Spec) -> None:
        """Launch it, and give it the far end of its link."""
        self.root.mkdir()
        with self._errors.open("wb") as errors:
            self.launcher = subprocess.Popen(
                [sys.executable, "-m", "tests.evidence.launch", str(self._theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                pass_fds=[self._theirs.fileno()],
                cwd=ROOT,
            )
        self._theirs.close()
        threading.Thread(target=self._pump, daemon=True).start()
        with self._ours.makefile("rw", encoding="utf-8") as control:
            control.write(spec.line().decode())
            control.flush()
            self._expect(control.readline())
            ip("link", "set", f"{self.link}-far", "netns", str(self.launcher.pid), "name", LINK)
            self.started = time.monotonic()
            control.write("go\n")
            control.flush()
            self.pid = int(self._expect(control.readline()))

    def _expect(self, line: str) -> str:
        if not line:
            raise Failed(f"{self.name} could not be set apart: {self.last_error()}")
        return line

    def _pump(self) -> None:
        assert self.launcher is not None and self.launcher.stdout is not None
        for line in self.launcher.stdout:
            self.output.append(line.decode())
            self._events.put(json.loads(line))

    def errors(self) -> str:
        """What it has written to standard error."""
        return self._errors.read_text(encoding="utf-8", errors="replace")

    def last_error(self) -> str:
        """The last line of that."""
        return (self.errors().strip().splitlines() or ["no word"])[-1]

    def event(self, name: str) -> dict[str, Any]:
        """Return the next event of this name. Raises Failed when there is none in time."""
        end = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end:
            try:
                event = self._events.get(timeout=0.1)
            except queue.Empty:
                if self.launcher is None or self.launcher.poll() is not None:
                    break
                continue
            if event["event"] == name:
                return event
        raise Failed(f"{self.name} told no {name}")

    def get(self, path: str, port: int = HEALTH_PORT) -> tuple[int, str]:
        """Ask as a kubelet or Prometheus does."""
        connection = http.client.HTTPConnection(self.inside, port, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def ask(self, world: World, context: Any) -> Answer:
        """Ask for the secrets of the world's offer, as its worker does."""
        body = world.body_bytes()
        head = [
            f"POST {world.target} HTTP/1.1",
            f"host: {self.inside}:{WORKER_PORT}",
            f"authorization: Worker {world.token}",
            "content-type: application/json",
            f"content-length: {len(body)}",
        ]
        raw = socket.create_connection((self.inside, WORKER_PORT), timeout=20)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with Wire(context.wrap_socket(raw, server_hostname="localhost")) as wire:
            wire.send("\r\n".join(head).encode() + b"\r\n\r\n" + body)
            return wire.answer()

    def proc(self, name: str) -> str:
        """A file of the sidecar's in /proc."""
        return Path(f"/proc/{self.pid}/{name}").read_text(encoding="utf-8", errors="replace")

    def began(self) -> int:
        """When its process was started, in the kernel's ticks."""
        return int(self.proc("stat").rpartition(")")[2].split()[19])
