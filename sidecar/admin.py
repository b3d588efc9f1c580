"""Health and metrics over plain HTTP, on ports of their own (contract 9). Nothing here touches a worker's request."""

import json
from collections.abc import Callable
from functools import partial
from typing import Final

from aiohttp import web
from prometheus_client.exposition import choose_encoder

from sidecar.metrics import Metrics

Checks = Callable[[], dict[str, str]]
_SHUTDOWN_S: Final = 1.0
"""How long stopping waits for an answer that is being written."""
_WRITE: Final = partial(json.dumps, separators=(",", ":"))
_PLAIN: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def is_ready(checks: dict[str, str]) -> bool:
    """Tell whether every check is `ok` or `off`."""
    return all(state in ("ok", "off") for state in checks.values())


async def start(app: web.Application, host: str, port: int) -> tuple[web.AppRunner, int]:
    """Serve an application; return its runner and the port it got. Raises OSError when the address cannot be had."""
    app.on_response_prepare.append(_no_version)
    runner = web.AppRunner(app, access_log=None, keepalive_timeout=5, shutdown_timeout=_SHUTDOWN_S)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError:
        await runner.cleanup()
        raise
    return runner, runner.addresses[0][1]


async def _no_version(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.popall("Server", None)


def health(checks: Checks) -> web.Application:
    """Return `/healthz` (alias `/livez`), which depends on nothing, and `/readyz`, which names each gate."""

    async def alive(_: web.Request) -> web.Response:
        return web.json_response({"status": "alive"}, headers=_PLAIN, dumps=_WRITE)

    async def ready(_: web.Request) -> web.Response:
        states = checks()
        good = is_ready(states)
        document = {"status": "ready" if good else "not_ready", "checks": states}
        return web.json_response(document, status=200 if good else 503, headers=_PLAIN, dumps=_WRITE)

    app = web.Application()
    app.add_routes([web.get("/healthz", alive), web.get("/livez", alive), web.get("/readyz", ready)])
    return app


def metrics(source: Metrics) -> web.Application:
    """Return `/metrics`, in OpenMetrics where it is asked for."""
    registry = source.registry()

    async def show(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={**_PLAIN, "Content-Type": content_type})

    app = web.Application()
    app.add_routes([web.get("/metrics", show)])
    return app
