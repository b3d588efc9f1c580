"""The application: one answer and one event for each request, whatever fails, and what requests share."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provider.credential import Pepper, Peppers
from provider.outcomes import DELIVERED, Code, Reason
from sidecar.exchange import AppLimits, Gate
from sidecar.shield import ShieldLimits
from tests.kit import valid
from tests.kit.edge import Client, Edge, edge, request
from tests.kit.fakes import raising, refuse


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What arrives after an early answer is awaited for a moment; tests/test_phases.py has the bounds as they are."""
    monkeypatch.setattr("provider.limits.DISCARD_S", 0.1)


def counted(running: Edge) -> dict[str, float]:
    """Every code that was counted."""
    return {code: number for code, number in running.metrics.requests.items() if number}


async def held(running: Edge, step: str, count: int = 1) -> list[Client]:
    """Return clients whose requests hang at `step`."""
    running.scene.steps.plans[step] = None
    clients = []
    for _ in range(count):
        clients.append(await running.client())
        running.scene.steps.reached.clear()
        clients[-1].send(request())
        await running.scene.steps.reached.wait()
    del running.scene.steps.plans[step]
    return clients


@pytest.mark.parametrize("step", ["newest", "record", "lock", "resolve", "commit", "close"])
@pytest.mark.parametrize(
    "error",
    [RuntimeError("CANARY-token"), ConnectionResetError("CANARY-token"), MemoryError()],
    ids=lambda error: type(error).__name__,
)
async def test_anything_else_is_an_internal_error(step: str, error: Exception, tmp_path: Path) -> None:
    """An error that nobody foresaw is 500 (Reason.INTERNAL) and the end; its text goes nowhere, and all is wiped."""
    async with edge(tmp_path) as running:
        running.scene.steps.plans[step] = raising(error)
        client = await running.client()
        answer = await client.ask()
        assert (answer.status, answer.code, answer.header("connection")) == (500, "internal_error", "close")
        assert b"CANARY" not in answer.body
        assert running.told() == [("internal_error", "internal")]
        assert counted(running) == {"internal_error": 1}
        assert running.events.lines[-1]["reason"] == Reason.INTERNAL.name.lower()


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason.value.order > 10], ids=lambda r: r.name)
async def test_every_reason_of_the_pipeline_is_answered_by_its_row(reason: Reason, tmp_path: Path) -> None:
    """Whatever the pipeline refuses with, answer, count, reason and event are those of the row."""
    row = reason.value
    async with edge(tmp_path) as running:
        running.scene.steps.plans["lock"] = refuse(reason)
        client = await running.client()
        answer = await client.ask()
        assert (answer.status, answer.code) == (row.code.value.status, row.code.value.code)
        assert (answer.header("connection") == "close") == row.closes
        assert counted(running) == {row.code.value.code: 1}
        assert running.metrics.reasons[reason] == 1
        event = running.events.lines[-1]
        assert (event["reason"], event["stage"]) == (reason.name.lower(), row.stage.value)
        assert event.get("providerReason") == row.provider_reason


async def test_one_event_and_one_count_for_each_request(tmp_path: Path) -> None:
    """After requests of every kind there are as many events as requests, and the counts are those of the answers."""
    async with edge(tmp_path) as running:
        answers = []
        for data in (request(), request(b"{"), request(target="/elsewhere"), request(expect="x"), b"x\r\n\r\n",
                     request(authorization="x"), request(method="GET"), request(content_type="x")):  # fmt: skip
            client = await running.client()
            answers.append((await client.ask(data)).code)
        await running.until_told(len(answers))
        assert [code for code, _ in running.told()] == answers
        assert counted(running) == dict.fromkeys(answers, 1)
        problems = {code.value.code for code in Code} | {DELIVERED}
        assert set(answers) <= problems


async def test_the_time_of_each_stage_is_observed_once(tmp_path: Path) -> None:
    """A delivery passes every stage from parse to delivery once, authority before and after the provider."""
    async with edge(tmp_path) as running:
        client = await running.client()
        await client.ask()
        await running.until_told(1)
        seen = {stage.value: sum(buckets) for stage, buckets in running.metrics._buckets.items() if sum(buckets)}
        once = ["parse", "route", "authentication", "audit", "headers", "body", "command", "provider", "delivery"]
        assert seen == dict.fromkeys(once, 1) | {"authority": 2}


async def test_requests_in_flight_are_limited(tmp_path: Path) -> None:
    """At the limit the next request is turned away; when one ends, however, its place is free."""
    async with edge(tmp_path, limits=AppLimits(65_536, 3, 8, 15.0, binding=False)) as running:
        clients = await held(running, "lock", 3)
        assert running.metrics.in_flight == 3
        other = await running.client()
        answer = await other.ask()
        assert (answer.code, answer.header("retry-after")) == ("admission_capacity_exhausted", "1")
        clients[0].reset()
        await running.until(lambda: running.metrics.in_flight == 2)
        fresh = await running.client()
        assert (await fresh.ask()).status == 200
        assert running.metrics.in_flight == 2


