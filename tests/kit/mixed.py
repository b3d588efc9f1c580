"""Mixed traffic: a process of several lanes, each of which does one thing after another to a listener until the end.

Started as `python -m tests.kit.mixed` with a `Plan` as JSON on the first line of stdin; the end of stdin ends it. It
writes what it did as JSON: how often each thing, and the first answer that was not the right one.
"""

import dataclasses
import json
import random
import socket
import ssl
import struct
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from tests.kit.stand import Answer, Wire

KEPT_MOST: Final = 100
"""Requests of one kept-alive connection; the server ends it then."""
SLOW_S: Final = 0.02
"""What a slow reader waits between two pieces."""


UNLUCKY: Final = ("delivered", "worker_ingress_unavailable")
"""What is expected, and what comes when a batch meets two swaps of the root: counted here, bounded by who reads it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A whole request, ASCII, and the code of its answer."""

    request: str
    code: str
    share: int
    """How often it is chosen, against the others."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send, and to whom."""

    port: int
    ca: str
    """PEM of the CA that the server's certificate is from."""
    pair: str
    """File with the client's certificates and key."""
    kept: list[Ask]
    """Asked on connections that go on."""
    last: list[Ask]
    """Each is answered with the end of its connection."""
    large: str
    """A request whose answer is large, for resets and slow readers."""
    lanes: int
    seed: int


@dataclass(slots=True)
class Tally:
    """What the lanes did. Counting is all that they share."""

    done: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stop: threading.Event = field(default_factory=threading.Event)
    fault: str = ""

    def count(self, what: str) -> None:
        """Count one request."""
        with self.lock:
            self.done[what] += 1

    def fail(self, text: str) -> None:
        """Keep the first fault and stop everything."""
        with self.lock:
            self.fault = self.fault or text
        self.stop.set()


class Lane:
    """One thing after another, chosen by chance."""

    def __init__(self, plan: Plan, number: int, tally: Tally) -> None:
        """Take a seed of its own, so that no two lanes do the same."""
        self._plan = plan
        self._tally = tally
        self._chance = random.Random(plan.seed * 1000 + number)
        self._context = ssl.create_default_context(cadata=plan.ca)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._context.load_cert_chain(plan.pair)

    def run(self) -> None:
        """Go on until told to stop, or until an answer is not the right one."""
        acts = [self.keep, self.once, self.refuse, self.reset, self.half, self.slow]
        shares = [60, 15, 15, 5, 3, 2]
        try:
            while not self._tally.stop.is_set():
                self._chance.choices(acts, shares)[0]()
        except Exception as error:  # noqa: BLE001 - it is told, and ends the run
            self._tally.fail(f"{type(error).__name__}: {error}")

    def connect(self, receive_buffer: int = 0) -> Wire:
        """Open a connection."""
        raw = socket.socket()
        raw.settimeout(60)
        if receive_buffer:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        raw.connect(("127.0.0.1", self._plan.port))
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Wire(self._context.wrap_socket(raw, server_hostname="localhost"))

    def choose(self, asks: list[Ask]) -> Ask:
        """Choose by share."""
        return self._chance.choices(asks, [ask.share for ask in asks])[0]

    def ask(self, wire: Wire, ask: Ask) -> Answer:
        """Send a request and hold its answer to its code."""
        wire.send(ask.request.encode("ascii"))
        answer = wire.answer(60)
        self._tally.count(answer.code)
        if answer.code != ask.code and (ask.code, answer.code) != UNLUCKY:
            raise AssertionError(f"{ask.code} expected, got {answer.code}")
        return answer

    def keep(self) -> None:
        """Several requests on one connection."""
        with self.connect() as wire:
            for _ in range(self._chance.randint(2, KEPT_MOST)):
                if self._tally.stop.is_set() or self.ask(wire, self.choose(self._plan.kept)).header("connection"):
                    return

    def once(self) -> None:
        """A delivery on a connection of its own."""
        with self.connect() as wire:
            self.ask(wire, self._plan.kept[0])

    def refuse(self) -> None:
        """A request that ends its connection."""
        with self.connect() as wire:
            assert self.ask(wire, self.choose(self._plan.last)).header("connection") == "close"

    def reset(self) -> None:
        """A request, and a reset while it runs or is being answered."""
        with self.connect() as wire:
            wire.send(self._plan.large.encode("ascii"))
            time.sleep(self._chance.choice([0, 0, 0.001, 0.004, 0.02]))
            wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._tally.count("reset")

    def half(self) -> None:
        """A part of a request, in the head or in the body, and the end."""
        data = self._plan.large.encode("ascii")
        with self.connect() as wire:
            wire.send(data[: self._chance.randrange(1, len(data))])
            time.sleep(0.002)
        self._tally.count("half")

    def slow(self) -> None:
        """A large answer, taken in small pieces; or, one time in three, left in the middle."""
        data, leave = b"", self._chance.random() < 1 / 3
        with self.connect(2048) as wire:
            wire.send(self._plan.large.encode("ascii"))
            while not is_whole(data):
                if leave and len(data) > 8192:
                    break
                piece = wire.sock.recv(2048)
                assert piece, "an answer that was not taken was cut"
                data += piece
                time.sleep(SLOW_S)
        assert data.startswith(b"HTTP/1.1 200 ")
        self._tally.count("slow")


def is_whole(data: bytes) -> bool:
    """Tell whether an answer has arrived to its last byte."""
    head, found, body = data.partition(b"\r\n\r\n")
    return bool(found) and len(body) >= int(head.partition(b"content-length: ")[2].partition(b"\r")[0])


def wait_for_end(tally: Tally) -> None:
    """Stop the lanes once stdin has ended."""
    sys.stdin.read()
    tally.stop.set()


def main() -> int:
    """Read a plan, carry it out until stdin ends, write what was done."""
    document = json.loads(sys.stdin.readline())
    asks = {key: [Ask(**one) for one in document[key]] for key in ("kept", "last")}
    plan = Plan(**(document | asks))
    tally = Tally()
    lanes = [threading.Thread(target=Lane(plan, number, tally).run, daemon=True) for number in range(plan.lanes)]
    for lane in lanes:
        lane.start()
    threading.Thread(target=wait_for_end, args=(tally,), daemon=True).start()
    for lane in lanes:
        lane.join()
    with suppress(BrokenPipeError):
        print(json.dumps({"done": tally.done, "fault": tally.fault}))
    return int(bool(tally.fault))


def written(plan: Plan) -> str:
    """The plan as the process wants it."""
    return json.dumps(dataclasses.asdict(plan)) + "\n"


if __name__ == "__main__":
    sys.exit(main())
