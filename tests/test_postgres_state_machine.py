"""Random steps of the control plane between, before and during fetches, over both stores, against a model.

Whatever is delivered was authorised at the moment its files were read, and what was authorised is delivered.
"""

import asyncio
import hashlib
import json
import sqlite3
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from provider.authority import Authority, Permit
from provider.credential import PeerNames, Peppers, Principal, make_token
from provider.material import Batch, Slot
from provider.memory import BufferPool
from provider.outcomes import Reason, Refused, Stage
from provider.pipeline import Admitted, deliver
from provider.ports import AuditRecord, Ports
from provider.wire import Response
from sidecar.stores import control, postgres_control
from sidecar.stores.control import ControlDb, ControlRefused, Tx
from sidecar.stores.postgres import PostgresStore
from sidecar.stores.postgres_control import PostgresControl
from sidecar.stores.sqlite import SqliteStore
from sidecar.stores.sqlite_control import SqliteControl
from sidecar.stores.sqlite_make import create
from tests.conformance.bed import Store
from tests.conformance.control_suite import HOUR, PEPPER, PLAN
from tests.kit.environments import GATE
from tests.kit.fakes import is_zero
from tests.kit.postgres import Database
from tests.kit.world import facts

WORKER, CREDENTIAL = "worker", "credential"
VALUE = b"a value"
TABLES = (*facts(0, ()), "security_audit_events")
BLOCKED_S = 0.03
"""How long a step that the attempt's lock must hold back gets to show that it is not held back."""
DELIVERED = "delivered"


class Rig(Protocol):
    """A store that is served here, and written from a thread of its own."""

    @property
    def store(self) -> Store:
        """Its serve side."""

    @property
    def locks_all(self) -> bool:
        """Whether a hold keeps every writer waiting, not only those of its attempt."""

    def plane(self) -> AbstractAsyncContextManager[ControlDb]:
        """Its control plane, for the loop in which it is entered."""

    def reset(self) -> None:
        """Empty every table."""


@dataclass
class SqliteRig:
    """A file."""

    path: Path
    store: SqliteStore
    locks_all: bool = True

    @asynccontextmanager
    async def plane(self) -> AsyncIterator[ControlDb]:
        """Open the file once more."""
        with SqliteControl(str(self.path)) as plane:
            yield plane

    def reset(self) -> None:
        """Delete every row."""
        with closing(sqlite3.connect(self.path, timeout=10)) as connection, connection:
            for table in TABLES:
                connection.execute(f"DELETE FROM {table}")


@dataclass
class PostgresRig:
    """A database, served by the role and written by the owner."""

    database: Database
    store: PostgresStore
    locks_all: bool = False

    def plane(self) -> PostgresControl:
        """Log in as the owner."""
        from sidecar.config import store_from_environment

        owner = store_from_environment(GATE | self.database.environment(), admin_url=self.database.admin_url).postgres
        assert owner is not None
        return PostgresControl(owner)

    def reset(self) -> None:
        """Truncate."""
        self.database.execute(f"TRUNCATE {', '.join(TABLES)}")