async def test_requests_of_one_credential_are_limited(tmp_path: Path) -> None:
    """At its limit a credential's next request is turned away after its audit row, and others are not."""
    async with edge(tmp_path, limits=AppLimits(65_536, 64, 2, 15.0, binding=False)) as running:
        clients = await held(running, "lock", 2)
        other = await running.client()
        records = len(running.scene.audit.records)
        answer = await other.ask()
        assert (answer.code, answer.header("retry-after")) == ("admission_capacity_exhausted", "1")
        assert running.events.lines[-1]["reason"] == "credential_in_flight_limit"
        assert len(running.scene.audit.records) == records + 1
        clients[0].reset()
        await running.until(lambda: running.app.busy == {valid.CREDENTIAL: 1})
        assert (await (await running.client()).ask()).status == 200
        assert running.app.busy == {valid.CREDENTIAL: 1}


async def test_the_shield_counts_attempts_in_progress_of_those_who_failed(tmp_path: Path) -> None:
    """Concurrent guesses of one peer cannot outrun its budget, and its first attempts are never held back."""
    async with edge(tmp_path, shield=ShieldLimits(60, 4, 1000, 100)) as running:
        guess = request()
        running.scene.credentials.row = None
        first = await held(running, "newest", 3)
        extra = await running.client()
        assert (await extra.ask(guess)).status == 401
        assert (await (await running.client()).ask(guess)).status == 429
        stranger = await running.client(running.pki.direct)
        assert (await stranger.ask(guess)).status == 401
        for client in first:
            client.reset()
        await running.until(lambda: running.metrics.in_flight == 0)
        # An attempt that broke off has not failed: three more guesses are left.
        for _ in range(3):
            assert (await (await running.client()).ask(guess)).status == 401
        assert (await (await running.client()).ask(guess)).status == 429


async def test_admission_opens_and_closes(tmp_path: Path) -> None:
    """Before opening and after withdrawal it is 503 `not_ready`; while leaving all is served with the end announced."""
    async with edge(tmp_path) as running:
        for gate in (Gate.STARTING, Gate.WITHDRAWN):
            running.app.gate = gate
            client = await running.client()
            answer = await client.ask()
            assert (answer.code, answer.header("connection")) == ("not_ready", "close")
            assert (await (await running.client()).ask(request(target="/elsewhere"))).code == "not_found"
        running.app.gate = Gate.LEAVING
        client = await running.client()
        answer = await client.ask()
        assert (answer.status, answer.header("connection")) == (200, "close")


class Later:
    """Something done the next time a step is reached."""

    def __init__(self, action: Any) -> None:
        self._action = action

    def __call__(self) -> None:
        self._action()


@pytest.mark.parametrize("step", ["lock", "resolve", "commit", "close"])
async def test_a_peer_revoked_while_its_request_waits_gets_nothing(step: str, tmp_path: Path) -> None:
    """The peer is judged again just before the first byte: revoked meanwhile, it gets 503 and no value."""
    async with edge(tmp_path) as running:

        def revoke() -> None:
            current = running.identities[-1]
            running.identities.append(replace(current, generation=2, issuers={}))

        running.scene.steps.plans[step] = Later(revoke)
        client = await running.client()
        answer = await client.ask()
        assert (answer.code, answer.header("connection")) == ("tls_context_reloaded", "close")
        assert running.told() == [("tls_context_reloaded", "connection")]


async def test_a_renewal_while_a_request_waits_costs_nothing(tmp_path: Path) -> None:
    """A new snapshot under which the peer is still good: the request is delivered, and its connection ends."""
    async with edge(tmp_path) as running:
        renew = Later(lambda: running.identities.append(replace(running.identities[-1], generation=2)))
        running.scene.steps.plans["lock"] = renew
        client = await running.client()
        answer = await client.ask()
        assert (answer.status, answer.header("connection")) == (200, "close")


async def test_a_lease_that_ends_before_the_first_byte_is_a_fence(tmp_path: Path) -> None:
    """Store time and elapsed time are compared once more: what expired on the way to the answer is 409."""
    async with edge(tmp_path) as running:
        store = running.scene.store
        # Five seconds of the lease are left at the read, and these have gone by now.
        past = asyncio.get_running_loop().time() - 6
        store.snapshot = replace(store.snapshot, read_at=past)
        client = await running.client()
        answer = await client.ask()
        assert (answer.status, answer.code) == (409, "worker_secret_delivery_fenced")
        assert running.scene.store.holds[-1].ended == "commit"


async def test_a_credential_under_the_previous_pepper_is_counted(tmp_path: Path) -> None:
    """Who still authenticates under the previous pepper is served, and seen in the metric."""
    async with edge(tmp_path) as running:
        new = Pepper.parse("HxweHRwbGhkYFxYVFBMSERAPDg0MCwoJCAcGBQQDAgE")
        running.app._ports = replace(running.app._ports, peppers=Peppers(new, valid.PEPPER))
        assert (await (await running.client()).ask()).status == 200
        assert running.metrics.previous_pepper == 1
        running.app._ports = replace(running.app._ports, peppers=Peppers(valid.PEPPER, new))
        assert (await (await running.client()).ask()).status == 200
        assert running.metrics.previous_pepper == 1


async def test_body_bytes_of_deliveries_are_counted(tmp_path: Path) -> None:
    """The bytes of delivered bodies are counted, of refusals not."""
    async with edge(tmp_path) as running:
        client = await running.client()
        answer = await client.ask()
        await client.ask(request(b"{}"))
        assert running.metrics.delivered_bytes == len(answer.body)
