"""May this very attempt have exactly these secrets now? (contract 6)

`verify` judges one snapshot that a store read under the attempt's lock. It is the only maker of an `Authority`, which
names the refs that may be opened, holds no lease token, and is dead once the store's hold ends. `commit` is the only
maker of a `Permit`, without which no byte is sent.
"""

from hmac import compare_digest
from typing import Final, Protocol, final

from provider.command import Command
from provider.credential import Principal
from provider.outcomes import Reason, Refused
from provider.plan import plan_refs
from provider.receipts import Receipt
from provider.refs import SecretRef
from provider.snapshot import Attempt, Credential, Lease, Run, Session, Snapshot

_SEAL: Final = object()
_TEXT: Final = frozenset((str, type(None)))
_NUMBER: Final = frozenset((int, type(None)))


class Tenure:
    """Whether the store's hold still stands; the store ends it with COMMIT or ROLLBACK, whichever comes first."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        """Begin; the store made this after its lock was taken."""
        self.open = True


@final
class Authority:
    """Leave to open exactly these refs, inside the store's hold. Made by `verify` alone."""

    __slots__ = (
        "_bundle_refs", "_secret_refs", "_tenure", "attempt_id", "credential_id", "credential_version",
        "expires_at_ms", "now_ms", "read_at", "worker_id",
    )  # fmt: skip

    def __init__(
        self,
        seal: object,
        tenure: Tenure,
        principal: Principal,
        command: Command,
        snapshot: Snapshot,
        expires_at_ms: int,
    ) -> None:
        """Raises TypeError for every caller but `verify`."""
        if seal is not _SEAL:
            raise TypeError("only verify makes an Authority")
        self._tenure = tenure
        self._secret_refs = command.secret_refs
        self._bundle_refs = command.bundle_refs
        self.attempt_id = command.attempt_id
        self.worker_id = principal.worker_id
        self.credential_id = principal.credential_id
        self.credential_version = principal.credential_version
        self.expires_at_ms = expires_at_ms
        self.now_ms = snapshot.now_ms
        self.read_at = snapshot.read_at

    @property
    def secret_refs(self) -> tuple[SecretRef, ...]:
        """The ordinary refs, in the order asked. Raises RuntimeError outside the store's hold."""
        self._require_hold()
        return self._secret_refs

    @property
    def bundle_refs(self) -> tuple[SecretRef, ...]:
        """The bundle ref, if the plan names one. Raises RuntimeError outside the store's hold."""
        self._require_hold()
        return self._bundle_refs

    def _require_hold(self) -> None:
        if not self._tenure.open:
            raise RuntimeError("an Authority was used outside the store's hold")

    def __reduce__(self) -> str:
        raise TypeError("an Authority is never serialised")


@final
class Permit:
    """Leave to send the first byte: COMMIT was confirmed. Made by `commit` alone; `check` still fences by the clock."""

    __slots__ = (
        "_expires_at_ms", "_now_ms", "_read_at", "attempt_id", "credential_id", "credential_version", "worker_id",
    )  # fmt: skip

    def __init__(self, seal: object, authority: Authority) -> None:
        """Raises TypeError for every caller but `commit`."""
        if seal is not _SEAL:
            raise TypeError("only commit makes a Permit")
        self._expires_at_ms = authority.expires_at_ms
        self._now_ms = authority.now_ms
        self._read_at = authority.read_at
        self.attempt_id = authority.attempt_id
        self.worker_id = authority.worker_id
        self.credential_id = authority.credential_id
        self.credential_version = authority.credential_version

    def check(self, monotonic: float) -> None:
        """Call just before the first byte, with the monotonic clock (contract 6.7).

        Raises `Refused(AUTHORITY_MISMATCH)` when lease, session or credential has expired since the read.
        """
        if self._now_ms + (monotonic - self._read_at) * 1000 >= self._expires_at_ms:
            raise Refused(Reason.AUTHORITY_MISMATCH)

    def __reduce__(self) -> str:
        raise TypeError("a Permit is never serialised")


class Hold(Protocol):
    """The store's transaction with the attempt's lock, as its context manager yields it."""

    @property
    def snapshot(self) -> Snapshot:
        """What was read after the lock."""

    @property
    def tenure(self) -> Tenure:
        """Ends when the transaction does."""

    async def commit(self, authority: Authority, receipts: tuple[Receipt, ...]) -> None:
        """Write the receipts and COMMIT. Raises `Refused(AUTHORITY_STORE)` unless the store confirmed it."""


async def commit(hold: Hold, authority: Authority, receipts: tuple[Receipt, ...]) -> Permit:
    """End the hold with a confirmed COMMIT, or raise `Refused(AUTHORITY_STORE)`: the only way to a `Permit`."""
    try:
        await hold.commit(authority, receipts)
    finally:
        hold.tenure.open = False
    return Permit(_SEAL, authority)


