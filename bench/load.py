"""The load client: many TLS connections in one process, each with one request on its way, as light as Python allows.

Request bytes are made once and sent as they are; answers are counted by their length and looked at no further. It also
reads the server's processor time at both ends of the measured window, so that the window is the same for both. Started
as `python -m bench.load` with a `Plan` as JSON on stdin; writes a `Measured` as JSON.
"""

import dataclasses
import json
import os
import select
import socket
import ssl
import sys
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send, to whom, and for how long."""

    pid: int
    """The server's process, whose processor time is read."""
    port: int
    ca: str
    """PEM of the CA that the server's certificate is from."""
    pair: str
    """File with the client's certificates and key."""
    request: str
    """The whole request; ASCII."""
    connections: int
    requests_per_connection: int
    """After so many answers the client closes and connects anew; the server closes after 100 by itself."""
    addresses: int
    """Connections are spread over 127.0.0.1 and so many less one addresses after it."""
    cpu: int | None
    """The processor to stay on."""
    warm_up_s: float
    seconds: float
    """Length of the measured window."""
    requests: int | None = None
    """End after so many answers instead, all of them measured."""
    others: tuple[str, ...] = ()
    """Further requests: the connections send `request` and these in turn, each always the same one."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was seen in the window. Times in seconds."""

    requests: int
    seconds: float
    cpu_s: float
    """Processor time of all threads of the server."""
    waited_s: float
    """Time in which a thread of the server could have run and was not let: what other programs on its core took."""
    client_cpu_s: float
    p50_s: float
    p99_s: float


def processor_time(pid: int) -> tuple[float, float]:
    """Return the seconds that all threads of a process ran, and that they waited to run."""
    ran = waited = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        fields = (task / "schedstat").read_text().split()
        ran += int(fields[0])
        waited += int(fields[1])
    return ran / 1e9, waited / 1e9


class Connection:
    """One TLS connection: hands over a request, counts its answer, begins again."""

    __slots__ = ("_client", "_data", "_left", "_request", "_source", "_started", "socket")

    def __init__(self, client: "Client", source: str, request: bytes) -> None:
        """Connect from the address `source` and send this request again and again."""
        self._client = client
        self._request = request
        self._source = source
        self.open()

    def open(self) -> None:
        """Connect anew and start the handshake."""
        raw = socket.create_connection(("127.0.0.1", self._client.plan.port), source_address=(self._source, 0))
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.setblocking(False)
        self.socket = self._client.context.wrap_socket(raw, server_hostname="localhost", do_handshake_on_connect=False)
        self._client.poll.register(self.socket, select.EPOLLIN)
        self._client.by_descriptor[self.socket.fileno()] = self
        self._left = 0
        self._data = b""
        self._started = time.perf_counter()
        self.step()

    def step(self) -> None:
        """Do what can be done now."""
        try:
            if self._left == 0:
                self.socket.do_handshake()
                self._left = self._client.plan.requests_per_connection
                self._send()
            self._take(self.socket.recv(262_144))
        except ssl.SSLWantReadError:
            return

    def _send(self) -> None:
        # A request is far smaller than a socket's buffer, so it is taken whole; the time of a first one includes
        # connect and handshake.
        self.socket.send(self._request)

    def _take(self, data: bytes) -> None:
        self._data += data
        answer = self._data
        if not data:
            raise ConnectionError(f"the server closed before an answer, after {answer[:200]!r}")
        head, found, body = answer.partition(b"\r\n\r\n")
        if not found:
            return
        if not head.startswith(b"HTTP/1.1 200"):
            raise ConnectionError(f"no delivery: {answer[:600]!r}")
        lower = head.lower()
        if len(body) < int(lower.partition(b"content-length: ")[2].partition(b"\r")[0]):
            return
        now = time.perf_counter()
        self._client.took.append(now - self._started)
        self._data = b""
        self._left -= 1
        if self._left and b"connection: close" not in lower:
            self._started = now
            self._send()
            return
        self.close()
        self.open()

    def close(self) -> None:
        """Close without waiting for the server's farewell."""
        del self._client.by_descriptor[self.socket.fileno()]
        self.socket.close()


class Client:
    """All connections, and the window in which they are measured."""

    def __init__(self, plan: Plan) -> None:
        """Prepare; nothing is connected before `run`."""
        self.plan = plan
        self.requests = [one.encode("ascii") for one in (plan.request, *plan.others)]
        self.context = ssl.create_default_context(cadata=plan.ca)
        self.context.load_cert_chain(plan.pair)
        self.poll = select.epoll()
        self.by_descriptor: dict[int, Connection] = {}
        self.took: list[float] = []

    def run(self) -> Measured:
        """Load the server, first unmeasured, then for the window."""
        plan = self.plan
        connections = [
            Connection(self, f"127.0.0.{1 + number % plan.addresses}", self.requests[number % len(self.requests)])
            for number in range(plan.connections)
        ]
        if plan.requests is None:
            self._until(time.perf_counter() + plan.warm_up_s, None)
        self.took.clear()
        began, (ran, waited), own = time.perf_counter(), processor_time(plan.pid), time.process_time()
        self._until(began + plan.seconds, plan.requests)
        ended, (ran_then, waited_then), own_then = time.perf_counter(), processor_time(plan.pid), time.process_time()
        took = sorted(self.took)
        for connection in connections:
            connection.close()
        return Measured(
            requests=len(took),
            seconds=ended - began,
            cpu_s=ran_then - ran,
            waited_s=waited_then - waited,
            client_cpu_s=own_then - own,
            p50_s=took[len(took) // 2],
            p99_s=took[len(took) * 99 // 100],
        )

    def _until(self, end: float, requests: int | None) -> None:
        while time.perf_counter() < end and (requests is None or len(self.took) < requests):
            for descriptor, _ in self.poll.poll(0.1):
                # One that was closed and opened again in this turn may bear the number of another.
                if connection := self.by_descriptor.get(descriptor):
                    connection.step()


def main() -> None:
    """Read a plan, carry it out, write what was measured."""
    plan = Plan(**json.load(sys.stdin))
    if plan.cpu is not None:
        os.sched_setaffinity(0, {plan.cpu})
    json.dump(dataclasses.asdict(Client(plan).run()), sys.stdout)


if __name__ == "__main__":
    main()
