"""What a load client is told and what it tells: the plan of a run, its measures, and a process's processor time."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

PERCENTILES: Final = {"50": 0.5, "90": 0.9, "99": 0.99, "999": 0.999}


class Until(StrEnum):
    """What ends one turn of a connection, and is counted."""

    ANSWER = "answer"
    HANDSHAKE = "handshake"
    """The client's side of it is complete; the connection is closed at once."""
    CUT = "cut"
    """The server ends the connection, with or without a TLS alert, without an answer."""


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
    """Connections are spread over so many addresses, 127.0.0.2 and up."""
    cpu: int | None
    """The processor to stay on."""
    warm_up_s: float
    seconds: float
    """Length of the measured window."""
    requests: int | None = None
    """End after so many answers instead, all of them measured."""
    others: tuple[str, ...] = ()
    """Further requests: the connections send `request` and these in turn, each always the same one."""
    until: str = Until.ANSWER
    statuses: tuple[int, ...] = (200,)
    """Answers of any other status end the run with an error. Only those of the first status are measured."""
    plain: bool = False
    """Speak no TLS: `request` is sent as it is, or nothing when it is empty."""
    idle: int = 0
    """So many further connections are opened first, and stay without a request."""
    rate: float = 0.0
    """Requests a second of all connections together, each in its turn; a request's time begins with its turn, also
    when the answer before it came later than that. 0: each connection asks again as soon as it was answered."""


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
    p90_s: float = 0.0
    p999_s: float = 0.0
    other: int = 0
    """Answers of a further status of `statuses`."""
    idle_open: int = 0
    """Idle connections that were still open at the end."""


def processor_time(pid: int) -> tuple[float, float]:
    """Return the seconds that all threads of a process ran, and that they waited to run."""
    ran = waited = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        fields = (task / "schedstat").read_text().split()
        ran += int(fields[0])
        waited += int(fields[1])
    return ran / 1e9, waited / 1e9
