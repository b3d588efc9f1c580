"""provider/pipeline: each step comes after the one that permits it, and every way out leaves nothing behind."""

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from provider import limits, receipts
from provider.authority import Authority, Permit
from provider.credential import PeerNames
from provider.material import Batch, Slot
from provider.outcomes import Reason, Refused
from provider.pipeline import Admitted, admit, deliver
from provider.ports import AuditRecord
from provider.refs import SecretRef
from tests.kit import valid
from tests.kit.fakes import (
    STEPS,
    VALUES,
    InlineProvider,
    RemoteProvider,
    Scene,
    is_zero,
    raising,
    refuse,
    scene,
    settle,
)
from tests.kit.reach import leads_to

EVERYTHING = list(STEPS)
BY_THE_EDGE = {reason for reason in Reason if reason.value.order < Reason.CREDENTIAL_STORE.value.order}
"""Decided before the pipeline is called."""


def up_to(step: str) -> list[str]:
    """The steps of a delivery from the first to `step`."""
    return EVERYTHING[: EVERYTHING.index(step) + 1]


async def refusal(one: Scene) -> Reason:
    """The reason for which this request is refused."""
    with pytest.raises(Refused) as caught:
        await deliver(one.exchange, one.ports)
    return caught.value.reason


def answer() -> bytes:
    """The answer of the valid world."""

    def item(ref: SecretRef) -> dict[str, str]:
        return {"secretRef": ref.text, "value": VALUES[ref].decode()}

    document = {
        "schema": "qinglong/remote-secret-delivery@v2",
        "runId": valid.RUN,
        "attemptId": valid.ATTEMPT,
        "offerId": valid.OFFER,
        "executionDigest": valid.PLAN_DIGEST,
        "values": [item(ref) for ref in valid.SECRETS],
        "environmentBundles": [item(valid.BUNDLE)],
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


# --- the whole way ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("remote", [True, False], ids=["remote", "inline"])
@pytest.mark.parametrize("with_receipts", [True, False], ids=["receipts", "no receipts"])
async def test_the_valid_world_is_served(remote: bool, with_receipts: bool) -> None:
    """Both providers deliver the same answer, committed, with nothing left behind."""
    one = scene(remote=remote, receipts=with_receipts)
    await deliver(one.exchange, one.ports)
    assert one.exchange.sent == answer()
    assert isinstance(one.exchange.permit, Permit)
    assert [hold.ended for hold in one.store.holds] == ["commit"]
    assert one.is_clean


async def test_every_step_comes_in_its_order() -> None:
    """The whole journal of a delivery: the order is the contract's, and stages are entered where they begin."""
    one = scene(receipts=True)
    await deliver(one.exchange, one.ports)
    assert one.steps.journal == [
        "enter authentication",
        "authorization",
        "newest",
        "authentication not failed",
        "enter audit",
        "record",
        "occupy",
        "body",
        "enter command",
        "enter authority",
        "lock",
        "enter provider",
        "resolve",
        "resolving",
        "enter authority",
        "commit",
        "ended by commit",
        "close",
        "enter delivery",
        "send",
        "vacate",
        "acknowledge",
    ]


async def test_v1_is_answered_in_v1() -> None:
    """A command of `@v1` for a plan without bundle is answered in its own schema."""
    one = scene()
    one.exchange.content = valid.body_v1()
    one.store.snapshot = valid.changed("revision", plan_json=valid.plan_json(environmentBundleRef=None))
    await deliver(one.exchange, one.ports)
    assert one.exchange.sent.startswith(b'{"schema":"qinglong/remote-secret-delivery@v1"')
    assert b"environmentBundles" not in one.exchange.sent


@pytest.mark.parametrize("remote", [True, False], ids=["remote", "inline"])
async def test_store_and_provider_are_told_what_they_need(remote: bool) -> None:
    """The store gets principal, command, deadline and whether material is slow; the provider authority and deadline."""
    one = scene(remote=remote)
    await deliver(one.exchange, one.ports)
    principal, command, deadline, slow = one.store.asked[0]
    assert (principal.worker_id, command) == (valid.WORKER, valid.command())
    assert (deadline, slow) == (one.exchange.deadline, remote)
    assert isinstance(one.provider, RemoteProvider | InlineProvider)
    assert isinstance(one.provider.authority, Authority)
    if isinstance(one.provider, RemoteProvider):
        assert one.provider.deadline == one.exchange.deadline


async def test_a_repeated_request_gets_the_same_answer() -> None:
    """Inside the same live fence a second request is answered alike (contract 6.6)."""
    one = scene()
    await deliver(one.exchange, one.ports)
    first, one.exchange.sent = one.exchange.sent, b""
    await deliver(one.exchange, one.ports)
    assert one.exchange.sent == first == answer()


# --- refusals -----------------------------------------------------------------------------------------------------

Break = Callable[[Scene], None]


def set_on(part: str, **changes: Any) -> Break:
    """Set attributes of one part of the scene."""

    def apply(one: Scene) -> None:
        for name, value in changes.items():
            setattr(getattr(one, part), name, value)

    return apply


def set_scene(**changes: Any) -> Break:
    """Set attributes of the scene itself."""

    def apply(one: Scene) -> None:
        for name, value in changes.items():
            setattr(one, name, value)

    return apply


def at(step: str, reason: Reason) -> Break:
    """Let a step refuse."""

    def apply(one: Scene) -> None:
        one.steps.plans[step] = refuse(reason)

    return apply


# For every reason that can arise in the pipeline: what breaks, and the last step that is reached.
REFUSALS: list[tuple[str, Reason, Break, str]] = [
    ("credential store", Reason.CREDENTIAL_STORE, at("newest", Reason.CREDENTIAL_STORE), "record"),
    ("unknown credential", Reason.UNAUTHENTICATED, set_on("credentials", row=None), "record"),
    ("audit store", Reason.AUDIT_STORE, at("record", Reason.AUDIT_STORE), "record"),
    ("credential busy", Reason.CREDENTIAL_IN_FLIGHT_LIMIT, set_on("exchange", full=True), "record"),
    *[
        (f"{reason.name.lower()}", reason, at("body", reason), "body")
        for reason in (
            Reason.CONTENT_ENCODING,
            Reason.NO_LENGTH,
            Reason.DECLARED_TOO_LARGE,
            Reason.CONTENT_TYPE,
            Reason.BODY_TIMEOUT,
        )
    ],
    ("no JSON", Reason.JSON, set_on("exchange", content=b"{"), "body"),
    ("no provider", Reason.PROVIDER_DISABLED, set_scene(provider=None), "body"),
    ("no command", Reason.COMMAND, set_on("exchange", content=b"{}"), "body"),
    ("lock", Reason.AUTHORITY_STORE, at("lock", Reason.AUTHORITY_STORE), "lock"),
    ("no time for the lock", Reason.DEADLINE, at("lock", Reason.DEADLINE), "lock"),
    (
        "fence",
        Reason.AUTHORITY_MISMATCH,
        set_on("store", snapshot=valid.changed("run", cancel_requested_at_ms=1)),
        "lock",
    ),
    (
        "scope",
        Reason.SECRET_SCOPE_MISMATCH,
        set_on("exchange", content=valid.body(secretRefs=[valid.KEY.text])),
        "lock",
    ),
    (
        "plan",
        Reason.AUTHORITY_STORE,
        set_on("store", snapshot=valid.changed("revision", plan_json="{}")),
        "lock",
    ),
    *[
        (f"{reason.name.lower()} {step}", reason, at(step, reason), step)
        for reason in (
            Reason.INVALID_CONFIGURATION,
            Reason.ROOT_UNAVAILABLE,
            Reason.MATERIAL_UNAVAILABLE,
            Reason.OVER_BUDGET,
        )
        for step in ("resolve", "resolving")
    ],
    ("a value that is no text", Reason.MATERIAL_UNAVAILABLE, lambda one: spoil(one, b"\xff"), "resolving"),
    ("a value too large", Reason.MATERIAL_UNAVAILABLE, lambda one: spoil(one, b"x" * 16_385), "resolve"),
    ("answer too large", Reason.OVER_BUDGET, set_scene(response_limit=100), "resolving"),
    ("commit", Reason.AUTHORITY_STORE, at("commit", Reason.AUTHORITY_STORE), "commit"),
    ("expired at the last moment", Reason.AUTHORITY_MISMATCH, at("send", Reason.AUTHORITY_MISMATCH), "send"),
    ("peer no longer good", Reason.PEER_NOT_GOOD, at("send", Reason.PEER_NOT_GOOD), "send"),
]


def spoil(one: Scene, value: bytes) -> None:
    """Give the last ref another value."""
    assert isinstance(one.provider, RemoteProvider)
    one.provider.values[valid.BUNDLE if len(value) < 100 else valid.KEY] = value


def test_the_table_names_every_reason() -> None:
    """Every reason that is not the edge's own, nor `internal`, is provoked below."""
    provoked = {reason for _, reason, _, _ in REFUSALS}
    assert provoked - {Reason.PEER_NOT_GOOD} == set(Reason) - BY_THE_EDGE - {Reason.INTERNAL}


@pytest.mark.parametrize(("reason", "breaks", "last"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
async def test_nothing_later_is_touched(reason: Reason, breaks: Break, last: str) -> None:
    """A refusal is the first that applies; no later step is reached, no byte is sent, and nothing is left behind."""
    one = scene(receipts=True)
    breaks(one)
    assert await refusal(one) is reason
    assert [step for step in one.touched if step != "close"] == [step for step in up_to(last) if step != "close"]
    assert one.exchange.sent == b""
    assert one.store.acknowledged == []
    assert one.is_clean


@pytest.mark.parametrize(("reason", "breaks", "last"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
async def test_a_hold_without_commit_is_rolled_back(reason: Reason, breaks: Break, last: str) -> None:
    """Every refusal inside the hold ends it with ROLLBACK and without receipts; one after it cannot undo the COMMIT."""
    one = scene(receipts=True)
    breaks(one)
    assert await refusal(one) is reason
    ended = [hold.ended for hold in one.store.holds]
    if last == "send":
        assert ended == ["commit"]
    else:
        assert ended in ([], ["rollback"])
        assert all(hold.receipts is None for hold in one.store.holds)


async def test_a_disabled_provider_is_said_before_the_commands_shape() -> None:
    """With no provider the answer is the same for a good command and for one that is none (contract 4)."""
    for content in (valid.body(), b"{}"):
        one = scene()
        one.provider = None
        one.exchange.content = content
        assert await refusal(one) is Reason.PROVIDER_DISABLED


async def test_json_comes_before_a_disabled_provider() -> None:
    """What is no JSON is said so, provider or none."""
    one = scene()
    one.provider = None
    one.exchange.content = b"{"
    assert await refusal(one) is Reason.JSON


# --- authentication and audit -------------------------------------------------------------------------------------

STRANGERS: list[tuple[str, Break]] = [
    ("no header", set_on("exchange", header=None)),
    ("malformed", set_on("exchange", header=b"Bearer x")),
    ("unknown", set_on("credentials", row=None)),
    ("revoked", set_on("credentials", row=replace(valid.CREDENTIAL_ROW, state="revoked"))),
    ("expired", set_on("credentials", row=replace(valid.CREDENTIAL_ROW, expires_at_ms=valid.NOW_MS))),
    ("another digest", set_on("credentials", row=replace(valid.CREDENTIAL_ROW, secret_digest="0" * 64))),
    ("another worker's path", set_on("exchange", worker_id="worker-2")),
    ("binding not met", set_on("exchange", names=PeerNames(frozenset(), frozenset()))),
]
stranger = pytest.mark.parametrize("breaks", [row[1] for row in STRANGERS], ids=[row[0] for row in STRANGERS])


@stranger
async def test_a_rejection_is_recorded_before_it_is_told(breaks: Break) -> None:
    """Whoever is rejected has an audit row without a subject, and a spent attempt; no body is read (contract 6)."""
    one = scene()
    breaks(one)
    assert await refusal(one) is Reason.UNAUTHENTICATED
    assert one.audit.records == [AuditRecord("request-1", "authentication_rejected", None)]
    assert one.exchange.failed_authentications == [True]
    assert one.exchange.admitted is None


@stranger
async def test_an_unrecorded_rejection_is_not_told(breaks: Break) -> None:
    """When the row of a rejection cannot be written the answer is the audit's, and the attempt is spent alike."""
    one = scene()
    breaks(one)
    one.steps.plans["record"] = refuse(Reason.AUDIT_STORE)
    assert await refusal(one) is Reason.AUDIT_STORE
    assert one.exchange.failed_authentications == [True]
    assert one.exchange.admitted is None


async def test_a_met_binding_is_let_in() -> None:
    """The names of the certificate are judged when there are any."""
    one = scene()
    one.exchange.names = PeerNames(frozenset({"urn:ql3:worker:worker-1"}), frozenset())
    await deliver(one.exchange, one.ports)
    assert one.exchange.sent == answer()


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "not recorded"])
async def test_an_unavailable_store_is_recorded_at_best(recorded: bool) -> None:
    """When the credential store fails the row is best effort: the answer is the store's, and nothing is spent."""
    one = scene()
    one.steps.plans["newest"] = refuse(Reason.CREDENTIAL_STORE)
    if not recorded:
        one.steps.plans["record"] = refuse(Reason.AUDIT_STORE)
    assert await refusal(one) is Reason.CREDENTIAL_STORE
    expected = [AuditRecord("request-1", "authentication_unavailable", None)] if recorded else []
    assert one.audit.records == expected
    assert "record" in one.touched
    assert one.exchange.failed_authentications == [False]


async def test_a_malformed_credential_row_is_the_stores_fault() -> None:
    """A column of a wrong type is no failed authentication."""
    one = scene()
    one.credentials.row = replace(valid.CREDENTIAL_ROW, version="3")
    assert await refusal(one) is Reason.CREDENTIAL_STORE
    assert one.audit.records == [AuditRecord("request-1", "authentication_unavailable", None)]
    assert one.exchange.failed_authentications == [False]


async def test_an_admission_is_recorded_with_its_principal() -> None:
    """The row `allowed` names the principal, and is written before the body is read."""
    one = scene()
    await deliver(one.exchange, one.ports)
    [record] = one.audit.records
    assert (record.request_id, record.outcome) == ("request-1", "allowed")
    assert record.principal is not None
    assert record.principal.authentication_id == "worker_credential:cred_1:3"
    assert isinstance(one.exchange.admitted, Admitted)
    assert one.exchange.admitted.principal is record.principal
    assert one.exchange.failed_authentications == [False]


async def test_a_malformed_credential_is_not_looked_up() -> None:
    """What is no credential reaches no store."""
    one = scene()
    one.exchange.header = b"Worker nothing"
    assert await refusal(one) is Reason.UNAUTHENTICATED
    assert one.touched == ["record"]


async def test_admitted_is_made_by_admit_alone() -> None:
    """Whoever calls the class gets TypeError."""
    one = scene()
    admitted = await admit(one.exchange, one.ports)
    assert isinstance(admitted, Admitted)
    for seal in (None, object(), True):
        with pytest.raises(TypeError, match="only admit"):
            Admitted(seal, admitted.principal)


# --- broken off ---------------------------------------------------------------------------------------------------


async def cancelled_at(one: Scene, step: str) -> BaseException | None:
    """Start the delivery, let it hang at `step`, cancel it there."""
    one.steps.plans[step] = None
    task = asyncio.create_task(deliver(one.exchange, one.ports))
    await asyncio.wait_for(one.steps.reached.wait(), 30)
    task.cancel()
    return await settle(task)


async def failed_at(one: Scene, step: str) -> BaseException | None:
    """Let `step` raise what nobody foresaw."""
    one.steps.plans[step] = raising(RuntimeError())
    return await settle(asyncio.create_task(deliver(one.exchange, one.ports)))


async def reset_at(one: Scene, step: str) -> BaseException | None:
    """Let `step` raise what a lost connection does."""
    one.steps.plans[step] = raising(ConnectionResetError())
    return await settle(asyncio.create_task(deliver(one.exchange, one.ports)))


async def late_at(one: Scene, step: str) -> BaseException | None:
    """Let the deadline pass while `step` hangs, as the edge watches it."""
    one.steps.plans[step] = None

    async def work() -> None:
        async with asyncio.timeout(None) as timer:
            watch = asyncio.create_task(one.steps.reached.wait())
            watch.add_done_callback(lambda _: timer.reschedule(asyncio.get_running_loop().time()))
            await deliver(one.exchange, one.ports)

    return await settle(asyncio.create_task(work()))


WAYS: list[tuple[Callable[[Scene, str], Any], type[BaseException]]] = [
    (cancelled_at, asyncio.CancelledError),
    (failed_at, RuntimeError),
    (reset_at, ConnectionResetError),
    (late_at, TimeoutError),
]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("way", "error"), WAYS, ids=[way.__name__ for way, _ in WAYS])
async def test_broken_off_at_any_step_nothing_is_left(
    step: str, way: Callable[[Scene, str], Any], error: type[BaseException]
) -> None:
    """Cancel, error, reset or deadline at any await: zeros, no hold, no place, no live authority, no byte too early."""
    one = scene(receipts=True)
    assert type(await way(one, step)) is error
    assert one.touched[: len(up_to(step))] == up_to(step)
    assert [entry for entry in one.touched if entry not in (*up_to(step), "close")] == []
    assert one.is_clean
    after_commit = EVERYTHING.index(step) > EVERYTHING.index("commit")
    assert all(hold.ended == ("commit" if after_commit else "rollback") for hold in one.store.holds)
    assert bool(one.exchange.sent) == (step == "acknowledge")
    assert isinstance(one.provider, RemoteProvider)
    if one.provider.authority is not None:
        with pytest.raises(RuntimeError, match="outside"):
            one.provider.authority.secret_refs  # noqa: B018


@pytest.mark.parametrize("step", ["resolve", "resolving", "commit"])
async def test_a_second_cancel_while_rolling_back_leaves_nothing(step: str) -> None:
    """A cancel that arrives while the first one's ROLLBACK is waited for still leaves zeros and no hold."""
    one = scene(receipts=True)
    one.steps.plans[step] = None
    task = asyncio.create_task(deliver(one.exchange, one.ports))
    await asyncio.wait_for(one.steps.reached.wait(), 30)
    one.steps.reached.clear()
    one.steps.plans["close"] = None
    task.cancel()
    await asyncio.wait_for(one.steps.reached.wait(), 30)
    task.cancel()
    assert type(await settle(task)) is asyncio.CancelledError
    assert one.is_clean
    assert one.exchange.sent == b""


async def test_a_cancelled_authentication_spends_nothing() -> None:
    """A peer that goes away before its credential was judged has not failed."""
    one = scene()
    assert type(await cancelled_at(one, "newest")) is asyncio.CancelledError
    assert one.exchange.failed_authentications == []


# --- material -----------------------------------------------------------------------------------------------------


def test_material_has_two_seconds() -> None:
    """The limit for reading material under the lock is the contract's (6.7)."""
    assert limits.MATERIAL_S == 2.0


@pytest.mark.parametrize("step", ["resolve", "resolving"])
async def test_a_provider_that_hangs_is_given_up(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its limit the lock is released, what was read is wiped, and the answer is that of a root that hangs."""
    monkeypatch.setattr(limits, "MATERIAL_S", 0.05)
    one = scene()
    one.steps.plans[step] = None
    assert await asyncio.wait_for(refusal(one), 10) is Reason.ROOT_UNAVAILABLE
    assert [hold.ended for hold in one.store.holds] == ["rollback"]
    assert one.is_clean


async def test_the_deadline_of_the_request_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the request's own time ends within the material's, it is the request that ran out of time."""
    monkeypatch.setattr(limits, "MATERIAL_S", 60)
    one = scene()
    assert type(await late_at(one, "resolving")) is TimeoutError
    assert one.is_clean


class Misfit(InlineProvider):
    """Brings what it was not asked for."""

    wrong: Callable[[list[Slot]], list[Slot]]

    async def resolve(self, authority: Authority, deadline: float) -> Batch:
        """Other slots, well filled."""
        asked = [Slot(ref, 1) for ref in authority.secret_refs]
        asked += [Slot(ref, 1, bundle=True) for ref in authority.bundle_refs]
        batch = Batch(self._pool, self.wrong(asked))
        for index in range(len(batch.slots)):
            batch.room(index)[:1] = b"x"
            batch.fill(index, 1)
        return batch


OTHER = SecretRef.of(valid.PROJECT, "other")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda slots: slots[:-1],
        lambda slots: slots[1:],
        lambda slots: [*slots, Slot(OTHER, 1)],
        lambda slots: [slots[1], slots[0], slots[2]],
        lambda slots: [Slot(OTHER, 1), *slots[1:]],
        lambda slots: [*slots[:2], Slot(slots[2].ref, 1)],
        lambda slots: [slots[2], *slots[:2]],
        lambda _slots: [Slot(OTHER, 1)],
    ],
    ids=["fewer", "first missing", "more", "reordered", "another", "bundle as secret", "bundle first", "one other"],
)
async def test_a_provider_that_brings_something_else_delivers_nothing(
    wrong: Callable[[list[Slot]], list[Slot]],
) -> None:
    """Exactly the refs of the authority, in their order, are delivered, whatever a provider brings."""
    one = scene()
    provider = Misfit(one.steps, one.pool)
    provider.wrong = wrong
    one.provider = provider
    assert await refusal(one) is Reason.MATERIAL_UNAVAILABLE
    assert "commit" not in one.touched
    assert one.exchange.sent == b""
    assert one.is_clean


class Lazy(InlineProvider):
    """Leaves a slot empty."""

    async def resolve(self, authority: Authority, deadline: float) -> Batch:
        """Rooms, and no value."""
        slots = [Slot(ref, 1) for ref in authority.secret_refs]
        return Batch(self._pool, [*slots, *(Slot(ref, 1, bundle=True) for ref in authority.bundle_refs)])


@pytest.mark.parametrize("with_receipts", [True, False], ids=["receipts", "no receipts"])
async def test_a_slot_that_was_never_filled_is_not_delivered(with_receipts: bool) -> None:
    """A provider that leaves a slot empty is a fault of the program: nothing is committed or sent."""
    one = scene(receipts=with_receipts)
    one.provider = Lazy(one.steps, one.pool)
    with pytest.raises(ValueError, match="no value"):
        await deliver(one.exchange, one.ports)
    assert "commit" not in one.touched
    assert one.is_clean


async def test_values_are_wiped_before_commit_is_waited_for() -> None:
    """Once the answer is laid out the batch is zero; only the answer's own buffer outlives the COMMIT."""
    one = scene()
    assert isinstance(one.provider, RemoteProvider)
    seen: list[int] = []

    def look() -> None:
        assert isinstance(one.provider, RemoteProvider)
        assert one.provider.batch is not None
        with pytest.raises(ValueError, match="no value"):
            one.provider.batch.value(0)
        seen.append(one.pool.outstanding)

    one.steps.plans["commit"] = look
    await deliver(one.exchange, one.ports)
    assert seen == [1]


async def test_everything_is_wiped_before_the_place_is_free() -> None:
    """The credential's place is given back when nothing of the request is in memory any more."""
    one = scene()
    await deliver(one.exchange, one.ports)
    assert one.exchange.zero_when_left


async def test_the_provider_sees_no_lease_token() -> None:
    """While material is read the lease token is in no variable of the pipeline (contract 6.6)."""
    one = scene(remote=False)
    found: list[str] = []

    class Curious(InlineProvider):
        async def resolve(self, authority: Authority, deadline: float) -> Batch:
            frame = sys._getframe()
            while frame.f_code is not deliver.__code__:
                assert frame.f_back is not None
                frame = frame.f_back
            known = {name: value for name, value in frame.f_locals.items() if name not in ("exchange", "ports")}
            found.extend(name for name, value in known.items() if leads_to(value, valid.LEASE_TOKEN))
            assert "command" in known
            return await super().resolve(authority, deadline)

    one.provider = Curious(one.steps, one.pool)
    await deliver(one.exchange, one.ports)
    assert found == []


# --- receipts -----------------------------------------------------------------------------------------------------


async def test_receipts_are_committed_and_then_acknowledged() -> None:
    """One receipt for each ref is in the COMMIT, and the very same are acknowledged after the last byte (6.8)."""
    one = scene(receipts=True)
    await deliver(one.exchange, one.ports)
    with Batch(one.pool, [Slot(ref, len(VALUES[ref]), ref == valid.BUNDLE) for ref in VALUES]) as batch:
        for index, value in enumerate(VALUES.values()):
            batch.room(index)[: len(value)] = value
            batch.fill(index, len(value))
        expected = receipts.draw(valid.PEPPER.receipt_key(), batch)
    assert one.store.holds[0].receipts == expected
    assert one.store.acknowledged == [(one.exchange.permit, expected)]
    assert one.steps.journal.index("send") < one.steps.journal.index("acknowledge")


async def test_without_receipts_none_are_written() -> None:
    """With receipts off the COMMIT has none, and nothing is acknowledged."""
    one = scene()
    await deliver(one.exchange, one.ports)
    assert one.store.holds[0].receipts == ()
    assert "acknowledge" not in one.touched


async def test_an_answer_that_could_not_be_sent_is_not_acknowledged() -> None:
    """A receipt `delivered` is written only after the last byte was handed over."""
    one = scene(receipts=True)
    assert type(await reset_at(one, "send")) is ConnectionResetError
    assert one.store.holds[0].receipts
    assert one.store.acknowledged == []


async def test_an_answer_over_its_limit_leaves_no_receipt() -> None:
    """A release that never was has no receipt: the answer is laid out before the COMMIT."""
    one = scene(receipts=True)
    one.response_limit = len(answer()) - 1
    assert await refusal(one) is Reason.OVER_BUDGET
    assert one.store.holds[0].receipts is None
    one.response_limit += 1
    await deliver(one.exchange, one.ports)
    assert one.exchange.sent == answer()


async def test_many_requests_share_one_pool() -> None:
    """Deliveries beside each other, some of them broken off at random steps, leave one clean pool."""
    pool = scene().pool
    tasks = []
    for number in range(40):
        one = scene(receipts=number % 2 == 0)
        one.pool = one.exchange.pool = pool
        one.provider = RemoteProvider(one.steps, pool)
        if number % 4 == 1:
            one.steps.plans[EVERYTHING[number % (len(EVERYTHING) - 1)]] = raising(RuntimeError())
        tasks.append(asyncio.create_task(deliver(one.exchange, one.ports)))
    ends = [await settle(task) for task in tasks]
    assert ends.count(None) == 30
    assert is_zero(pool)
