"""Stand-ins for everything around the pipeline. Each writes what was asked of it into one journal, in order.

Every place where the pipeline waits is a named step: a test can let it fail, hang or be cancelled exactly there.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from provider.authority import Authority, Permit, Tenure
from provider.command import Command
from provider.credential import CredentialRow, PeerNames, Principal
from provider.material import Batch, Slot
from provider.memory import BufferPool
from provider.outcomes import Reason, Refused, Stage
from provider.pipeline import Admitted
from provider.ports import AuditRecord, Ports, SecretProvider
from provider.receipts import Receipt
from provider.refs import SecretRef
from provider.snapshot import Snapshot
from provider.wire import Response
from tests.kit import valid

VALUES: Final[dict[SecretRef, bytes]] = {
    valid.TOKEN: b"CANARY-token \xc3\xa9",
    valid.KEY: b'CANARY-key "quoted"\n',
    valid.BUNDLE: b"CANARY-bundle A=1\nB=2\n",
}
"""The material of the valid."""

STEPS: Final = (
    "newest", "record", "body", "lock", "resolve", "resolving", "commit", "close", "send", "acknowledge",
)  # fmt: skip
"""Every step of one delivery, in order; `resolving` is in the midst of the second value."""


def is_zero(pool: BufferPool) -> bool:
    """Tell whether every buffer was given back and nothing but zeros is left in any of them."""
    idle = [mapping for mappings in pool._idle.values() for mapping in mappings]
    return pool.outstanding == 0 and all(mapping[:].count(0) == len(mapping) for mapping in idle)


@dataclass(slots=True)
class Steps:
    """The journal, and what happens at each step. Without a plan for it a step lets others run once and goes on."""

    journal: list[str] = field(default_factory=list)
    plans: dict[str, Callable[[], None] | None] = field(default_factory=dict)
    """A step's plan is called there; None hangs for ever."""
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a step hangs."""

    async def pause(self, step: str) -> None:
        """Be at `step`."""
        self.journal.append(step)
        plan = self.plans.get(step, _nothing)
        if plan is None:
            self.reached.set()
            await asyncio.Event().wait()
        else:
            await asyncio.sleep(0)
            plan()


def _nothing() -> None:
    return None


def refuse(reason: Reason) -> Callable[[], None]:
    """A plan: the step refuses."""
    return raising(Refused(reason))


def raising(error: BaseException) -> Callable[[], None]:
    """A plan: the step raises `error`."""

    def plan() -> None:
        raise error

    return plan


class FakeExchange:
    """One request of the valid valid."""

    def __init__(self, steps: Steps) -> None:
        """A good request; change its attributes to break a fact."""
        self.request_id = "request-1"
        self.worker_id = valid.WORKER
        self.session_id = valid.SESSION
        self.deadline = time.monotonic() + 60
        self.header: bytes | None = valid.AUTHORIZATION
        self.names: PeerNames | None = None
        self.content = valid.body()
        self.full = False
        self.occupied = 0
        self.failed_authentications: list[bool] = []
        self.admitted: object = None
        self.permit: object = None
        self.sent = b""
        self.zero_when_left = False
        self.pool: BufferPool | None = None
        self._steps = steps

    def enter(self, stage: Stage) -> None:
        """Note the stage."""
        self._steps.journal.append(f"enter {stage.value}")

    def authorization(self) -> bytes | None:
        """The header."""
        self._steps.journal.append("authorization")
        return self.header

    def peer_names(self) -> PeerNames | None:
        """The certificate's names."""
        return self.names

    def authentication_ended(self, *, failed: bool) -> None:
        """Note how it ended."""
        self.failed_authentications.append(failed)
        self._steps.journal.append("authentication failed" if failed else "authentication not failed")

    @contextmanager
    def occupy(self, principal: Principal) -> Iterator[None]:
        """Take the place, unless `full`; note at the end whether everything was wiped by then."""
        assert principal.credential_id == valid.CREDENTIAL
        self._steps.journal.append("occupy")
        if self.full:
            raise Refused(Reason.CREDENTIAL_IN_FLIGHT_LIMIT)
        self.occupied += 1
        try:
            yield
        finally:
            self.occupied -= 1
            self.zero_when_left = self.pool is None or is_zero(self.pool)
            self._steps.journal.append("vacate")

    async def body(self, admitted: Admitted) -> bytes:
        """The content."""
        self.admitted = admitted
        await self._steps.pause("body")
        return self.content

    async def send(self, permit: Permit, response: Response) -> None:
        """Keep a copy of the body, which only a fake may do."""
        await self._steps.pause("send")
        self.permit = permit
        with response.body() as view:
            self.sent = bytes(view)


