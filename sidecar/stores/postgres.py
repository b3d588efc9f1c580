"""The PostgreSQL authority store, serve side: credentials, audit rows, and authority under the attempt's lock.

Nothing is kept between requests but the sessions. Whatever the server does, each call ends in the contract's answer:
its session is given back when its state is known and closed when it is not.
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from provider.authority import Permit
from provider.command import Command
from provider.credential import CredentialRow, Principal
from provider.limits import PLACES_WAIT_S
from provider.outcomes import Reason, Refused
from provider.ports import AuditRecord
from provider.receipts import Receipt
from sidecar.ids import uuid4
from sidecar.postgres_config import Postgres
from sidecar.stores.faults import StoreFault, StoreFaultKind
from sidecar.stores.places import Places
from sidecar.stores.postgres_connect import tls_context
from sidecar.stores.postgres_hold import CALL_S, Means, PostgresHold, receipt_rows
from sidecar.stores.postgres_pool import Pool, PoolStats
from sidecar.stores.postgres_rights import RightsFault, RightsFaultKind
from sidecar.stores.postgres_session import Session, Unusable, WrongRights, connect
from sidecar.stores.postgres_sql import ACKNOWLEDGE, AUDIT, NEWEST
from sidecar.stores.postgres_together import Together
from sidecar.stores.postgres_watch import Watch

FIRST_ANSWER_S: Final = 3.0
"""How long a start waits for the server; after that it listens, is not ready, and goes on trying."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What metrics show of the store beside its pool."""

    pool: PoolStats
    lost_acknowledgements: int
    """Receipts `delivered` that could not be written."""


