"""The suite of the control plane: what its steps do to requests, on any store. See `store_suite` for how it is used."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

import pytest

from provider.authority import verify
from provider.credential import Pepper, Peppers, Principal, authenticate, make_token, present
from provider.outcomes import Reason, Refused
from provider.refs import SecretRef
from sidecar.client_offer import Offer
from sidecar.stores import control
from sidecar.stores.control import ControlRefused, Plan, Tx, Wrong
from tests.conformance.bed import Store
from tests.kit.world import PEPPER_TEXT, SECRET

T = TypeVar("T")
PEPPER = Pepper.parse(PEPPER_TEXT)
HOUR = 3_600_000
REFS = (SecretRef.of("project", "first"), SecretRef.of("project", "second", 2))
BUNDLE = SecretRef.of("project", "bundle", 1)
PLAN = Plan("project", "task", (("FIRST", REFS[0]), ("SECOND", REFS[1]), ("AGAIN", REFS[0])), None)


class Plane(Protocol):
    """An empty store, served and written."""

    @property
    def store(self) -> Store:
        """Its serve side."""

    def transaction(self, *, write: bool = True) -> AbstractAsyncContextManager[Tx]:
        """As `ControlDb.transaction`."""

    async def change(self, table: str, **columns: object) -> None:
        """Change columns of every row of a table, as another program would."""

    async def dump(self) -> object:
        """Return every row of every table, to compare."""


async def do(plane: Plane, step: Callable[[Tx], Awaitable[T]]) -> T:
    """Run a step in a transaction of its own."""
    async with plane.transaction() as tx:
        return await step(tx)


async def refused(plane: Plane, step: Callable[[Tx], Awaitable[object]]) -> Wrong:
    """Run a step that is refused, show that it changed nothing, and return whose fault it was."""
    before = await plane.dump()
    with pytest.raises(ControlRefused) as caught:
        await do(plane, step)
    assert await plane.dump() == before
    assert caught.value.wrong
    assert caught.value.mend
    return caught.value.kind


async def enrolled(plane: Plane, worker: str = "worker", credential: str = "credential", secret: bytes = SECRET) -> int:
    """Enroll a worker for an hour and return its credential's version."""
    digest = PEPPER.digest(credential, secret)
    return (await do(plane, lambda tx: control.enroll(tx, worker, credential, digest, HOUR))).number


async def with_session(plane: Plane, worker: str = "worker") -> None:
    """Enroll a worker and open a session for it."""
    await enrolled(plane, worker)
    await do(plane, lambda tx: control.open_session(tx, worker, HOUR))


async def dispatched(plane: Plane, plan: Plan = PLAN) -> Offer:
    """Dispatch a plan for an hour and return its offer, read as a worker reads it."""
    document = await do(plane, lambda tx: control.dispatch(tx, "worker", plan, HOUR))
    return Offer.parse(json.dumps(document).encode())


async def authenticated(plane: Plane, secret: bytes = SECRET) -> Principal:
    """Authenticate as the worker does, or raise Refused."""
    row, now_ms = await plane.store.newest("credential")
    token = make_token("credential", secret)
    return authenticate(present(f"Worker {token}".encode()), "worker", row, now_ms, Peppers(PEPPER, None))


async def asked(plane: Plane, offer: Offer, principal: Principal | None = None) -> Reason | None:
    """Ask for the offer's secrets; return None when they were granted, else the reason."""
    who = principal or await authenticated(plane)
    deadline = asyncio.get_running_loop().time() + 15
    async with plane.store.hold(who, offer.command, deadline, slow_material=False) as hold:
        try:
            authority = verify(who, offer.session_id, offer.command, hold)
        except Refused as refusal:
            return refusal.reason
        assert authority.secret_refs == offer.command.secret_refs
        return None


