"""Start and stop order of the serving process (contract 9)."""

import asyncio
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from provider.memory import BufferPool
from provider.ports import Ports
from sidecar import __version__, admin
from sidecar.app import Application
from sidecar.compose import (
    Provider,
    StartFault,
    StartFaults,
    Store,
    StoreHooks,
    prepare_identity,
    prepare_provider,
    prepare_store,
)
from sidecar.config import Config
from sidecar.events import Events
from sidecar.exchange import AppLimits, Gate
from sidecar.hardening import widen
from sidecar.head import HAS_C_PARSER
from sidecar.listener import DESCRIPTOR_ERRORS, ConnectionLimits, Listener, bind
from sidecar.metrics import Metrics
from sidecar.reload import IdentityHolder, watch
from sidecar.shield import Shield, ShieldLimits

_NO_C_PARSER: Final = StartFault(
    "http_parser_missing",
    "aiohttp",
    "runs without its C HTTP parser, and the other one accepts what must be refused",
    "Install a wheel of it, and unset AIOHTTP_NO_EXTENSIONS.",
)
_STATES: Final = {"ok": 1.0, "off": 1.0, "failed": 0.0}


async def serve(config: Config, events: Events) -> None:
    """Serve until SIGTERM or SIGINT. Raises StartFaults before anything listens, OSError when an address is taken."""
    loop = asyncio.get_running_loop()
    end: asyncio.Future[StartFault | None] = loop.create_future()

    def end_for(fault: StartFault | None) -> None:
        if not end.done():
            end.set_result(fault)

    # First of all: as the first process of a container we would not even be killed by a signal that nobody handles.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end_for, None)
    # `serve` has kept them until now.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
    widen()
    metrics = Metrics()
    loop.set_exception_handler(lambda _, context: _unexpected(context, metrics))
    pool = BufferPool()
    faults: list[StartFault] = []
    if not HAS_C_PARSER:
        faults.append(_NO_C_PARSER)
    provider = prepare_provider(config, pool, metrics, lambda: _die(events), faults)
    holder = prepare_identity(config, events.emit, faults)
    # Faults that show only while serving go the same way as those before it.
    store = await prepare_store(config, metrics, StoreHooks(end_for, events.emit), faults)
    try:
        if faults or holder is None or store is None:
            raise StartFaults(faults)
        await _run(config, events, metrics, pool, provider, holder, store, end)
    finally:
        if store is not None:
            store.close()


async def _run(
    config: Config,
    events: Events,
    metrics: Metrics,
    pool: BufferPool,
    provider: Provider | None,
    holder: IdentityHolder,
    store: Store,
    end: "asyncio.Future[StartFault | None]",
) -> None:
    stopped = asyncio.Event()
    app = _application(config, events, metrics, pool, provider, holder, store)
    limits = ConnectionLimits(config.limits.max_connections, config.limits.max_connections_per_address)
    listener = Listener(app, lambda: holder.current, limits, metrics)

    def checks() -> dict[str, str]:
        return _checks(app, provider, holder, store)

    _show(metrics, pool, app.shield, holder, events, checks)
    sockets = bind(config.listen.host, config.listen.port)
    runners: list[web.AppRunner] = []
    watching = asyncio.create_task(watch(holder, stopped))
    try:
        runner, health_port = await admin.start(admin.health(checks), config.health.host, config.health.port)
        runners.append(runner)
        runner, metrics_port = await admin.start(admin.metrics(metrics), config.metrics.host, config.metrics.port)
        runners.append(runner)
        listener.start(sockets)
        app.gate = Gate.OPEN
        # What lives from here on is not garbage: keep it out of every later collection.
        gc.collect()
        gc.freeze()
        events.emit(
            "process_ready", version=__version__, port=_port(sockets), healthPort=health_port, metricsPort=metrics_port,
        )  # fmt: skip
        fault = await end
        events.emit("process_stopping")
        if fault is not None:
            raise StartFaults([fault])
        app.gate = Gate.LEAVING
        await asyncio.sleep(config.limits.shutdown_delay_ms / 1000)
        app.gate = Gate.WITHDRAWN
        await listener.drain(config.limits.drain_timeout_ms / 1000)
    finally:
        stopped.set()
        await listener.stop()
        for one in sockets:
            one.close()
        await asyncio.gather(watching, *(runner.cleanup() for runner in runners))