class Outside:
    """A thread with a loop, in which steps run as another program's would."""

    def __init__(self, rig: Rig) -> None:
        """Start it."""
        self._rig = rig
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._plane: Any = None
        self._enter: Any = None
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(30)

    async def _open(self) -> None:
        self._enter = self._rig.plane()
        self._plane = await self._enter.__aenter__()

    def start(self, step: Callable[[Tx], Awaitable[object]]) -> "Future[object]":
        """Begin a step in a transaction of its own; its result is None when the control plane refused it."""

        async def run() -> object:
            try:
                async with self._plane.transaction() as tx:
                    return await step(tx) or True
            except ControlRefused:
                return None

        return asyncio.run_coroutine_threadsafe(run(), self._loop)

    def close(self) -> None:
        """End the thread."""
        asyncio.run_coroutine_threadsafe(self._enter.__aexit__(None, None, None), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()


@dataclass
class Attempt:
    """What is true of an attempt."""

    offer: dict[str, Any]
    lease_version: int = 1
    starting: bool = True

    @property
    def id(self) -> str:
        """Its id."""
        return str(self.offer["attemptId"])

    def body(self, lease_version: int) -> bytes:
        """Return a request's body under that lease version."""
        own = ("workerId", "sessionId", "leaseExpiresAtMs", "environment")
        document = {key: value for key, value in self.offer.items() if key not in own}
        return json.dumps(document | {"expectedLeaseVersion": lease_version}).encode()


@dataclass
class Model:
    """What is true of everything."""

    secrets: list[bytes] = field(default_factory=list)
    """The secret of each version of the credential; the last one counts."""
    revoked: bool = False
    session_id: str = ""
    attempts: list[Attempt] = field(default_factory=list)

    def authentic(self, secret: bytes) -> bool:
        """Whether a secret is good now."""
        return not self.revoked and secret == self.secrets[-1]

    def authorised(self, attempt: Attempt, lease_version: int, secret: bytes) -> bool:
        """Whether a request is."""
        mine = attempt.offer["sessionId"] == self.session_id
        return self.authentic(secret) and mine and attempt.starting and attempt.lease_version == lease_version


@dataclass
class Step:
    """A step, what it makes true when it was done, and the attempt whose lock it needs."""

    run: Callable[[Tx], Awaitable[object]]
    done: Callable[[object], None]
    locks: str | None


@dataclass
class Request:
    """One request: the exchange, the audit and the provider of one run of the pipeline."""

    machine: "Machine"
    attempt: Attempt
    lease_version: int
    secret: bytes
    before: Step | None
    during: Step | None
    authentic: bool = False
    authorised: bool = False
    running: "Future[object] | None" = None
    sent: bytes | None = None
    request_id: str = "request"
    worker_id: str = WORKER
    deadline: float = 0.0
    session_id: str = ""

    def __post_init__(self) -> None:
        """The session is the attempt's."""
        self.session_id = str(self.attempt.offer["sessionId"])

    def enter(self, stage: Stage) -> None:
        """Nothing is measured here."""

    def authorization(self) -> bytes:
        """The token; this is the moment in which it is judged."""
        self.authentic = self.machine.model.authentic(self.secret)
        return f"Worker {make_token(CREDENTIAL, self.secret)}".encode()

    def peer_names(self) -> PeerNames | None:
        """No binding."""
        return None

    def authentication_ended(self, *, failed: bool) -> None:
        """It ends as the model says."""
        assert failed is not self.authentic

    def occupy(self, principal: Principal) -> "nullcontext[None]":
        """There is room."""
        return nullcontext()

    async def body(self, admitted: Admitted) -> bytes:
        """Whatever happens between authentication and lock happens here."""
        if self.before is not None:
            result = await asyncio.wrap_future(self.machine.outside.start(self.before.run))
            self.machine.apply(self.before, result)
        self.authorised = self.machine.model.authorised(self.attempt, self.lease_version, self.secret)
        return self.attempt.body(self.lease_version)

    async def record(self, record: AuditRecord) -> None:
        """To the store, and nowhere else."""
        await self.machine.rig.store.record(record)

    def inline(self) -> bool:
        """It waits."""
        return False

    async def resolve(self, authority: Authority, deadline: float) -> Batch:
        """Read the files, while a step wants to change what they were given out for."""
        if self.during is not None:
            self.running = self.machine.outside.start(self.during.run)
            await asyncio.wait({asyncio.wrap_future(self.running)}, timeout=BLOCKED_S)
            if self.during.locks == self.attempt.id or self.machine.rig.locks_all:
                assert not self.running.done(), "the attempt's lock held nobody back"
        with ExitStack() as custody:
            batch = custody.enter_context(
                Batch(self.machine.pool, [Slot(ref, len(VALUE)) for ref in authority.secret_refs])
            )
            for index, slot in enumerate(batch.slots):
                batch.room(index)[: slot.size] = VALUE
                batch.fill(index, slot.size)
            custody.pop_all()
        return batch

    async def send(self, permit: Permit, response: Response) -> None:
        """Keep what was sent."""
        with response.body() as view:
            self.sent = bytes(view)


class Machine(RuleBasedStateMachine):
    """Steps and fetches in any order, some in each other's midst."""

    rig: ClassVar[Rig]
    runner: ClassVar[asyncio.Runner]
    outside: ClassVar[Outside]
    seen: ClassVar["Counter[str]"]

    def __init__(self) -> None:
        """Begin with nothing."""
        super().__init__()
        self.rig.reset()
        self.model = Model()
        self.pool = BufferPool()

    @initialize()
    def ready(self) -> None:
        """A worker with a session and one attempt."""
        self.revive()

    @rule()
    def revive(self) -> None:
        """A new credential, session and attempt, so that many fetches get somewhere."""
        for kind in ("enroll", "open_session", "dispatch"):
            self.do(self.step(kind, 0))
        assert self.model.attempts

    def step(self, kind: str, number: int) -> Step:
        """Return a step of that kind, on one of the attempts where it is on any."""
        model = self.model
        attempts = model.attempts
        attempt = attempts[-1 - number % len(attempts)] if attempts else Attempt({})
        secret = hashlib.sha256(bytes([len(model.secrets)])).digest()
        token = str(attempt.offer.get("leaseToken"))
        token_digest = hashlib.sha256(token.encode()).hexdigest()

        def enrolled(given: object) -> None:
            model.secrets.append(secret)
            model.revoked = False

        def revoked(_: object) -> None:
            model.revoked = True

        def opened(given: Any) -> None:
            model.session_id = given[0]

        def dispatched(offer: Any) -> None:
            attempts.append(Attempt(offer))

        def renewed(given: Any) -> None:
            attempt.lease_version = given.number

        def over(_: object) -> None:
            attempt.starting = False

        digest = PEPPER.digest(CREDENTIAL, secret)
        steps: dict[str, Step] = {
            "enroll": Step(lambda tx: control.enroll(tx, WORKER, CREDENTIAL, digest, HOUR), enrolled, None),
            "revoke": Step(lambda tx: control.revoke_credential(tx, CREDENTIAL), revoked, None),
            "open_session": Step(lambda tx: control.open_session(tx, WORKER, HOUR), opened, None),
            "drain": Step(lambda tx: control.drain(tx, WORKER), lambda _: None, None),
            "dispatch": Step(lambda tx: control.dispatch(tx, WORKER, PLAN, HOUR), dispatched, None),
            "renew": Step(lambda tx: control.renew(tx, attempt.id, token_digest, HOUR), renewed, "attempt"),
            "start": Step(lambda tx: control.start(tx, attempt.id, token_digest), over, "attempt"),
            "cancel": Step(lambda tx: control.cancel(tx, str(attempt.offer["runId"])), over, "attempt"),
            "release": Step(lambda tx: control.release(tx, attempt.id), over, "attempt"),
        }
        chosen = steps[kind]
        return chosen if chosen.locks is None else Step(chosen.run, chosen.done, attempt.id)

    def do(self, step: Step) -> None:
        """Do a step now."""
        self.apply(step, self.outside.start(step.run).result(30))

    def apply(self, step: Step, result: object) -> None:
        """Note what a step has made true, unless it was refused."""
        if result is not None:
            step.done(result)

    @rule(kind=st.sampled_from(["enroll", "revoke", "open_session", "drain", "dispatch", "dispatch", "renew", "start",
                                "cancel", "release"]), number=st.integers(0, 2))  # fmt: skip
    def change(self, kind: str, number: int) -> None:
        """A step of the control plane, while nobody fetches."""
        self.do(self.step(kind, number))

    steps = st.none() | st.tuples(
        st.sampled_from(["enroll", "revoke", "open_session", "drain", "renew", "start", "cancel", "release"]),
        st.integers(0, 1),
    )

    @rule(number=st.integers(0, 1), stale=st.sampled_from([0, 0, 0, 1]), old=st.sampled_from([0, 0, 0, 1]),
          before=steps, during=steps)  # fmt: skip
    def fetch(
        self, number: int, stale: int, old: int, before: tuple[str, int] | None, during: tuple[str, int] | None
    ) -> None:
        """A fetch, perhaps with an old lease version or an old secret, and with steps in its midst."""
        model = self.model
        attempt = model.attempts[-1 - number % len(model.attempts)]
        request = Request(
            self,
            attempt,
            max(attempt.lease_version - stale, 0),
            model.secrets[max(len(model.secrets) - 1 - old, 0)],
            None if before is None else self.step(*before),
            # What `before` does is not known yet, and two new versions of one secret are one too many.
            None if during is None or (before is not None and before[0] == during[0]) else self.step(*during),
        )
        came = self.runner.run(self._deliver(request))
        if request.running is not None:
            assert request.during is not None
            self.apply(request.during, request.running.result(30))
        expected = DELIVERED if request.authorised else Reason.AUTHORITY_MISMATCH.name
        assert came == (expected if request.authentic else Reason.UNAUTHENTICATED.name)
        assert (request.sent is not None) == (came == DELIVERED)
        assert request.sent is None or request.sent.count(VALUE) == len(PLAN.refs)
        assert is_zero(self.pool)
        self.seen[came] += 1

    async def _deliver(self, request: Request) -> str:
        store = self.rig.store
        ports = Ports(store, request, store, request, Peppers(PEPPER, None), self.pool, 262_144, None)
        request.deadline = asyncio.get_running_loop().time() + 30
        try:
            await deliver(request, ports)
        except Refused as refused:
            return refused.reason.name
        return DELIVERED


@contextmanager
def machine_on(rig: Rig, runner: asyncio.Runner) -> Iterator[type[Machine]]:
    """The machine on a store, with a thread outside it."""
    outside = Outside(rig)
    try:
        yield type("Bound", (Machine,), {"rig": rig, "runner": runner, "outside": outside, "seen": Counter()})
    finally:
        outside.close()


def play(rig: Rig, runner: asyncio.Runner, *, examples: int, steps: int) -> None:
    """Show that the machine sees every way a fetch can end, then run it."""
    with machine_on(rig, runner) as machine:
        one = machine()
        one.ready()
        one.fetch(0, 0, 0, None, None)
        one.fetch(0, 1, 0, None, None)
        one.revive()
        one.fetch(0, 0, 1, None, None)
        assert list(machine.seen) == [DELIVERED, Reason.AUTHORITY_MISMATCH.name, Reason.UNAUTHENTICATED.name]
        run_state_machine_as_test(
            machine, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None)
        )