class ControlSuite:
    """Run by each store, each test on an empty one."""

    async def test_a_dispatched_offer_is_granted(self, plane: Plane) -> None:
        """Enroll, open a session, dispatch: the offer is well formed and its secrets are granted, in plan order."""
        await with_session(plane)
        offer = await dispatched(plane)
        assert offer.worker_id == "worker"
        assert offer.command.secret_refs == REFS
        assert offer.environment == PLAN.environment
        assert offer.command.execution_digest == PLAN.digest
        assert await asked(plane, offer) is None

    @pytest.mark.parametrize("secrets", [(), PLAN.environment], ids=["bundle alone", "both"])
    async def test_a_bundle_makes_the_second_schema(
        self, plane: Plane, secrets: tuple[tuple[str, SecretRef], ...]
    ) -> None:
        """A plan with a bundle is offered in `@v2`, also when it has no other secret."""
        await with_session(plane)
        offer = await dispatched(plane, Plan("project", "task", secrets, BUNDLE))
        assert offer.command.bundle_refs == (BUNDLE,)
        assert await asked(plane, offer) is None

    async def test_a_renewed_lease_fences_the_offer_before(self, plane: Plane) -> None:
        """After `renew` the old version is fenced and the next one granted, with the new end."""
        await with_session(plane)
        offer = await dispatched(plane)
        command = offer.command
        given = await do(plane, lambda tx: control.renew(tx, command.attempt_id, command.lease_token_digest, 2 * HOUR))
        assert given.number == command.expected_lease_version + 1
        assert given.expires_at_ms > offer.lease_expires_at_ms
        assert await asked(plane, offer) is Reason.AUTHORITY_MISMATCH
        document = json.loads(offer.body) | {"expectedLeaseVersion": given.number, "workerId": offer.worker_id}
        document |= {"sessionId": offer.session_id, "leaseExpiresAtMs": given.expires_at_ms}
        document["environment"] = [{"name": name, "secretRef": ref.text} for name, ref in offer.environment]
        assert await asked(plane, Offer.parse(json.dumps(document).encode())) is None

    async def test_a_started_attempt_gets_no_secrets(self, plane: Plane) -> None:
        """`start` sets attempt and run to running, once; its secrets are fenced from then on."""
        await with_session(plane)
        offer = await dispatched(plane)
        command = offer.command
        await do(plane, lambda tx: control.start(tx, command.attempt_id, command.lease_token_digest))
        assert await asked(plane, offer) is Reason.AUTHORITY_MISMATCH
        again = await refused(plane, lambda tx: control.start(tx, command.attempt_id, command.lease_token_digest))
        assert again is Wrong.STATE
        assert await states(plane, command.run_id) == ("running", "running", "leased")

    async def test_a_cancelled_run_gets_no_secrets(self, plane: Plane) -> None:
        """`cancel` fences the attempts at once; a second one changes nothing; nothing starts or is renewed."""
        await with_session(plane)
        offer = await dispatched(plane)
        run, attempt, digest = offer.command.run_id, offer.command.attempt_id, offer.command.lease_token_digest
        assert await do(plane, lambda tx: control.cancel(tx, run))
        assert await asked(plane, offer) is Reason.AUTHORITY_MISMATCH
        assert not await do(plane, lambda tx: control.cancel(tx, run))
        assert await refused(plane, lambda tx: control.start(tx, attempt, digest)) is Wrong.STATE
        assert await refused(plane, lambda tx: control.renew(tx, attempt, digest, HOUR)) is Wrong.STATE
        assert await do(plane, lambda tx: control.release(tx, attempt))
        assert await states(plane, run) == ("cancelled", "cancelled", "released")

    async def test_a_released_attempt_is_over(self, plane: Plane) -> None:
        """`release` ends lease, attempt and run; nothing more can be done with them."""
        await with_session(plane)
        offer = await dispatched(plane)
        run, attempt, digest = offer.command.run_id, offer.command.attempt_id, offer.command.lease_token_digest
        assert await do(plane, lambda tx: control.release(tx, attempt))
        assert await asked(plane, offer) is Reason.AUTHORITY_MISMATCH
        assert not await do(plane, lambda tx: control.release(tx, attempt))
        assert await states(plane, run) == ("released", "released", "released")
        assert set(await states(plane, run)) <= set(control.TERMINAL)
        assert await refused(plane, lambda tx: control.renew(tx, attempt, digest, HOUR)) is Wrong.STATE
        assert await refused(plane, lambda tx: control.cancel(tx, run)) is Wrong.STATE

    async def test_a_run_ends_with_its_last_attempt(self, plane: Plane) -> None:
        """A run of which another attempt is live stays as it is when one is released."""
        await with_session(plane)
        first, second = await dispatched(plane), await dispatched(plane)
        async with plane.transaction() as tx:
            await tx.execute(
                "UPDATE run_attempts SET run_id = ? WHERE id = ?", first.command.run_id, second.command.attempt_id
            )
        await do(plane, lambda tx: control.release(tx, first.command.attempt_id))
        document = await do(plane, lambda tx: control.show(tx, first.command.run_id))
        runs = document["runs"]
        assert isinstance(runs, list)
        assert runs[0]["status"] == "dispatching"

    async def test_a_draining_worker_finishes_what_it_has(self, plane: Plane) -> None:
        """After `drain` what was dispatched is granted still, and nothing new is dispatched."""
        await with_session(plane)
        offer = await dispatched(plane)
        assert await do(plane, lambda tx: control.drain(tx, "worker"))
        assert not await do(plane, lambda tx: control.drain(tx, "worker"))
        assert await asked(plane, offer) is None
        assert await refused(plane, lambda tx: control.dispatch(tx, "worker", PLAN, HOUR)) is Wrong.STATE

    async def test_a_new_session_fences_what_the_old_one_held(self, plane: Plane) -> None:
        """Each session is of the next generation, and takes the place of the one before."""
        await with_session(plane)
        offer = await dispatched(plane)
        session, given = await do(plane, lambda tx: control.open_session(tx, "worker", HOUR))
        assert given.number == offer.command.worker_generation + 1
        assert session != offer.session_id
        assert await asked(plane, offer) is Reason.AUTHORITY_MISMATCH
        assert await asked(plane, await dispatched(plane)) is None

    async def test_a_revoked_credential_is_worth_nothing(self, plane: Plane) -> None:
        """`revoke_credential` ends authentication, fences who has authenticated already, and can be taken back."""
        await with_session(plane)
        offer, principal = await dispatched(plane), await authenticated(plane)
        assert await do(plane, lambda tx: control.revoke_credential(tx, "credential"))
        assert not await do(plane, lambda tx: control.revoke_credential(tx, "credential"))
        with pytest.raises(Refused):
            await authenticated(plane)
        assert await asked(plane, offer, principal) is Reason.AUTHORITY_MISMATCH
        assert await refused(plane, lambda tx: control.dispatch(tx, "worker", PLAN, HOUR)) is Wrong.INPUT
        assert await enrolled(plane) == 2
        assert await asked(plane, offer) is None

    async def test_the_next_version_ends_the_one_before(self, plane: Plane) -> None:
        """Enrolling again adds a version: only its secret authenticates, and the older principal is fenced."""
        await with_session(plane)
        offer, principal = await dispatched(plane), await authenticated(plane)
        other = b"\x03" * 32
        assert await enrolled(plane, secret=other) == 2
        with pytest.raises(Refused):
            await authenticated(plane)
        assert await asked(plane, offer, principal) is Reason.AUTHORITY_MISMATCH
        assert await asked(plane, offer, await authenticated(plane, other)) is None

    async def test_a_worker_may_have_several_credentials(self, plane: Plane) -> None:
        """Another credential id is another credential; while one of them is good the worker is enrolled."""
        await enrolled(plane)
        assert await enrolled(plane, credential="second") == 1
        await do(plane, lambda tx: control.revoke_credential(tx, "credential"))
        await do(plane, lambda tx: control.open_session(tx, "worker", HOUR))

    async def test_one_plan_is_one_revision(self, plane: Plane) -> None:
        """The same plan again is the same revision; another is the next one, and so is the first one after that."""
        await with_session(plane)
        other = Plan("project", "task", PLAN.environment[:1], None)
        offers = [await dispatched(plane, plan) for plan in (PLAN, PLAN, other, PLAN)]
        assert [int(offer.command.task_revision.split(":")[2]) for offer in offers] == [1, 1, 2, 3]
        elsewhere = await dispatched(plane, Plan("project", "other task", PLAN.environment, None))
        assert elsewhere.command.task_revision.split(":")[2] == "1"
        assert [await asked(plane, offer) for offer in offers] == [None] * 4

    async def test_everything_unknown_is_bad_input(self, plane: Plane) -> None:
        """An id that the store does not have is the asker's fault, and nothing is written for it."""
        digest = "0" * 64
        for step in (
            lambda tx: control.open_session(tx, "worker", HOUR),
            lambda tx: control.drain(tx, "worker"),
            lambda tx: control.dispatch(tx, "worker", PLAN, HOUR),
            lambda tx: control.revoke_credential(tx, "credential"),
            lambda tx: control.renew(tx, "attempt", digest, HOUR),
            lambda tx: control.start(tx, "attempt", digest),
            lambda tx: control.cancel(tx, "run"),
            lambda tx: control.release(tx, "attempt"),
            lambda tx: control.show(tx, "anything"),
        ):
            assert await refused(plane, step) is Wrong.INPUT

    async def test_another_workers_credential_is_not_taken(self, plane: Plane) -> None:
        """A credential id belongs to the worker that it was first enrolled for."""
        await enrolled(plane)
        digest = PEPPER.digest("credential", SECRET)
        step = await refused(plane, lambda tx: control.enroll(tx, "other", "credential", digest, HOUR))
        assert step is Wrong.INPUT

    async def test_another_lease_token_moves_nothing(self, plane: Plane) -> None:
        """Only who has the attempt's lease token renews or starts it."""
        await with_session(plane)
        attempt = (await dispatched(plane)).command.attempt_id
        assert await refused(plane, lambda tx: control.renew(tx, attempt, "0" * 64, HOUR)) is Wrong.INPUT
        assert await refused(plane, lambda tx: control.start(tx, attempt, "0" * 64)) is Wrong.INPUT

    @pytest.mark.parametrize(
        ("table", "column"), [("worker_sessions", "lease_expires_at_ms"), ("worker_credentials", "expires_at_ms")]
    )
    async def test_what_is_over_is_not_dispatched_to(self, plane: Plane, table: str, column: str) -> None:
        """A worker whose session or credential has ended gets nothing new."""
        await with_session(plane)
        await plane.change(table, **{column: 1})
        await refused(plane, lambda tx: control.dispatch(tx, "worker", PLAN, HOUR))

    async def test_a_lease_that_is_over_is_not_renewed(self, plane: Plane) -> None:
        """An expired lease stays over, since something else may count on its end; it can be released."""
        await with_session(plane)
        command = (await dispatched(plane)).command
        await plane.change("run_dispatch_leases", expires_at_ms=1)
        digest = command.lease_token_digest
        assert await refused(plane, lambda tx: control.renew(tx, command.attempt_id, digest, HOUR)) is Wrong.STATE
        assert await do(plane, lambda tx: control.release(tx, command.attempt_id))

    @pytest.mark.parametrize("ttl", [0, -1, control.LONGEST_TTL_MS + 1])
    async def test_nothing_is_given_for_ever(self, plane: Plane, ttl: int) -> None:
        """A time to live is at least a millisecond and at most ten years."""
        await with_session(plane)
        command = (await dispatched(plane)).command
        for step in (
            lambda tx: control.enroll(tx, "worker", "credential", "0" * 64, ttl),
            lambda tx: control.open_session(tx, "worker", ttl),
            lambda tx: control.dispatch(tx, "worker", PLAN, ttl),
            lambda tx: control.renew(tx, command.attempt_id, command.lease_token_digest, ttl),
        ):
            assert await refused(plane, step) is Wrong.INPUT

    @pytest.mark.parametrize(
        ("table", "column"),
        [
            ("worker_credentials", "version"),
            ("worker_sessions", "generation"),
            ("run_dispatch_leases", "version"),
            ("task_execution_revisions", "source_revision"),
        ],
    )
    async def test_numbers_end_where_the_contract_ends_them(self, plane: Plane, table: str, column: str) -> None:
        """A version or generation beyond the contract's bound is never given out."""
        await with_session(plane)
        command = (await dispatched(plane)).command
        other = Plan("project", "task", PLAN.environment[:1], None)
        await plane.change(table, **{column: 2_147_483_647})
        steps: dict[str, Callable[[Tx], Awaitable[object]]] = {
            "worker_credentials": lambda tx: control.enroll(tx, "worker", "credential", "0" * 64, HOUR),
            "worker_sessions": lambda tx: control.open_session(tx, "worker", HOUR),
            "run_dispatch_leases": lambda tx: control.renew(tx, command.attempt_id, command.lease_token_digest, HOUR),
            "task_execution_revisions": lambda tx: control.dispatch(tx, "worker", other, HOUR),
        }
        assert await refused(plane, steps[table]) is Wrong.STATE

    async def test_show_tells_what_there_is(self, plane: Plane) -> None:
        """Without an id all workers and live runs are shown; an id of a run, attempt or worker shows what it names."""
        await with_session(plane)
        await enrolled(plane, "idle", "idle")
        live, over = await dispatched(plane), await dispatched(plane)
        await do(plane, lambda tx: control.release(tx, over.command.attempt_id))

        async def ids(what: str | None) -> tuple[list[object], list[object]]:
            document = await do(plane, lambda tx: control.show(tx, what))
            workers, runs = document["workers"], document["runs"]
            assert isinstance(workers, list)
            assert isinstance(runs, list)
            return [worker["workerId"] for worker in workers], [run["runId"] for run in runs]

        assert await ids(None) == (["idle", "worker"], [live.command.run_id])
        assert await ids("worker") == (["worker"], [live.command.run_id])
        assert await ids("idle") == (["idle"], [])
        for offer in (live, over):
            assert await ids(offer.command.run_id) == ([], [offer.command.run_id])
            assert await ids(offer.command.attempt_id) == ([], [offer.command.run_id])

    async def test_show_keeps_digests_and_tokens_to_itself(self, plane: Plane) -> None:
        """Nothing that `show` returns is a digest, a lease token or a plan."""
        await with_session(plane)
        offer = await dispatched(plane)
        shown = json.dumps(await do(plane, lambda tx: control.show(tx, None)))
        hidden = [offer.command.lease_token_digest, json.loads(offer.body)["leaseToken"], REFS[0].text]
        hidden.append(PEPPER.digest("credential", SECRET))
        assert not [text for text in hidden if text in shown]

    async def test_a_step_that_fails_leaves_nothing(self, plane: Plane) -> None:
        """Whatever leaves a transaction by an exception rolls back all of it."""
        await with_session(plane)
        before = await plane.dump()
        with pytest.raises(ZeroDivisionError):
            async with plane.transaction() as tx:
                await control.dispatch(tx, "worker", PLAN, HOUR)
                raise ZeroDivisionError
        assert await plane.dump() == before
        assert await asked(plane, await dispatched(plane)) is None


async def states(plane: Plane, run_id: str) -> tuple[str, str, str]:
    """Return the states of a run, its one attempt and that one's lease."""
    document = await do(plane, lambda tx: control.show(tx, run_id))
    runs = document["runs"]
    assert isinstance(runs, list)
    (attempt,) = runs[0]["attempts"]
    return runs[0]["status"], attempt["status"], attempt["lease"]["status"]
