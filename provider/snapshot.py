"""What the store holds about an attempt, read in one statement under its lock (contract 6, step 2).

Nothing here is judged yet, hence `object`: a store hands over whatever its columns hold, and `verify` decides. Rows are
tuples, since a frozen dataclass of ten columns takes eight times as long to make, six times a request.
"""

from dataclasses import dataclass
from typing import NamedTuple


class Attempt(NamedTuple):
    """`run_attempts`, as the store holds it: nothing is judged yet, hence `object`."""

    run_id: object
    status: object
    executor_type: object
    worker_id: object
    worker_session_id: object
    worker_generation: object
    lease_generation: object
    lease_version: object
    lease_token_digest: object
    offer_id: object


class Run(NamedTuple):
    """`runs` of the attempt."""

    project_id: object
    task_id: object
    task_revision: object
    status: object
    execution_owner: object
    cancel_requested_at_ms: object


class Lease(NamedTuple):
    """`run_dispatch_leases` of the attempt."""

    run_id: object
    status: object
    version: object
    lease_generation: object
    worker_id: object
    worker_session_id: object
    worker_generation: object
    lease_token_digest: object
    offer_id: object
    expires_at_ms: object


class Session(NamedTuple):
    """`worker_sessions` of the lease's worker."""

    session_id: object
    generation: object
    status: object
    lease_expires_at_ms: object


class Revision(NamedTuple):
    """`task_execution_revisions` that the run names. `plan_json` is JSON text, parsed only after the fences hold."""

    source_revision: object
    source_content_digest: object
    plan_schema: object
    plan_json: object
    content_digest: object


class Credential(NamedTuple):
    """The newest `worker_credentials` row of the credential that authenticated."""

    version: object
    worker_id: object
    state: object
    not_before_at_ms: object
    expires_at_ms: object


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one statement read after the lock was held. None: no such row. `second_row`: more than one matched."""

    now_ms: int
    """The store's clock, read after the lock."""
    read_at: float
    """The monotonic clock, in seconds, just before the statement that read `now_ms`."""
    attempt: Attempt | None
    run: Run | None
    lease: Lease | None
    session: Session | None
    revision: Revision | None
    credential: Credential | None
    second_row: bool = False
