"""Health and metrics over plain HTTP, on ports of their own."""

import json
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

import aiohttp
import pytest
import pytest_asyncio

from sidecar import admin
from sidecar.metrics import Metrics

GOOD = {"admission": "ok", "authority": "ok", "root": "off", "tls": "ok", "crl": "off", "drain": "ok"}


@dataclass
class Running:
    """Both servers, and what the checks say."""

    health: str
    metrics: str
    states: dict[str, str]
    source: Metrics
    session: aiohttp.ClientSession = field(repr=False)

    async def ask(self, url: str, method: str = "GET", **headers: str) -> tuple[int, Mapping[str, str], str]:
        """Return status, headers and text."""
        async with self.session.request(method, url, headers=headers) as answer:
            return answer.status, answer.headers, await answer.text()


@pytest_asyncio.fixture
async def running() -> AsyncIterator[Running]:
    """Serve health and metrics on free ports of loopback."""
    states, source = dict(GOOD), Metrics()
    runners = []
    urls = []
    for app in (admin.health(lambda: states), admin.metrics(source)):
        runner, port = await admin.start(app, "127.0.0.1", 0)
        runners.append(runner)
        urls.append(f"http://127.0.0.1:{port}")
    async with aiohttp.ClientSession() as session:
        yield Running(urls[0], urls[1], states, source, session)
    for runner in runners:
        await runner.cleanup()


@pytest.mark.parametrize("path", ["/healthz", "/livez"])
async def test_alive_depends_on_nothing(running: Running, path: str) -> None:
    """The process is alive whatever the checks say."""
    for state in ("ok", "failed"):
        running.states.update(dict.fromkeys(GOOD, state))
        status, _, text = await running.ask(running.health + path)
        assert (status, json.loads(text)) == (200, {"status": "alive"})


async def test_ready_when_every_check_is_ok_or_off(running: Running) -> None:
    """All good: 200, `ready`, and the checks in the contract's order, to the letter; off is no fault."""
    status, headers, text = await running.ask(running.health + "/readyz")
    assert (status, headers["content-type"]) == (200, "application/json; charset=utf-8")
    checks = ",".join(f'"{check}":"{state}"' for check, state in GOOD.items())
    assert text == f'{{"status":"ready","checks":{{{checks}}}}}'


@pytest.mark.parametrize("broken", GOOD)
async def test_one_failed_check_is_named_alone(running: Running, broken: str) -> None:
    """Any single failed check is 503, `not_ready`, and named without another."""
    running.states[broken] = "failed"
    status, _, text = await running.ask(running.health + "/readyz")
    assert status == 503
    assert json.loads(text) == {"status": "not_ready", "checks": GOOD | {broken: "failed"}}


async def test_metrics_come_in_the_format_asked_for(running: Running) -> None:
    """Plain text by default, OpenMetrics where the scraper accepts it."""
    running.source.in_flight = 3
    status, headers, text = await running.ask(running.metrics + "/metrics")
    assert (status, headers["content-type"].partition(";")[0]) == (200, "text/plain")
    assert "\nsecret_sidecar_in_flight 3.0\n" in text
    accept = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    status, headers, text = await running.ask(running.metrics + "/metrics", Accept=accept)
    assert (status, headers["content-type"].partition(";")[0]) == (200, "application/openmetrics-text")
    assert text.endswith("# EOF\n")


async def test_nothing_else_is_there(running: Running) -> None:
    """Another path is 404, another method 405, and each port has its own paths only."""
    for url in ("/", "/metrics", "/readyz/", "/api/v3", "/healthz/../readyz2"):
        assert (await running.ask(running.health + url))[0] == 404
    assert (await running.ask(running.metrics + "/readyz"))[0] == 404
    for path in ("/healthz", "/livez", "/readyz"):
        assert (await running.ask(running.health + path, "POST"))[0] == 405
        assert (await running.ask(running.health + path, "HEAD"))[0] == 200


async def test_no_answer_shows_a_version_or_may_be_stored(running: Running) -> None:
    """No software version in any header; what is told is not cached."""
    for url, method in (
        (f"{running.health}/healthz", "GET"),
        (f"{running.health}/readyz", "GET"),
        (f"{running.health}/nowhere", "GET"),
        (f"{running.health}/readyz", "POST"),
        (f"{running.metrics}/metrics", "GET"),
    ):
        status, headers, _ = await running.ask(url, method)
        assert "server" not in headers
        assert (headers.get("cache-control") == "no-store") == (status == 200)


async def test_an_address_in_use_is_an_error() -> None:
    """An address that cannot be had raises OSError and leaves nothing running."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="address already in use"):
            await admin.start(admin.health(lambda: GOOD), "127.0.0.1", taken.getsockname()[1])


def test_ready_is_judged_from_closed_states() -> None:
    """Only `ok` and `off` are good; anything else, known or not, is not ready."""
    assert admin.is_ready(GOOD)
    assert not admin.is_ready(GOOD | {"tls": "failed"})
    assert not admin.is_ready(GOOD | {"tls": "perhaps"})
