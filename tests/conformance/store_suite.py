"""The suite: a class of tests over `Bed`. A store's test file subclasses it and gives the fixture `bed`."""

import asyncio
import json
import time
import uuid

import pytest

from provider import limits
from provider.authority import Authority, Permit, commit, verify
from provider.outcomes import Reason, Refused
from provider.ports import AuditRecord
from provider.receipts import Receipt
from tests.conformance.bed import Bed
from tests.conformance.cases import (
    CHANGED,
    FENCED,
    FOUND_BY,
    KEYS,
    NULL_REASONS,
    SECOND_REVISION,
    STORE,
    UNCOMPARED,
    Case,
)  # fmt: skip
from tests.kit.world import CREDENTIAL_ID, WORKER_ID, facts

COLUMNS = [(table, column) for table, row in facts(0, ()).items() for column in row]
RECEIPTS = (Receipt("a" * 64, "1" * 64, ("a1", "a2")), Receipt("b" * 64, "2" * 64, ("b1", "b2")))


def deadline(seconds: float = 15) -> float:
    """Return a request's deadline on the loop's clock."""
    return asyncio.get_running_loop().time() + seconds


async def ask(bed: Bed, *, slow: bool = False, receipts: tuple[Receipt, ...] = ()) -> tuple[Authority, Permit]:
    """Do what the pipeline does with the store, or raise Refused."""
    world = bed.world
    async with bed.store.hold(world.principal(), world.command(), deadline(), slow_material=slow) as hold:
        authority = verify(world.principal(), world.session_id, world.command(), hold)
        return authority, await commit(hold, authority, receipts)


async def refusal(bed: Bed) -> Reason:
    """Ask, and return why it was refused."""
    with pytest.raises(Refused) as caught:
        await ask(bed)
    return caught.value.reason


