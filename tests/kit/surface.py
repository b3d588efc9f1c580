"""A running sidecar whose every answer is held to the contract: headers, document, connection, event and count."""

import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from provider.credential import make_token
from provider.outcomes import PROVIDER_CODE, Code, Reason
from sidecar import devcerts
from sidecar.devcerts import Pair
from tests.kit.stand import Answer, Stand, Wire
from tests.kit.waiting import wait_for

SECOND_ID = "worker_second"
SECOND_SECRET = b"\x02" * 31 + b"\x03"
KEYS = ["type", "title", "status", "detail", "instance", "code", "timestamp", "trace_id"]
UUID4 = "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"


def finished(wire: Wire, timeout: float = 5.0) -> bool:
    """Tell whether the server ends the connection in good order: no further byte, and no reset."""
    wire.sock.settimeout(timeout)
    return wire.sock.recv(65536) == b""


class Surface:
    """A stand, and what was asked of it."""

    def __init__(self, stand: Stand) -> None:
        """Take a stand that runs."""
        self.stand = stand
        self.told: Counter[str] = Counter()
        """Answers by their code."""
        self._made = 0
        self._at = 0
        self._completed: list[dict[str, Any]] = []
        self._expected: list[dict[str, Any]] = []

    # --- peers and requests --------------------------------------------------------------------------------------
    def peer(self) -> Pair:
        """Return the certificate of a new client, which no budget knows yet."""
        self._made += 1
        return devcerts.issue(self.stand.pki.intermediate, f"client-{self._made}", client=True)

    def second_credential(self) -> str:
        """Return the token of another good credential of the world's worker."""
        world = self.stand.world
        row = dict(world.rows["worker_credentials"]) | {
            "credential_id": SECOND_ID,
            "secret_digest": world.peppers.current.digest(SECOND_ID, SECOND_SECRET),
        }
        marks = ", ".join("?" * len(row))
        world.execute(f"INSERT OR REPLACE INTO worker_credentials ({', '.join(row)}) VALUES ({marks})", [*row.values()])
        return make_token(SECOND_ID, SECOND_SECRET)

    @contextmanager
    def holding(
        self, count: int, token: str | None = None, *, body: bytes | None = None, reason: Reason | None = None
    ) -> Iterator[list[Wire]]:
        """Keep requests in flight: each waits for the last byte of its body, which comes at the end.

        With another `body` they end in `reason` then, instead of a delivery.
        """
        content = self.stand.world.body_bytes() if body is None else body
        before = self.stand.metric("in_flight")
        wires = []
        for _ in range(count):
            wire = self.stand.wire()
            wires.append(wire)
            wire.send(self.stand.request(content, token=token)[:-1])
        wait_for(lambda: self.stand.metric("in_flight") == before + count)
        try:
            yield wires
        finally:
            for wire in wires:
                wire.send(content[-1:])
                self.check(wire.answer(), reason)
                wire.close()

    # --- asking --------------------------------------------------------------------------------------------------
    def ask(
        self,
        data: bytes,
        reason: Reason | None,
        *,
        pair: Pair | None = None,
        request_id: str | None = None,
        retry_after: bool = False,
    ) -> Answer:
        """Send bytes on a connection of their own and hold the answer to `reason`; None is a delivery."""
        with self.stand.wire(pair) as wire:
            wire.send(data)
            return self.read(wire, reason, request_id=request_id, retry_after=retry_after, head=data[:5] == b"HEAD ")

    def read(
        self,
        wire: Wire,
        reason: Reason | None,
        *,
        request_id: str | None = None,
        retry_after: bool = False,
        head: bool = False,
    ) -> Answer:
        """Read one answer and hold it to `reason`, and the connection to what the answer says of it."""
        answer = self.check(
            wire.answer(head_only=head), reason, request_id=request_id, retry_after=retry_after, head=head
        )
        if answer.header("connection") == "close":
            assert finished(wire)
        return answer

    def check(
        self,
        answer: Answer,
        reason: Reason | None,
        *,
        request_id: str | None = None,
        retry_after: bool = False,
        head: bool = False,
    ) -> Answer:
        """Hold an answer and its event to the contract."""
        names = [name for name, _ in answer.headers]
        expected = ["content-type", "cache-control", "x-content-type-options", "content-length", "x-request-id"]
        if reason is Reason.METHOD:
            expected.append("allow")
        if retry_after:
            expected.append("retry-after")
        if answer.header("connection") is not None:
            assert answer.header("connection") == "close"
            expected.append("connection")
        assert names == expected
        assert answer.header("cache-control") == "no-store"
        assert answer.header("x-content-type-options") == "nosniff"
        given = answer.header("x-request-id")
        assert given is not None
        assert given == request_id if request_id else re.fullmatch(UUID4, given)
        event: dict[str, Any] = {"event": "request_completed", "requestId": given, "level": "warning"}
        self._expected.append(event)
        if reason is None:
            assert (answer.status, answer.header("content-type")) == (200, "application/json; charset=utf-8")
            event |= {"code": "delivered", "stage": "delivery", "status": 200, "level": "info"}
            self.told["delivered"] += 1
            return answer
        row, problem = reason.value, reason.value.code.value
        assert (answer.status, answer.header("content-type")) == (problem.status, "application/problem+json")
        assert answer.header("allow") == ("POST" if reason is Reason.METHOD else None)
        if row.closes:
            assert answer.header("connection") == "close"
        self.told[problem.code] += 1
        event |= {"code": problem.code, "reason": reason.name.lower(), "stage": row.stage.value}
        event |= {"status": problem.status}
        if row.provider_reason:
            event |= {"providerCode": PROVIDER_CODE, "providerReason": row.provider_reason}
        if head:
            assert int(answer.header("content-length") or 0) > 100
            return answer
        document = answer.json()
        assert list(document) == KEYS
        assert document["type"] == f"urn:secret-sidecar:problem:{problem.code}"
        assert [document[key] for key in ("code", "status", "title", "detail")] == [
            problem.code, problem.status, problem.title, problem.detail,
        ]  # fmt: skip
        assert re.fullmatch(f"urn:uuid:{UUID4}", document["instance"])
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", document["timestamp"])
        assert re.fullmatch("[0-9a-f]{32}", document["trace_id"])
        event |= {"instance": document["instance"], "traceId": document["trace_id"]}
        return answer

    def verify(self) -> None:
        """Hold the events to the answers since the last call: one for each, which says what its answer said."""
        expected, self._expected = self._expected, []
        end = time.monotonic() + 20
        for wanted in expected:
            while (event := self._event(wanted["requestId"])) is None:
                assert time.monotonic() < end, f"no event for {wanted}"
                time.sleep(0.005)
            fixed = {"schemaVersion", "component", "replicaId", "timestamp", "durationMs", "traceId"}
            may = {"instance"} if wanted["code"] != "delivered" else set()
            assert wanted.items() <= event.items()
            assert event.keys() - may == wanted.keys() - may | fixed
            assert event["durationMs"] >= 0

    def _event(self, request_id: str) -> dict[str, Any] | None:
        events = self.stand.events
        fresh = events[self._at :]
        self._at += len(fresh)
        self._completed += [event for event in fresh if event["event"] == "request_completed"]
        for index, event in enumerate(self._completed):
            if event["requestId"] == request_id:
                return self._completed.pop(index)
        return None

    # --- the end -------------------------------------------------------------------------------------------------
    def settle(self, *, unanswered: int = 0) -> None:
        """Hold all that was told to all that was asked: one event and one count for each, and nothing left open."""
        stand = self.stand
        self.verify()
        wait_for(lambda: stand.metric("in_flight") == 0)
        expected = self.told + Counter(unanswered=unanswered)
        codes = ["delivered", "unanswered", *dict.fromkeys(code.value.code for code in Code)]
        wait_for(lambda: len([e for e in stand.events if e["event"] == "request_completed"]) >= expected.total())
        told = Counter(event["code"] for event in stand.events if event["event"] == "request_completed")
        assert told == +expected
        counted = {code: stand.metric(f'requests_total{{code="{code}"}}') for code in codes}
        assert {code: number for code, number in counted.items() if number} == dict(+expected)
        for gauge in ("in_flight", "buffers_outstanding"):
            assert stand.metric(gauge) == 0
        wait_for(lambda: stand.metric("connections") == stand.metric("handshaking_connections") == 0)
        assert stand.stderr() == ""

    def __enter__(self) -> Self:
        self.stand.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                self.settle()
        finally:
            self.stand.__exit__(kind, *rest)


@contextmanager
def without(stand: Stand, table: str) -> Iterator[None]:
    """Give a table of the store another name, so that nothing in it can be read or written."""
    stand.world.execute(f"ALTER TABLE {table} RENAME TO hidden_{table}")
    try:
        yield
    finally:
        stand.world.execute(f"ALTER TABLE hidden_{table} RENAME TO {table}")