def verify(principal: Principal, session_id: str, command: Command, hold: Hold) -> Authority:
    """Judge the hold's snapshot in the contract's order (6.3 to 6.5) and return the authority.

    Raises `Refused` with AUTHORITY_MISMATCH, SECRET_SCOPE_MISMATCH (both one 409) or AUTHORITY_STORE (503).
    """
    snapshot = hold.snapshot
    attempt, run, lease = snapshot.attempt, snapshot.run, snapshot.lease
    session, revision, credential = snapshot.session, snapshot.revision, snapshot.credential
    # 1. a missing row is a mismatch
    if attempt is None or run is None or lease is None or session is None or revision is None or credential is None:
        raise Refused(Reason.AUTHORITY_MISMATCH)
    # 2. a second row, or a wrong type in a column that is compared below, is no answer at all
    if snapshot.second_row or not _typed(attempt, run, lease, session, credential):
        raise Refused(Reason.AUTHORITY_STORE)
    # 3. the fences
    now = snapshot.now_ms
    expiries = (lease.expires_at_ms, session.lease_expires_at_ms, credential.expires_at_ms)
    if not (
        attempt.run_id == command.run_id
        and lease.run_id == command.run_id
        and run.project_id == command.project_id
        and run.task_id == command.task_id
        and run.task_revision == command.task_revision
        and run.status == "dispatching"
        and run.execution_owner == "runtime"
        and run.cancel_requested_at_ms is None
        and attempt.status == "starting"
        and attempt.executor_type == "remote_worker"
        and attempt.worker_id == principal.worker_id
        and lease.worker_id == principal.worker_id
        and attempt.worker_session_id == session_id
        and lease.worker_session_id == session_id
        and session.session_id == session_id
        and attempt.worker_generation == command.worker_generation
        and lease.worker_generation == command.worker_generation
        and session.generation == command.worker_generation
        and attempt.lease_generation == command.lease_generation
        and lease.lease_generation == command.lease_generation
        and attempt.lease_version == command.expected_lease_version
        and lease.version == command.expected_lease_version
        and attempt.offer_id == command.offer_id
        and lease.offer_id == command.offer_id
        and _same_digest(attempt.lease_token_digest, command.lease_token_digest)
        and _same_digest(lease.lease_token_digest, command.lease_token_digest)
        and session.status in ("online", "draining")
        and lease.status == "leased"
        and credential.version == principal.credential_version
        and credential.state == "active"
        and credential.worker_id == principal.worker_id
        and isinstance(credential.not_before_at_ms, int)
        and credential.not_before_at_ms <= now
        and all(isinstance(expiry, int) and expiry > now for expiry in expiries)
    ):
        raise Refused(Reason.AUTHORITY_MISMATCH)
    # 4. the faults of plan and task_revision
    if run.task_revision != f"qltd:v1:{revision.source_revision}:{revision.source_content_digest}":
        raise Refused(Reason.AUTHORITY_STORE)
    secret_refs, bundle_refs = plan_refs(revision, command.project_id, command.secret_refs + command.bundle_refs)
    # 5. the scope
    if not (
        _same_digest(revision.content_digest, command.execution_digest)
        and command.secret_refs == secret_refs
        and command.bundle_refs == bundle_refs
    ):
        raise Refused(Reason.SECRET_SCOPE_MISMATCH)
    expires_at_ms = min(expiry for expiry in expiries if isinstance(expiry, int))
    return Authority(_SEAL, hold.tenure, principal, command, snapshot, expires_at_ms)


def _typed(attempt: Attempt, run: Run, lease: Lease, session: Session, credential: Credential) -> bool:
    """Tell whether every compared column holds its type. NULL has none: it equals nothing and fails its rule."""
    texts = (
        attempt.run_id, attempt.status, attempt.executor_type, attempt.worker_id, attempt.worker_session_id,
        attempt.lease_token_digest, attempt.offer_id, run.project_id, run.task_id, run.task_revision, run.status,
        run.execution_owner, lease.run_id, lease.status, lease.worker_id, lease.worker_session_id,
        lease.lease_token_digest, lease.offer_id, session.session_id, session.status, credential.worker_id,
        credential.state,
    )  # fmt: skip
    numbers = (
        attempt.worker_generation, attempt.lease_generation, attempt.lease_version, run.cancel_requested_at_ms,
        lease.version, lease.lease_generation, lease.worker_generation, lease.expires_at_ms, session.generation,
        session.lease_expires_at_ms, credential.version, credential.not_before_at_ms, credential.expires_at_ms,
    )  # fmt: skip
    return _TEXT.issuperset(map(type, texts)) and _NUMBER.issuperset(map(type, numbers))


def _same_digest(stored: object, asked: str) -> bool:
    return isinstance(stored, str) and stored.isascii() and compare_digest(stored, asked)