class FakeCredentials:
    """Knows one row, or none."""

    def __init__(self, steps: Steps) -> None:
        """The world's row."""
        self.row: CredentialRow | None = valid.CREDENTIAL_ROW
        self._steps = steps

    async def newest(self, credential_id: str) -> tuple[CredentialRow | None, int]:
        """The row and the world's clock."""
        assert credential_id == valid.CREDENTIAL
        await self._steps.pause("newest")
        return self.row, valid.NOW_MS


class FakeAudit:
    """Keeps the records that it wrote."""

    def __init__(self, steps: Steps) -> None:
        """No record yet."""
        self.records: list[AuditRecord] = []
        self._steps = steps

    async def record(self, record: AuditRecord) -> None:
        """Keep it, unless the step fails."""
        await self._steps.pause("record")
        self.records.append(record)


class FakeHold:
    """A transaction that remembers how it ended."""

    def __init__(self, steps: Steps, snapshot: Snapshot) -> None:
        """Begin."""
        self.snapshot = snapshot
        self.tenure = Tenure()
        self.receipts: tuple[Receipt, ...] | None = None
        self.ended: str | None = None
        self._steps = steps

    async def commit(self, authority: Authority, receipts: tuple[Receipt, ...]) -> None:
        """Commit, unless the step fails: then nothing is confirmed."""
        assert authority.secret_refs + authority.bundle_refs
        await self._steps.pause("commit")
        self.receipts = receipts
        self.ended = "commit"
        self.tenure.open = False


class FakeAuthorityStore:
    """Holds the world's attempt; `holds` are all transactions that ever began."""

    def __init__(self, steps: Steps) -> None:
        """The valid snapshot."""
        self.snapshot = valid.SNAPSHOT
        self.holds: list[FakeHold] = []
        self.asked: list[tuple[Principal, Command, float, bool]] = []
        self.acknowledged: list[tuple[Permit, tuple[Receipt, ...]]] = []
        self._steps = steps

    @asynccontextmanager
    async def hold(
        self, principal: Principal, command: Command, deadline: float, *, slow_material: bool
    ) -> AsyncIterator[FakeHold]:
        """Begin, and end with ROLLBACK whatever was not committed."""
        self.asked.append((principal, command, deadline, slow_material))
        await self._steps.pause("lock")
        hold = FakeHold(self._steps, self.snapshot)
        self.holds.append(hold)
        try:
            yield hold
        finally:
            hold.tenure.open = False
            hold.ended = hold.ended or "rollback"
            self._steps.journal.append(f"ended by {hold.ended}")
            await self._steps.pause("close")

    async def acknowledge(self, permit: Permit, given: tuple[Receipt, ...]) -> None:
        """Keep it."""
        await self._steps.pause("acknowledge")
        self.acknowledged.append((permit, given))


class InlineProvider:
    """Reads at once, as the mounted provider does from local files."""

    def __init__(self, steps: Steps, pool: BufferPool) -> None:
        """The world's material."""
        self.values = dict(VALUES)
        self.authority: Authority | None = None
        self._steps = steps
        self._pool = pool

    def inline(self) -> bool:
        """It is."""
        return True

    async def resolve(self, authority: Authority, deadline: float) -> Batch:
        """Every value, without suspending."""
        self.authority = authority
        self._steps.journal.append("resolve")
        slots = [Slot(ref, len(self.values[ref])) for ref in authority.secret_refs]
        slots += [Slot(ref, len(self.values[ref]), bundle=True) for ref in authority.bundle_refs]
        with ExitStack() as custody:
            batch = custody.enter_context(Batch(self._pool, slots))
            for index, slot in enumerate(slots):
                batch.room(index)[: slot.size] = self.values[slot.ref]
                batch.fill(index, slot.size)
            custody.pop_all()
        return batch