def _application(
    config: Config,
    events: Events,
    metrics: Metrics,
    pool: BufferPool,
    provider: Provider | None,
    holder: IdentityHolder,
    store: Store,
) -> Application:
    ports = Ports(
        credentials=store,
        audit=store,
        authority=store,
        provider=provider,
        peppers=config.peppers,
        pool=pool,
        response_limit=config.limits.max_response_bytes,
        receipt_key=config.peppers.current.receipt_key() if config.receipts else None,
    )
    limits = AppLimits(
        max_body_bytes=config.limits.max_body_bytes,
        max_in_flight=config.limits.max_in_flight,
        max_in_flight_per_credential=config.limits.max_in_flight_per_credential,
        request_timeout_s=config.limits.request_timeout_ms / 1000,
        binding=config.binding == "san",
    )
    window = ShieldLimits(
        config.shield.window_ms / 1000, config.shield.per_peer, config.shield.global_, config.shield.max_peers
    )
    return Application(ports, limits, lambda: holder.current, Shield(window, time.monotonic), metrics, events)


def _checks(app: Application, provider: Provider | None, holder: IdentityHolder, store: Store) -> dict[str, str]:
    now = time.time()
    crl = holder.current.crl_ok(now)
    return {
        "admission": "ok" if app.gate in (Gate.OPEN, Gate.LEAVING) else "failed",
        "authority": store.health(),
        "root": "off" if provider is None else provider.health(),
        "tls": "ok" if holder.current.tls_ok(now) else "failed",
        "crl": "off" if crl is None else "ok" if crl else "failed",
        "drain": "failed" if app.gate in (Gate.LEAVING, Gate.WITHDRAWN) else "ok",
    }


def _show(
    metrics: Metrics, pool: BufferPool, shield: Shield, holder: IdentityHolder, events: Events, checks: admin.Checks
) -> None:
    """Register what other modules count."""
    metrics.labelled(
        "ready",
        "Readiness checks: 1 ok or off, 0 failed.",
        "check",
        lambda: {check: _STATES[state] for check, state in checks().items()},
    )
    metrics.labelled(
        "certificate_expiry_seconds", "Seconds until the earliest end of each kind.", "kind", lambda: _expiries(holder)
    )
    metrics.counter("identity_reloads", "TLS snapshots taken into service after the first.", lambda: holder.reloads)
    metrics.counter(
        "identity_reload_failures",
        "Reloads that left the last good snapshot in service.",
        lambda: holder.reload_failures,
    )
    metrics.counter(
        "identity_watch_failures", "Times the identity's files could not be watched.", lambda: holder.watch_failures
    )
    metrics.counter("shield_refused", "Requests refused by the shield.", lambda: shield.refused)
    metrics.counter("shield_dropped_peers", "Peers dropped from the shield's full table.", lambda: shield.dropped)
    metrics.gauge("shield_peers", "Peers that have failed in the current window.", lambda: shield.peers)
    metrics.gauge("memory_locked_bytes", "Bytes of secret buffers locked into memory.", lambda: pool.locked_bytes)
    metrics.gauge("memory_mapped_bytes", "Bytes of secret buffers.", lambda: pool.mapped_bytes)
    metrics.gauge("buffers_outstanding", "Secret buffers in use.", lambda: pool.outstanding)
    metrics.counter("events_dropped", "Event lines lost to a stalled or broken output.", lambda: events.dropped)


def _expiries(holder: IdentityHolder) -> dict[str, float]:
    now, current = time.time(), holder.current
    ends = {"server": current.certificate_not_after, "client_ca": current.ca_not_after, "crl": current.crl_next_update}
    return {kind: end - now for kind, end in ends.items() if end is not None}


def _port(sockets: list[socket.socket]) -> int:
    return int(sockets[0].getsockname()[1])


def _unexpected(context: Mapping[str, Any], metrics: Metrics) -> None:
    """Tell what the event loop met and nobody took, by its type alone: text and stack could say anything."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in DESCRIPTOR_ERRORS:
        # The ports of health and metrics; the loop accepts there again a second later.
        metrics.accept_pauses += 1
        return
    name = "no exception" if error is None else type(error).__name__
    sys.stderr.write(f"secret-sidecar serve: unexpected in the event loop: {name}\n")


def _die(events: Events) -> None:
    """End the process at once: too many threads hang on mounts that are gone, and none of them can be joined."""
    events.emit("process_failed", level="error", exitCode=1)
    events.close()
    os._exit(1)