@contextmanager
def on_sqlite(path: Path) -> Iterator[tuple[Rig, asyncio.Runner]]:
    """A new file."""
    create(str(path))
    store = SqliteStore(str(path))
    store.open()
    with asyncio.Runner() as runner:
        yield SqliteRig(path, store), runner
    store.close()


@contextmanager
def on_postgres(database: Database) -> Iterator[tuple[Rig, asyncio.Runner]]:
    """A new database."""
    from tests.kit.postgres_bed import login

    with asyncio.Runner() as runner:
        store = PostgresStore(login(database), receipts=False, on_fault=lambda _: None, on_wrong=lambda _: None)
        runner.run(store.open())
        yield PostgresRig(database, store), runner
        store.close()


def test_on_sqlite(tmp_path: Path) -> None:
    """What is delivered was authorised when its files were read, on SQLite."""
    with on_sqlite(tmp_path / "store.db") as (rig, runner):
        play(rig, runner, examples=20, steps=15)


def test_on_postgres(database: Database) -> None:
    """What is delivered was authorised when its files were read, on PostgreSQL."""
    with on_postgres(database) as (rig, runner):
        play(rig, runner, examples=20, steps=15)


def test_the_model_notices_a_lock_that_holds_nobody(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another lock than the attempt's the run fails: the machine can."""
    monkeypatch.setattr(postgres_control, "_LOCK", "SELECT length($1::text)")
    # A step that nobody holds back is over before that, on a busy machine too.
    monkeypatch.setattr(f"{__name__}.BLOCKED_S", 1.5)
    with on_postgres(database) as (rig, runner), machine_on(rig, runner) as machine:
        one = machine()
        one.ready()
        with pytest.raises(AssertionError, match="held nobody back"):
            one.fetch(0, 0, 0, None, ("cancel", 0))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_on_sqlite_for_long(tmp_path: Path) -> None:
    """The same, with many more runs of more steps."""
    with on_sqlite(tmp_path / "store.db") as (rig, runner):
        play(rig, runner, examples=100, steps=40)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_on_postgres_for_long(database: Database) -> None:
    """The same, with many more runs of more steps."""
    with on_postgres(database) as (rig, runner):
        play(rig, runner, examples=100, steps=40)