class RemoteProvider:
    """A second, asynchronous provider: every value comes in pieces from a peer that takes its time.

    It has nothing in common with mounted files, and shows what the port asks of any provider: room before bytes, wiping
    on every way out, suspension wherever it waits.
    """

    def __init__(self, steps: Steps, pool: BufferPool) -> None:
        """The peer has the world's material."""
        self.values = dict(VALUES)
        self.authority: Authority | None = None
        self.deadline: float | None = None
        self.batch: Batch | None = None
        self._steps = steps
        self._pool = pool

    def inline(self) -> bool:
        """It is not."""
        return False

    async def resolve(self, authority: Authority, deadline: float) -> Batch:
        """Ask for the sizes, make room, then take piece after piece."""
        self.authority, self.deadline = authority, deadline
        refs = [(ref, False) for ref in authority.secret_refs] + [(ref, True) for ref in authority.bundle_refs]
        await self._steps.pause("resolve")
        with ExitStack() as custody:
            batch = custody.enter_context(Batch(self._pool, [Slot(ref, len(self.values[ref]), b) for ref, b in refs]))
            self.batch = batch
            for index, slot in enumerate(batch.slots):
                at = 0
                async for piece in self._peer(slot.ref):
                    batch.room(index)[at : at + len(piece)] = piece
                    at += len(piece)
                    if index == 1 and at < slot.size:
                        await self._steps.pause("resolving")
                batch.fill(index, at)
            custody.pop_all()
        return batch

    async def _peer(self, ref: SecretRef) -> AsyncIterator[memoryview]:
        value = memoryview(self.values[ref])
        middle = len(value) // 2
        for piece in (value[:middle], value[middle:]):
            await asyncio.sleep(0)
            yield piece


@dataclass(slots=True)
class Scene:
    """One request of the valid world and all that it meets."""

    steps: Steps
    pool: BufferPool
    exchange: FakeExchange
    credentials: FakeCredentials
    audit: FakeAudit
    store: FakeAuthorityStore
    provider: SecretProvider | None
    response_limit: int = 262_144
    receipt_key: bytes | None = None

    @property
    def ports(self) -> Ports:
        """What `deliver` is given."""
        return Ports(
            credentials=self.credentials,
            audit=self.audit,
            authority=self.store,
            provider=self.provider,
            peppers=valid.PEPPERS,
            pool=self.pool,
            response_limit=self.response_limit,
            receipt_key=self.receipt_key,
        )

    @property
    def touched(self) -> list[str]:
        """The steps that were reached, in order, without stages and endings."""
        return [entry for entry in self.steps.journal if entry in STEPS]

    @property
    def is_clean(self) -> bool:
        """Nothing is held, taken, occupied or readable any more."""
        return (
            is_zero(self.pool)
            and self.exchange.occupied == 0
            and all(hold.ended is not None and not hold.tenure.open for hold in self.store.holds)
        )


def scene(*, remote: bool = True, receipts: bool = False) -> Scene:
    """A valid request, with the remote or the inline provider."""
    steps, pool = Steps(), BufferPool()
    exchange = FakeExchange(steps)
    exchange.pool = pool
    return Scene(
        steps=steps,
        pool=pool,
        exchange=exchange,
        credentials=FakeCredentials(steps),
        audit=FakeAudit(steps),
        store=FakeAuthorityStore(steps),
        provider=RemoteProvider(steps, pool) if remote else InlineProvider(steps, pool),
        receipt_key=valid.PEPPER.receipt_key() if receipts else None,
    )


async def settle(task: "asyncio.Task[None]") -> BaseException | None:
    """Wait for `task` and return what it raised."""
    with suppress(asyncio.CancelledError):
        await asyncio.wait([task])
    return asyncio.CancelledError() if task.cancelled() else task.exception()
