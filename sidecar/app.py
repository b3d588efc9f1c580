"""One answer and one event for each request, and the state that requests share (contract 3 and 4)."""

import asyncio
from collections.abc import Callable

from provider import limits
from provider.outcomes import DELIVERED, PROVIDER_CODE, Reason, Refused, Stage
from provider.pipeline import Ports, deliver
from sidecar import answers
from sidecar.connection import Connection
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

    def closes(self, connection: Connection) -> bool:
        """Tell whether the answer being written is the connection's last."""
        return (
            connection.framer.pipelined
            or not connection.framer.complete
            or connection.requests >= limits.REQUESTS_PER_CONNECTION
            or self.gate is not Gate.OPEN
            or connection.identity is not self.identity()
        )

    async def handle(self, connection: Connection, arrived: Head | Reason) -> bool:
        """Answer one request, count it and tell it in one event; return whether the connection ends with it."""
        exchange = Exchange(self, connection, None if isinstance(arrived, Reason) else arrived)
        reason: Reason | None = None
        taken = 0
        try:
            if isinstance(arrived, Reason):
                raise Refused(arrived)
            exchange.enter(Stage.ROUTE)
            exchange.route()
            taken = 1
            self.in_flight += taken
            self.metrics.in_flight = self.in_flight
            await deliver(exchange, self._ports)
        except Refused as refused:
            reason = refused.reason
        except ConnectionResetError:
            return self._unanswered(exchange, connection)
        except asyncio.CancelledError:
            if not connection.timed_out:
                self._unanswered(exchange, connection)
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
        if exchange.answered:
            if reason is not None:
                connection.abort()
            self._tell(exchange, None, None)
            return reason is not None or self.closes(connection)
        if reason is None:
            raise AssertionError("the pipeline returned without an answer")
        return self._refuse(exchange, connection, reason, arrived)

    def _refuse(self, exchange: Exchange, connection: Connection, reason: Reason, arrived: Head | Reason) -> bool:
        close = reason.value.closes or self.closes(connection)
        wants_body = isinstance(arrived, Reason) or arrived.method != "HEAD"
        answer = answers.refusal(
            reason,
            exchange.request_id,
            exchange.trace_id,
            close=close,
            body=wants_body,
            retry_after=exchange.retry_after,
        )
        try:
            connection.write(answer.data)
        except ConnectionResetError:
            return self._unanswered(exchange, connection)
        self._tell(exchange, reason, answer.instance)
        return close

    def _unanswered(self, exchange: Exchange, connection: Connection) -> bool:
        self.metrics.requests[UNANSWERED] += 1
        self.metrics.observe(exchange.stage, self.loop.time() - exchange.started)
        self._events.emit(
            "request_completed", requestId=exchange.request_id, traceId=exchange.trace_id, code=UNANSWERED,
            stage=exchange.stage.value, durationMs=round((self.loop.time() - exchange.started) * 1000, 3),
        )  # fmt: skip
        connection.abort()
        return True

    def _tell(self, exchange: Exchange, reason: Reason | None, instance: str | None) -> None:
        exchange.enter(exchange.stage)
        milliseconds = round((self.loop.time() - exchange.started) * 1000, 3)
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
