"""The ports of the pipeline: what it asks of the edge, of the store and of a provider. Adapters stand in `sidecar/`."""

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from provider.authority import Authority, Hold, Permit
from provider.command import Command
from provider.credential import CredentialRow, PeerNames, Peppers, Principal
from provider.material import Batch
from provider.memory import BufferPool
from provider.outcomes import Stage
from provider.receipts import Receipt
from provider.wire import Response

if TYPE_CHECKING:
    from provider.pipeline import Admitted


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One row of `security_audit_events` (contract 6); `principal` only for outcome `allowed`."""

    request_id: str
    outcome: str
    principal: Principal | None


class Exchange(Protocol):
    """One request, as the edge shows it."""

    request_id: str
    worker_id: str
    session_id: str
    deadline: float

    def enter(self, stage: Stage) -> None:
        """Say that the request is now in `stage` (time and place of every outcome)."""

    def authorization(self) -> bytes | None:
        """Return the raw `authorization` value."""

    def peer_names(self) -> PeerNames | None:
        """Return the certificate's names where binding is on, otherwise None."""

    def authentication_ended(self, *, failed: bool) -> None:
        """Spend from, or leave, the budget of failed authentications; not called when the request broke off."""

    def occupy(self, principal: Principal) -> AbstractContextManager[None]:
        """Take one of the credential's places in flight, or raise `Refused(CREDENTIAL_IN_FLIGHT_LIMIT)`."""

    async def body(self, admitted: "Admitted") -> bytes | bytearray:
        """Judge the headers, then return the declared body, entering both stages. Raises `Refused` of their rows."""

    async def send(self, permit: Permit, response: Response) -> None:
        """Check permit and peer once more, then hand head and body to TLS."""


class CredentialStore(Protocol):
    """Where credentials are."""

    async def newest(self, credential_id: str) -> tuple[CredentialRow | None, int]:
        """Return the newest version's row and the store's clock in ms, or raise `Refused(CREDENTIAL_STORE)`."""


class AuditLog(Protocol):
    """Where admission is recorded."""

    async def record(self, record: AuditRecord) -> None:
        """Write one row, durably, or raise `Refused(AUDIT_STORE)`."""


class AuthorityStore(Protocol):
    """Where runs, attempts, leases, sessions and plans are."""

    def hold(
        self, principal: Principal, command: Command, deadline: float, *, slow_material: bool
    ) -> AbstractAsyncContextManager[Hold]:
        """Take the places, BEGIN, lock the attempt, read. Leaving it without `commit` rolls back.

        Raises `Refused(AUTHORITY_STORE)`, or `Refused(DEADLINE)` when time runs out first.
        """

    async def acknowledge(self, permit: Permit, given: tuple[Receipt, ...]) -> None:
        """Record, best effort, that the last byte was handed over; raises nothing."""


class SecretProvider(Protocol):
    """Where material is."""

    def inline(self) -> bool:
        """Tell whether `resolve` will complete without suspending."""

    async def resolve(self, authority: Authority, deadline: float) -> Batch:
        """Return every value that `authority` names, the bundle last; it owns what it read until then.

        Raises `Refused` of stage provider.
        """


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything `deliver` touches, chosen by the composition root."""

    credentials: CredentialStore
    audit: AuditLog
    authority: AuthorityStore
    provider: SecretProvider | None
    peppers: Peppers
    pool: BufferPool
    response_limit: int
    receipt_key: bytes | None
