"""The load client: many TLS connections in one process, each with one request on its way, as light as Python allows.

Request bytes are made once and sent as they are; answers are counted by their length and looked at no further. It also
reads the server's processor time at both ends of the measured window, so that the window is the same for both. Started
as `python -m bench.load` with a `Plan` as JSON on stdin; writes a `Measured` as JSON.

What counts is an answer, a complete handshake, or that the server ends the connection without an answer (`Until`).
"""

import dataclasses
import heapq
import json
import os
import select
import socket
import ssl
import sys
import time
from typing import Final

from bench.plan import PERCENTILES, Measured, Plan, Until, processor_time

PATIENCE_S: Final = 20.0
"""For an idle connection's handshake, and for a first answer, on a machine that is busy."""


class Connection:
    """One connection: hands over a request, counts its answer, begins again."""

    __slots__ = (
        "_client",
        "_closes",
        "_data",
        "_first",
        "_left",
        "_missing",
        "_request",
        "_shaken",
        "_source",
        "_started",
        "_took",
        "_turn",
        "answered",
        "socket",
    )

    def __init__(self, client: "Client", source: str, request: bytes, turn: float, first: int) -> None:
        """Connect from the address `source` and send this request again and again; the first turn is at `turn`.

        `first` is how many requests the first connection gets: with as many each they would all end at once.
        """
        self._client = client
        self._request = request
        self._source = source
        self._turn = turn
        self._first = first
        self.answered = False
        self.open()

    def open(self) -> None:
        """Connect anew and start the handshake."""
        self._left = self._missing = 0
        self._data = b""
        self._closes = False
        self._took: list[float] | None = None
        self._started = time.perf_counter()
        raw = self._client.connect(self._source)
        raw.setblocking(False)
        self._shaken = self._client.plan.plain
        self.socket = raw if self._shaken else self._client.wrap(raw, shake=False)
        self._client.poll.register(self.socket, select.EPOLLIN)
        self._client.by_descriptor[self.socket.fileno()] = self
        if self._shaken:
            self._begin()
        else:
            self.step()

    def step(self) -> None:
        """Do what can be done now."""
        try:
            if not self._shaken and isinstance(self.socket, ssl.SSLSocket):
                self.socket.do_handshake()
                self._shaken = True
                self._begin()
            if self._client.until is Until.HANDSHAKE:
                self._end(self._client.took)
            else:
                self._take(self.socket.recv(262_144))
        except (ssl.SSLWantReadError, BlockingIOError):
            return
        except (ssl.SSLError, ConnectionError):
            if self._client.until is not Until.CUT:
                raise
            self._end(self._client.took)

    def _begin(self) -> None:
        self._left, self._first = self._first, self._client.plan.requests_per_connection
        self._next()

    def _next(self) -> None:
        if self._client.interval_s:
            self._started = self._turn
            self._turn += self._client.interval_s
            if self._started > time.perf_counter():
                heapq.heappush(self._client.turns, (self._started, self.socket.fileno(), self))
                return
        self.send()

    def send(self) -> None:
        """Send the request now."""
        # A request is far smaller than a socket's buffer, so it is taken whole; the time of a first one includes
        # connect and handshake.
        if self._request:
            self.socket.send(self._request)

    def _take(self, data: bytes) -> None:
        if not data:
            if self._client.until is not Until.CUT:
                raise ConnectionError("the server closed before an answer was complete")
            self._end(self._client.took)
            return
        if self._took is None and not self._open_answer(data):
            return
        self._missing -= len(data)
        if self._missing > 0:
            return
        took, self._took, self._data = self._took, None, b""
        assert took is not None
        self._left -= 1
        self.answered = True
        if self._left and not self._closes:
            now = time.perf_counter()
            took.append(now - self._started)
            self._started = now
            self._next()
            return
        self._end(took)

    def _open_answer(self, data: bytes) -> bool:
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = self._data[:end].lower()
        self._took = self._client.by_status.get(head[9:12])
        if self._took is None:
            # An answer may hold values: only the status and a refusal's code are shown.
            code = self._data.partition(b'"code":"')[2].partition(b'"')[0]
            raise RuntimeError(f"no such answer was expected: {head[:12].decode('ascii')} {code.decode('ascii')}")
        length = int(head.partition(b"content-length: ")[2].partition(b"\r")[0])
        self._missing = end + 4 + length - (len(self._data) - len(data))
        self._closes = b"connection: close" in head
        return True

    def _end(self, took: list[float]) -> None:
        took.append(time.perf_counter() - self._started)
        self.answered = True
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
        self.until = Until(plan.until)
        self.requests = [one.encode("latin-1") for one in (plan.request, *plan.others)]
        self.context = ssl.create_default_context(cadata=plan.ca)
        if plan.pair:
            self.context.load_cert_chain(plan.pair)
        self.poll = select.epoll()
        self.by_descriptor: dict[int, Connection] = {}
        self.interval_s = plan.connections / plan.rate if plan.rate else 0.0
        """Of one connection, from turn to turn."""
        self.turns: list[tuple[float, int, Connection]] = []
        """Of those that are to come, a heap; the descriptor only orders what falls together."""
        self.took: list[float] = []
        self.other: list[float] = []
        self.by_status = {
            str(status).encode("ascii"): self.other if number else self.took
            for number, status in enumerate(plan.statuses)
        }

    def connect(self, source: str) -> socket.socket:
        """Return a new connection from that address."""
        raw = socket.create_connection(("127.0.0.1", self.plan.port), source_address=(source, 0))
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return raw

    def wrap(self, raw: socket.socket, *, shake: bool) -> ssl.SSLSocket:
        """Return TLS over a connection."""
        return self.context.wrap_socket(raw, server_hostname="localhost", do_handshake_on_connect=shake)

    def run(self) -> Measured:
        """Load the server, first unmeasured, then for the window."""
        plan = self.plan
        idle = self._rest()
        first, apart_s = time.perf_counter(), self.interval_s / plan.connections
        connections = [
            Connection(
                self,
                self._source(number),
                self.requests[number % len(self.requests)],
                first + number * apart_s,
                max(1, plan.requests_per_connection * (number + 1) // plan.connections),
            )
            for number in range(plan.connections)
        ]
        if plan.requests is None:
            patience = time.perf_counter() + PATIENCE_S
            self._until(time.perf_counter() + plan.warm_up_s, None)
            # The handshakes of many connections may take longer than that, and are no part of a kept one's figure.
            while time.perf_counter() < patience and not all(one.answered for one in connections):
                self._until(time.perf_counter() + 0.02, None)
        self.took.clear()
        self.other.clear()
        began, (ran, waited), own = time.perf_counter(), processor_time(plan.pid), time.process_time()
        self._until(began + plan.seconds, plan.requests)
        if not self.took:  # on a machine that is far too busy: what is measured lasts longer
            self._until(began + PATIENCE_S + plan.seconds, 1)
        ended, (ran_then, waited_then), own_then = time.perf_counter(), processor_time(plan.pid), time.process_time()
        took = sorted(self.took)
        if not took:
            raise RuntimeError("there was no answer at all")
        for connection in connections:
            connection.close()
        return Measured(
            requests=len(took),
            seconds=ended - began,
            cpu_s=ran_then - ran,
            waited_s=waited_then - waited,
            client_cpu_s=own_then - own,
            **{f"p{name}_s": took[int(len(took) * share)] for name, share in PERCENTILES.items()},
            other=len(self.other),
            idle_open=sum(_is_open(one) for one in idle),
        )

    def _source(self, number: int) -> str:
        return f"127.0.0.{2 + number % self.plan.addresses}"

    def _rest(self) -> list[ssl.SSLSocket]:
        idle = []
        for number in range(self.plan.idle):
            raw = self.connect(self._source(number))
            raw.settimeout(PATIENCE_S)
            idle.append(self.wrap(raw, shake=True))
        return idle

    def _until(self, end: float, requests: int | None) -> None:
        while time.perf_counter() < end and (requests is None or len(self.took) < requests):
            for descriptor, _ in self.poll.poll(self._turns()):
                # One that was closed and opened again in this turn may bear the number of another.
                if connection := self.by_descriptor.get(descriptor):
                    connection.step()

    def _turns(self) -> float:
        """Send what is due; return how long to wait for answers, which epoll rounds up to whole ms."""
        while self.turns:
            left_s = self.turns[0][0] - time.perf_counter()
            if left_s > 0:
                return min(0.1, max(0.0, left_s - 0.001))
            heapq.heappop(self.turns)[2].send()
        return 0.1


def _is_open(connection: ssl.SSLSocket) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1))
    except ssl.SSLWantReadError:
        return True
    except OSError:
        return False


def main() -> None:
    """Read a plan, carry it out, write what was measured."""
    plan = Plan(**json.load(sys.stdin))
    if plan.cpu is not None:
        os.sched_setaffinity(0, {plan.cpu})
    json.dump(dataclasses.asdict(Client(plan).run()), sys.stdout)


if __name__ == "__main__":
    main()