class PostgresStore:
    """The store of any number of replicas; implements the ports CredentialStore, AuditLog and AuthorityStore."""

    def __init__(
        self,
        postgres: Postgres,
        *,
        receipts: bool,
        on_fault: Callable[[StoreFault], None],
        on_wrong: Callable[[RightsFaultKind], None],
    ) -> None:
        """`on_fault` is told once when the server's first answer, after `open`, shows that the store cannot be served.

        `on_wrong` is told when schema or rights have become wrong later, once each time.
        """
        self._postgres = postgres
        self._receipts = receipts
        self._on_fault = on_fault
        self._on_wrong = on_wrong
        self._tls: ssl.SSLContext | None = None
        self._opened = False
        self._settled = False
        self._wrong: tuple[RightsFault, ...] = ()
        self._lost_acknowledgements = 0
        self._pool = Pool(postgres.max_connections, self._open_session)
        self._newest = Together(self._pool, NEWEST, returns=True)
        self._audit = Together(self._pool, AUDIT, returns=False)
        size = postgres.max_connections
        self._means = Means(self._pool, Places(transactions=size - 1, materials=max(1, size // 2)), receipts)
        self._watch = Watch(self._pool, postgres.connection_timeout_ms / 1000)

    async def open(self) -> None:
        """Look at the server, for 3 s at most, and begin to watch it.

        Raises StoreFault when it answers and cannot be served from. One that does not answer is tried again and again.
        """
        if self._postgres.tls is not None:
            try:
                self._tls = tls_context(self._postgres.tls)
            except OSError:
                raise StoreFault(
                    StoreFaultKind.UNREADABLE,
                    "The CA file of PostgreSQL cannot be read, or holds no certificate.",
                    "Check QL3_WORKER_INGRESS_POSTGRES_TLS_CA_FILE.",
                ) from None
        await self._watch.look(asyncio.get_running_loop().time() + FIRST_ANSWER_S)
        if self._wrong:
            raise _store_fault(self._wrong)
        self._opened = True
        self._watch.start()

    def close(self) -> None:
        """Close every session. Calls that come later, or still run, are refused."""
        self._watch.stop()
        self._pool.close()

    async def newest(self, credential_id: str) -> tuple[CredentialRow | None, int]:
        """Return the newest version's row and the store's clock in ms, or raise `Refused(CREDENTIAL_STORE)`."""
        until = asyncio.get_running_loop().time() + CALL_S
        row = None if self._wrong else await self._newest.call(until, credential_id)
        # A server in recovery may lack the newest version.
        if row is None or row[1]:
            raise Refused(Reason.CREDENTIAL_STORE)
        return None if row[2] is None else CredentialRow(*row[2:9]), row[0]

    async def record(self, record: AuditRecord) -> None:
        """Write one row, durably, or raise `Refused(AUDIT_STORE)`."""
        principal = record.principal
        if principal is None:
            subject: tuple[str | None, ...] = (None, None, None, f'["{record.outcome}"]')
        else:
            subject = ("worker", principal.worker_id, principal.authentication_id, '["worker_credential"]')
        until = asyncio.get_running_loop().time() + CALL_S
        if await self._audit.call(until, uuid4(), record.request_id, record.outcome, *subject) is None:
            raise Refused(Reason.AUDIT_STORE)

    def hold(self, principal: Principal, command: Command, deadline: float, *, slow_material: bool) -> PostgresHold:
        """Take places and the attempt's lock, and read: an async context manager; leaving without `commit` rolls back.

        Raises `Refused(AUTHORITY_STORE)`, or `Refused(DEADLINE)` when the loop's clock shows `deadline` first.
        """
        return PostgresHold(self._means, command.attempt_id, principal.credential_id, deadline, slow=slow_material)

    async def acknowledge(self, permit: Permit, given: tuple[Receipt, ...]) -> None:
        """Write the receipts `delivered`, best effort: what cannot be written is counted."""
        written = False
        try:
            # In a place as any transaction, since it is one: it may not use up the sessions of those who authenticate.
            deadline = asyncio.get_running_loop().time() + PLACES_WAIT_S
            taken = await self._means.places.take(permit.attempt_id, deadline, slow_material=False)
            try:
                written = await self._fetch(ACKNOWLEDGE, *receipt_rows(permit, given)) is not None
            finally:
                taken.give_back()
        except Refused:
            pass
        finally:
            if not written:
                self._lost_acknowledgements += len(given)

    def health(self) -> str:
        """Return `ok` or `failed`: the server answers, is the primary, and schema and rights are right."""
        return "ok" if self._watch.healthy and not self._wrong else "failed"

    @property
    def stats(self) -> StoreStats:
        """The counters."""
        return StoreStats(self._pool.stats, self._lost_acknowledgements)

    async def _fetch(self, statement: str, *values: object) -> Sequence[Sequence[Any]] | None:
        """Run one statement on a session; None when there is no answer."""
        until = asyncio.get_running_loop().time() + CALL_S
        try:
            session = await self._pool.take(until)
            try:
                return await session.fetch(statement, until, *values)
            finally:
                self._pool.give_back(session)
        except Unusable:
            return None

    async def _open_session(self, until: float) -> Session:
        """Open a session and judge what it may do: the first answer decides whether this process may run at all."""
        until = min(until, asyncio.get_running_loop().time() + self._postgres.connection_timeout_ms / 1000)
        session = await connect(self._postgres, self._tls, until)
        try:
            await session.judge(until, receipts=self._receipts, columns=not self._settled)
        except WrongRights as wrong:
            self._judged(wrong.faults)
            raise
        except BaseException:
            session.close()
            raise
        self._judged(())
        return session

    def _judged(self, faults: tuple[RightsFault, ...]) -> None:
        became_wrong = bool(faults) and not self._wrong
        self._wrong = faults
        if faults:
            self._pool.retire()
        if became_wrong and self._settled:
            self._on_wrong(faults[0].kind)
        elif became_wrong and self._opened:
            self._on_fault(_store_fault(faults))
        self._settled = self._settled or not faults


def _store_fault(faults: tuple[RightsFault, ...]) -> StoreFault:
    lacks = any(fault.kind is RightsFaultKind.TABLE_MISSING for fault in faults)
    kind = StoreFaultKind.NOT_A_STORE if lacks else StoreFaultKind.RIGHTS
    return StoreFault(kind, " ".join(fault.wrong for fault in faults), " ".join(fault.mend for fault in faults))
