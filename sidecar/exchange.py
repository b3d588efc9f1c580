"""One request as the pipeline sees it: rows from `connection` to `headers`, and the answer's write (contract 2, 4)."""

import asyncio
import re
import time
from dataclasses import dataclass
from enum import Enum, unique
from types import TracebackType
from typing import TYPE_CHECKING, Final

from provider import limits
from provider.authority import Permit
from provider.credential import PeerNames, Principal
from provider.outcomes import Reason, Refused, Stage
from provider.pipeline import Admitted
from provider.wire import Response
from sidecar import answers
from sidecar.connection import Connection
from sidecar.head import Head
from sidecar.peer import judge

if TYPE_CHECKING:
    from sidecar.app import Application

_ROUTE: Final = re.compile(
    "/api/v3/worker-ingress/workers/([A-Za-z0-9][A-Za-z0-9._:-]{0,127})"
    "/sessions/([0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})/secrets"
)
_API: Final = re.compile("/api/v3(?:[/?].*)?")
_JSON: Final = re.compile(rb"application/json[ \t]*(?:;.*)?", re.IGNORECASE)


@unique
class Gate(Enum):
    """Admission (contract 9): not open yet, open, open while shutting down, withdrawn."""

    STARTING = "starting"
    OPEN = "open"
    LEAVING = "leaving"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class AppLimits:
    """Configured limits of requests."""

    max_body_bytes: int
    max_in_flight: int
    max_in_flight_per_credential: int
    request_timeout_s: float
    binding: bool


class Occupied:
    """One of a credential's places in flight, held while its block runs."""

    __slots__ = ("_busy", "_key")

    def __init__(self, busy: dict[str, int], key: str) -> None:
        """`busy` counts the places taken, by credential; those who have none are not in it."""
        self._busy = busy
        self._key = key

    def __enter__(self) -> None:
        self._busy[self._key] = self._busy.get(self._key, 0) + 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left = self._busy[self._key] - 1
        if left:
            self._busy[self._key] = left
        else:
            del self._busy[self._key]