class StoreSuite:
    """Run by each store; every test begins with the same valid world."""

    async def test_the_valid_world_is_granted(self, bed: Bed) -> None:
        """A world in which every fact holds gives authority, again and again, and a permit that is still good."""
        for _ in range(2):
            authority, permit = await ask(bed)
            permit.check(asyncio.get_running_loop().time())
            assert (authority.attempt_id, authority.worker_id) == (bed.world.attempt_id, bed.world.worker_id)
            assert (authority.credential_id, authority.credential_version) == (CREDENTIAL_ID, 1)

    async def test_the_snapshot_holds_the_stores_clock(self, bed: Bed) -> None:
        """The clock is the store's, read while the hold stands, and paired with the monotonic clock before it."""
        world, loop = bed.world, asyncio.get_running_loop()
        before, began = time.time_ns() // 1_000_000, loop.time()
        async with bed.store.hold(world.principal(), world.command(), deadline(), slow_material=False) as hold:
            assert before - 100 <= hold.snapshot.now_ms <= time.time_ns() // 1_000_000 + 100
            assert began <= hold.snapshot.read_at <= loop.time()

    def test_the_cases_name_every_column(self) -> None:
        """Each column of the six tables has a case, or is named as one that no rule compares."""
        assert {(case.table, case.column) for case in CHANGED} | UNCOMPARED == set(COLUMNS)

    @pytest.mark.parametrize("case", CHANGED, ids=str)
    async def test_one_changed_fact_refuses(self, bed: Bed, case: Case) -> None:
        """A valid world with one other value in any column is refused for the contract's reason."""
        await bed.change(case.table, **{case.column: case.value})
        assert await refusal(bed) is case.reason

    @pytest.mark.parametrize("column", [c for c in COLUMNS if c not in KEYS | UNCOMPARED], ids=".".join)
    async def test_null_equals_nothing(self, bed: Bed, column: tuple[str, str]) -> None:
        """NULL in a column fails that column's rule; only `cancel_requested_at_ms` must be NULL."""
        table, name = column
        if name == "cancel_requested_at_ms":
            await bed.change(table, cancel_requested_at_ms=None)
            await ask(bed)
            return
        await bed.change(table, **{name: None})
        assert await refusal(bed) is NULL_REASONS.get(column, FENCED)

    @pytest.mark.parametrize("column", [c for c in COLUMNS if c not in FOUND_BY | UNCOMPARED], ids=".".join)
    async def test_a_wrong_type_is_the_stores_fault(self, bed: Bed, column: tuple[str, str]) -> None:
        """A value of a wrong type in a compared column is no answer, even where it would compare equal as text."""
        table, name = column
        right = bed.world.rows[table][name]
        # A store with typed columns holds no such value; it shows that by refusing to take it.
        for wrong in (b"\xff", 1.5, 7 if isinstance(right, str) else str(right)) if bed.untyped else ():
            await bed.change(table, **{name: wrong})
            # The plan's digest is compared in step 4, where whatever is not equal is a wrong scope.
            expected = Reason.SECRET_SCOPE_MISMATCH if name == "content_digest" else STORE
            assert await refusal(bed) is expected

    @pytest.mark.parametrize("table", list(facts(0, ())))
    async def test_a_missing_row_is_a_fence(self, bed: Bed, table: str) -> None:
        """An attempt whose run, lease, session, revision or credential is not there is fenced, and so is no attempt."""
        await bed.delete(table)
        assert await refusal(bed) is FENCED

    async def test_a_second_revision_is_the_stores_fault(self, bed: Bed) -> None:
        """Two revisions of one task revision are no answer, whichever of them would hold."""
        row = dict(bed.world.rows["task_execution_revisions"]) | SECOND_REVISION
        await bed.insert("task_execution_revisions", **row)
        assert await refusal(bed) is STORE

    async def test_another_executors_revision_does_not_count(self, bed: Bed) -> None:
        """A revision of the same task for another executor is not looked at."""
        row = dict(bed.world.rows["task_execution_revisions"]) | {"executor_type": "local", "plan_json": "[]"}
        await bed.insert("task_execution_revisions", **row)
        await ask(bed)

    @pytest.mark.parametrize("state", ["active", "revoked", "unheard of"])
    async def test_the_newest_credential_counts_in_any_state(self, bed: Bed, state: str) -> None:
        """A newer version of the credential, whatever its state, fences a request that authenticated with the older."""
        row = dict(bed.world.rows["worker_credentials"]) | {"version": 12, "state": state}
        await bed.insert("worker_credentials", **row)
        assert await refusal(bed) is FENCED
        newest, _ = await bed.store.newest(CREDENTIAL_ID)
        assert newest is not None
        assert (newest.version, newest.state) == (12, state)

    async def test_the_credential_row_arrives_whole(self, bed: Bed) -> None:
        """Every column of the newest row is handed over under its own name, with the store's clock."""
        before = time.time_ns() // 1_000_000
        newest, now_ms = await bed.store.newest(CREDENTIAL_ID)
        assert newest is not None
        row = bed.world.rows["worker_credentials"]
        assert {name: getattr(newest, name) for name in row} == row
        assert before - 100 <= now_ms <= time.time_ns() // 1_000_000 + 100

    async def test_an_unknown_credential_has_no_row(self, bed: Bed) -> None:
        """A credential that the store does not have is None, with a clock all the same."""
        newest, now_ms = await bed.store.newest("nobody")
        assert newest is None
        assert now_ms > 0

    async def test_many_at_once_are_told_apart(self, bed: Bed) -> None:
        """Of many that authenticate at once each is told of its own credential, its newest version, or that none is."""
        row = dict(bed.world.rows["worker_credentials"])
        for number in range(12):
            for version in (1, number + 2):
                await bed.insert("worker_credentials", **row | {"credential_id": f"c-{number}", "version": version})
        asked = [f"c-{number % 16}" for number in range(48)]  # four of sixteen have no row
        told = await asyncio.gather(*(bed.store.newest(one) for one in asked))
        assert [(found.credential_id, found.version) if found else None for found, _ in told] == [
            (one, int(one[2:]) + 2) if int(one[2:]) < 12 else None for one in asked
        ]
        assert all(now_ms > 0 for _, now_ms in told)

    async def test_many_at_once_are_recorded(self, bed: Bed) -> None:
        """Of many requests at once, let in or not, each leaves one row, and its own."""
        principal = bed.world.principal()
        records = [
            AuditRecord(f"request-{number}", "allowed", principal)
            if number % 3
            else AuditRecord(f"request-{number}", "authentication_rejected", None)
            for number in range(48)
        ]
        await asyncio.gather(*map(bed.store.record, records))
        rows = {str(row["request_id"]): row for row in await bed.rows("security_audit_events")}
        assert len(rows) == len(await bed.rows("security_audit_events")) == 48
        assert len({row["event_id"] for row in rows.values()}) == 48
        for record in records:
            row = rows[record.request_id]
            assert (row["outcome"], row["subject_id"]) == (
                record.outcome, None if record.principal is None else principal.worker_id
            )  # fmt: skip

    async def test_an_allowed_request_is_recorded(self, bed: Bed) -> None:
        """The row of an allowed request names worker and credential version; its event id is a fresh UUIDv4."""
        before = time.time_ns() // 1_000_000
        for number in range(2):
            await bed.store.record(AuditRecord(f"request-{number}", "allowed", bed.world.principal()))
        rows = await bed.rows("security_audit_events")
        assert [row["request_id"] for row in rows] == ["request-0", "request-1"]
        assert len({row["event_id"] for row in rows}) == 2
        row = rows[0]
        assert uuid.UUID(str(row.pop("event_id"))).version == 4
        occurred = row.pop("occurred_at_ms")
        assert isinstance(occurred, int)
        assert before - 100 <= occurred <= time.time_ns() // 1_000_000 + 100
        assert json.loads(str(row.pop("reasons"))) == ["worker_credential"]
        assert row == {
            "request_id": "request-0",
            "operation_id": "worker.secrets",
            "outcome": "allowed",
            "subject_type": "worker",
            "subject_id": WORKER_ID,
            "authentication_id": f"worker_credential:{CREDENTIAL_ID}:1",
        }

    @pytest.mark.parametrize("outcome", ["authentication_rejected", "authentication_unavailable"])
    async def test_a_failed_authentication_is_recorded_without_a_subject(self, bed: Bed, outcome: str) -> None:
        """The row of a failed authentication names nobody; its reason is its outcome."""
        await bed.store.record(AuditRecord("request", outcome, None))
        (row,) = await bed.rows("security_audit_events")
        assert [row[name] for name in ("subject_type", "subject_id", "authentication_id")] == [None, None, None]
        assert row["outcome"] == outcome
        assert json.loads(str(row["reasons"])) == [outcome]

    async def test_an_authority_dies_with_its_hold(self, bed: Bed) -> None:
        """Leaving the hold without COMMIT closes the tenure, so that the authority names no ref any more."""
        world = bed.world
        async with bed.store.hold(world.principal(), world.command(), deadline(), slow_material=False) as hold:
            authority = verify(world.principal(), world.session_id, world.command(), hold)
            assert authority.secret_refs == world.refs
        assert not hold.tenure.open
        with pytest.raises(RuntimeError):
            _ = authority.secret_refs

    async def test_there_is_no_second_commit(self, bed: Bed) -> None:
        """A hold commits once; what would commit again is refused and gets no permit."""
        world = bed.world
        async with bed.store.hold(world.principal(), world.command(), deadline(), slow_material=False) as hold:
            authority = verify(world.principal(), world.session_id, world.command(), hold)
            await commit(hold, authority, ())
            with pytest.raises(Refused) as caught:
                await commit(hold, authority, RECEIPTS)
        assert caught.value.reason is STORE
        assert await bed.rows("receipts") == []

    async def test_nothing_is_written_without_receipts(self, bed: Bed) -> None:
        """A delivery without receipts leaves every table as it was."""
        tables = [*bed.world.rows, "security_audit_events", "receipts"]
        before = [await bed.rows(table) for table in tables]
        await ask(bed)
        assert [await bed.rows(table) for table in tables] == before

    async def test_receipts_are_released_with_the_commit(self, bed: Bed) -> None:
        """One row `released` for each receipt is there once COMMIT is confirmed, and one `delivered` after it."""
        _, permit = await ask(bed, receipts=RECEIPTS)
        rows = await bed.rows("receipts")
        await bed.store.acknowledge(permit, RECEIPTS)
        both = await bed.rows("receipts")
        assert [row["kind"] for row in both] == ["released", "released", "delivered", "delivered"]
        assert rows == both[:2]
        assert len({row["receipt_id"] for row in both}) == 4
        for row, receipt in zip(both, RECEIPTS * 2, strict=True):
            assert (row["file_name"], row["mark"]) == (receipt.file_name, receipt.mark)
            assert (row["attempt_id"], row["worker_id"]) == (bed.world.attempt_id, WORKER_ID)
            assert (row["credential_id"], row["credential_version"]) == (CREDENTIAL_ID, 1)

    async def test_a_roll_back_leaves_no_receipt(self, bed: Bed) -> None:
        """A delivery that fails before its COMMIT was never released."""
        world = bed.world
        with pytest.raises(ZeroDivisionError):
            async with bed.store.hold(world.principal(), world.command(), deadline(), slow_material=False):
                raise ZeroDivisionError
        assert await bed.rows("receipts") == []
        await ask(bed)

    async def test_one_attempt_is_held_once_at_a_time(self, bed: Bed) -> None:
        """A second request of the same attempt waits for the first, and sees what was committed meanwhile."""
        world, held, order = bed.world, asyncio.Event(), []

        async def first() -> None:
            async with bed.store.hold(world.principal(), world.command(), deadline(), slow_material=True):
                held.set()
                await asyncio.sleep(0.05)
                order.append("first")

        async def second() -> None:
            await held.wait()
            await ask(bed, slow=True)
            order.append("second")

        await asyncio.gather(first(), second())
        assert order == ["first", "second"]

    async def test_a_busy_attempt_is_unavailable(self, bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
        """Waiting for the places ends: the request is refused and leaves the place to its holder."""
        world = bed.world
        monkeypatch.setattr(limits, "PLACES_WAIT_S", 0.05)
        async with bed.store.hold(world.principal(), world.command(), deadline(), slow_material=True):
            assert await refusal(bed) is STORE
        await ask(bed)

    async def test_the_requests_deadline_ends_a_wait(self, bed: Bed) -> None:
        """Where the request's own time runs out first, that is the reason."""
        world = bed.world
        async with bed.store.hold(world.principal(), world.command(), deadline(), slow_material=True):
            with pytest.raises(Refused) as caught:
                await bed.store.hold(
                    world.principal(), world.command(), deadline(0.05), slow_material=False
                ).__aenter__()
        assert caught.value.reason is Reason.DEADLINE

    async def test_a_cancelled_wait_leaves_nothing(self, bed: Bed) -> None:
        """A request that is cancelled while it waits, or while it holds, leaves no lock and no place behind."""
        world = bed.world

        async def holding() -> None:
            async with bed.store.hold(world.principal(), world.command(), deadline(), slow_material=True):
                await asyncio.sleep(60)

        for count in (1, 2, 3):
            tasks = [asyncio.create_task(holding()) for _ in range(count)]
            await asyncio.sleep(0.02)
            for task in reversed(tasks):
                task.cancel()
            assert await asyncio.gather(*tasks, return_exceptions=True) != []
            assert all(task.cancelled() for task in tasks)
            await ask(bed)
