"""One answer and one event for each request, and the state that requests share (contract 3 and 4)."""

import asyncio
import time
from collections.abc import Callable

from provider.outcomes import DELIVERED, PROVIDER_CODE, Reason, Refused, Stage
from provider.pipeline import deliver
from provider.ports import Ports
from sidecar import answers
from sidecar.connection import Connection, PeerGone, Phase
from sidecar.events import Events
from sidecar.exchange import AppLimits, Exchange, Gate
from sidecar.head import Head, HeadParser
from sidecar.identity import Identity
from sidecar.metrics import UNANSWERED, Metrics
from sidecar.shield import Shield


class Application:
    """Answers requests; the state that requests share."""

    def __init__(
        self,
        ports: Ports,
        limits: AppLimits,
        identity: Callable[[], Identity],
        shield: Shield,
        metrics: Metrics,
        events: Events,
    ) -> None:
        """Start with admission closed, on the running event loop. `identity` returns the TLS snapshot in service."""
        self.loop = asyncio.get_running_loop()
        self.limits = limits
        self.identity = identity
        self.shield = shield
        self.metrics = metrics
        self.gate = Gate.STARTING
        self.in_flight = 0
        self.busy: dict[str, int] = {}
        self._ports = ports
        self._events = events
        self._parser = HeadParser(self.loop)

    def parse(self, block: bytes) -> Head:
        """Parse a head or raise `Refused`."""
        return self._parser.parse(block)

    async def handle(self, connection: Connection, arrived: Head | Reason) -> None:
        """Answer one request, count it and tell it in one event. Without an answer the connection is reset."""
        exchange = Exchange(self, connection, None if isinstance(arrived, Reason) else arrived)
        reason: Reason | None = None
        taken = 0
        try:
            if connection.phase is Phase.CLOSED:
                raise PeerGone
            if isinstance(arrived, Reason):
                raise Refused(arrived)
            exchange.enter(Stage.ROUTE)
            exchange.route()
            taken = 1
            self.in_flight += taken
            self.metrics.in_flight = self.in_flight
            try:
                await deliver(exchange, self._ports)
            except Refused as refused:
                reason = refused.reason
            if reason is not None:
                # As a delivery does before its answer; outside the handler, so that nothing waits with a traceback.
                await exchange.give_way()
        except Refused as refused:
            reason = refused.reason
        except PeerGone:
            pass
        except asyncio.CancelledError:
            if not connection.timed_out:
                self._tell_end(exchange, connection)
                raise
            # Our own cancel, by the deadline: it is answered, not passed on.
            connection.task.uncancel()
            reason = Reason.DEADLINE
        except Exception:  # noqa: BLE001 - anything else is the table's last row; its text goes nowhere
            reason = Reason.INTERNAL
        finally:
            self.in_flight -= taken
            self.metrics.in_flight = self.in_flight
            exchange.authentication_ended(failed=False)
        if exchange.answered or reason is None:
            self._tell_end(exchange, connection)
        else:
            self._refuse(exchange, connection, reason, arrived)

    def _refuse(self, exchange: Exchange, connection: Connection, reason: Reason, arrived: Head | Reason) -> None:
        last = reason.value.closes or exchange.is_last()
        answer = answers.refusal(
            reason,
            exchange.request_id,
            exchange.trace_id,
            close=last,
            body=isinstance(arrived, Reason) or arrived.method != "HEAD",
            retry_after=exchange.retry_after,
        )
        try:
            connection.answer(answer.data, last=last)
        except PeerGone:
            self._tell_end(exchange, connection)
        else:
            self._tell(exchange, reason, answer.instance)

    def _tell_end(self, exchange: Exchange, connection: Connection) -> None:
        """Tell a delivery; for a request without an answer tell that, and reset its connection."""
        if exchange.answered:
            self._tell(exchange, None, None)
            return
        exchange.enter(exchange.stage)
        self.metrics.requests[UNANSWERED] += 1
        self._events.emit(
            "request_completed", level="warning", requestId=exchange.request_id, traceId=exchange.trace_id,
            code=UNANSWERED, stage=exchange.stage.value,
            durationMs=round((self.loop.time() - exchange.started) * 1000, 3),
        )  # fmt: skip
        connection.abort()

    def _tell(self, exchange: Exchange, reason: Reason | None, instance: str | None) -> None:
        exchange.enter(exchange.stage)
        milliseconds = round((time.monotonic() - exchange.started) * 1000, 3)
        if reason is None:
            self.metrics.requests[DELIVERED] += 1
            self._events.emit(
                "request_completed", requestId=exchange.request_id, traceId=exchange.trace_id, code=DELIVERED,
                stage=Stage.DELIVERY.value, status=200, durationMs=milliseconds,
            )  # fmt: skip
            return
        row = reason.value
        problem = row.code.value
        self.metrics.requests[problem.code] += 1
        self.metrics.reasons[reason] += 1
        provider = {"providerCode": PROVIDER_CODE, "providerReason": row.provider_reason} if row.provider_reason else {}
        self._events.emit(
            "request_completed", level="warning", requestId=exchange.request_id, traceId=exchange.trace_id,
            instance=instance, code=problem.code, reason=reason.name.lower(), stage=row.stage.value,
            status=problem.status, durationMs=milliseconds, **provider,
        )  # fmt: skip