class Exchange:
    """One request as the pipeline sees it; also the record of how far it came."""

    __slots__ = (
        "_app",
        "_attempt",
        "_connection",
        "_head",
        "_holder",
        "_since",
        "answered",
        "deadline",
        "request_id",
        "retry_after",
        "session_id",
        "stage",
        "started",
        "trace_id",
        "worker_id",
    )

    def __init__(self, app: "Application", connection: Connection, head: Head | None) -> None:
        """`head` is None for what did not parse: such a request gets fresh ids."""
        fields = head.fields if head else {}
        self._app = app
        self._connection = connection
        self._head = head
        self._attempt = False
        self._holder = ""
        self.started = self._since = time.monotonic()
        self.stage = Stage.PARSE
        self.answered = False
        self.deadline = connection.deadline
        self.request_id = answers.request_id(fields.get(b"x-request-id"))
        self.trace_id = answers.trace_id(fields.get(b"traceparent"))
        self.retry_after: int | None = None
        self.worker_id = self.session_id = ""

    def enter(self, stage: Stage) -> None:
        """Close the time of the stage before and enter `stage`."""
        now = time.monotonic()
        self._app.metrics.observe(self.stage, now - self._since)
        self.stage, self._since = stage, now

    def is_last(self) -> bool:
        """Tell whether the connection ends with an answer given now, whatever the answer is."""
        app, connection, head = self._app, self._connection, self._head
        return (
            head is None
            or head.closes
            or not connection.framer.complete
            or connection.framer.pipelined
            or connection.requests >= limits.REQUESTS_PER_CONNECTION
            or app.gate is not Gate.OPEN
            or connection.identity is not app.identity()
        )

    def route(self) -> None:
        """Judge the rows from `Expect` to the unknown worker path, in order. Raises `Refused`."""
        app, head, peer = self._app, self._head, self._connection.peer
        if head is None:
            raise Refused(Reason.MALFORMED)
        if head.expects:
            raise Refused(Reason.EXPECTATION)
        judge(peer, app.identity(), time.time())
        if not head.target.startswith("/"):
            raise Refused(Reason.INVALID_TARGET)
        if _API.fullmatch(head.target) is None:
            raise Refused(Reason.OUTSIDE_API)
        if app.gate in (Gate.STARTING, Gate.WITHDRAWN):
            raise Refused(Reason.NOT_ADMITTING)
        self.retry_after = app.shield.retry_after(peer.fingerprint)
        if self.retry_after is not None:
            raise Refused(Reason.SHIELDED)
        match = _ROUTE.fullmatch(head.target)
        if match is not None and head.method != "POST":
            raise Refused(Reason.METHOD)
        if app.in_flight >= app.limits.max_in_flight:
            raise Refused(Reason.IN_FLIGHT_LIMIT)
        if match is None:
            raise Refused(Reason.UNKNOWN_WORKER_PATH)
        self.worker_id, self.session_id = match[1], match[2]
        app.shield.begin(peer.fingerprint)
        self._attempt = True

    def authorization(self) -> bytes | None:
        """Return the raw `authorization` value."""
        return self._head.fields.get(b"authorization") if self._head else None

    def peer_names(self) -> PeerNames | None:
        """Return the certificate's names where binding is on."""
        return self._connection.peer.names if self._app.limits.binding else None

    def authentication_ended(self, *, failed: bool) -> None:
        """End the attempt in the shield, once."""
        if self._attempt:
            self._attempt = False
            self._app.shield.end(self._connection.peer.fingerprint, failed=failed)

    def occupy(self, principal: Principal) -> "Occupied":
        """Take one of the credential's places in flight. Raises `Refused(CREDENTIAL_IN_FLIGHT_LIMIT)`."""
        busy, key = self._app.busy, principal.credential_id
        if principal.previous_pepper:
            self._app.metrics.previous_pepper += 1
        if busy.get(key, 0) >= self._app.limits.max_in_flight_per_credential:
            raise Refused(Reason.CREDENTIAL_IN_FLIGHT_LIMIT)
        self._holder = key
        return Occupied(busy, key)

    async def body(self, admitted: Admitted) -> bytes | bytearray:
        """Judge the headers in the contract's order, then wait for the declared body."""
        audited = time.monotonic()
        await self.give_way()
        self.enter(Stage.HEADERS)
        head = self._head
        if head is None:
            raise Refused(Reason.INTERNAL)
        if head.fields.get(b"content-encoding", b"identity").lower() != b"identity":
            raise Refused(Reason.CONTENT_ENCODING)
        if head.length is None:
            raise Refused(Reason.NO_LENGTH)
        if head.length > self._app.limits.max_body_bytes:
            raise Refused(Reason.DECLARED_TOO_LARGE)
        if _JSON.fullmatch(head.fields.get(b"content-type", b"")) is None:
            raise Refused(Reason.CONTENT_TYPE)
        self.enter(Stage.BODY)
        return await self._connection.read_body(audited + limits.BODY_S)

    async def send(self, permit: Permit, response: Response) -> None:
        """Judge the peer and the fences by the clock once more, then hand head and body to TLS in one write.

        Raises `Refused`, and `PeerGone` when nobody is there to take it.
        """
        await self.give_way()
        judge(self._connection.peer, self._app.identity(), time.time())
        permit.check(time.monotonic())
        last = self.is_last()
        head = answers.ok_head(response.length, self.request_id, close=last)
        with response.framed(head) as answer:
            self._connection.answer(answer, last=last)
        self.answered = True
        self._app.metrics.delivered_bytes += response.length

    async def give_way(self) -> None:
        """Let every request that can run come as far as this one.

        Requests then go stage by stage, each with the code of its stage in the processor's caches, and not one after
        the other through all of it: with 32 at once a fifth less CPU (docs/adr/0013). Not when more than half of the
        places are taken: who comes next must not find them all held by requests that only wait for their turn.
        """
        app = self._app
        if (
            2 * app.in_flight <= app.limits.max_in_flight
            and 2 * app.busy.get(self._holder, 0) <= app.limits.max_in_flight_per_credential
        ):
            await asyncio.sleep(0)
