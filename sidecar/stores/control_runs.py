"""Steps of the control plane for runs: an offer, its lease, and their end. See `control` for the states."""

import hashlib
import secrets
from typing import Final

from sidecar.ids import uuid7
from sidecar.stores.control_db import ControlRefused, Tx, Wrong
from sidecar.stores.control_rules import TERMINAL, Until, following, number, require_enrolled, unknown, until
from sidecar.stores.plans import PLAN_SCHEMA, Plan

_OVER: Final = ", ".join(f"'{state}'" for state in TERMINAL)
_END_RUN: Final = (
    f"UPDATE runs SET status = ? WHERE id = ? AND status NOT IN ({_OVER}) AND NOT EXISTS"  # noqa: S608 - of constants
    f" (SELECT 1 FROM run_attempts AS a WHERE a.run_id = runs.id AND a.status NOT IN ({_OVER}))"
)


async def dispatch(tx: Tx, worker_id: str, plan: Plan, lease_ttl_ms: int) -> dict[str, object]:
    """Make a run of the plan, an attempt of it on the worker's session and its lease; return the worker's offer.

    The offer holds the lease token, which is kept nowhere else.
    """
    expires_at_ms = await until(tx, lease_ttl_ms)
    now_ms = await tx.now_ms()
    await require_enrolled(tx, worker_id)
    session = await tx.fetch(
        "SELECT session_id, generation FROM worker_sessions WHERE worker_id = ? AND status = 'online'"
        " AND lease_expires_at_ms > ?",
        *(worker_id, now_ms),
    )
    if not session:
        raise ControlRefused(
            Wrong.STATE,
            "The worker has no session that is online.",
            "Open one with `secret-sidecar authority open-session`.",
        )
    session_id, generation = session[0]
    task_revision = await _revise(tx, plan)
    run_id, attempt_id, offer_id = (uuid7(now_ms) for _ in range(3))
    token = secrets.token_urlsafe(32)
    token_digest = hashlib.sha256(token.encode()).hexdigest()
    lease_generation = version = 1
    await tx.lock(attempt_id)
    await tx.execute(
        "INSERT INTO runs (id, project_id, task_id, task_revision, status, execution_owner, cancel_requested_at_ms)"
        " VALUES (?, ?, ?, ?, 'dispatching', 'runtime', NULL)",
        *(run_id, plan.project_id, plan.task_id, task_revision),
    )
    await tx.execute(
        "INSERT INTO run_attempts (id, run_id, status, executor_type, worker_id, worker_session_id, worker_generation,"
        " lease_generation, lease_version, lease_token_digest, offer_id)"
        " VALUES (?, ?, 'starting', 'remote_worker', ?, ?, ?, ?, ?, ?, ?)",
        *(attempt_id, run_id, worker_id, session_id, generation, lease_generation, version, token_digest, offer_id),
    )
    await tx.execute(
        "INSERT INTO run_dispatch_leases (attempt_id, run_id, status, version, lease_generation, worker_id,"
        " worker_session_id, worker_generation, lease_token_digest, offer_id, expires_at_ms)"
        " VALUES (?, ?, 'leased', ?, ?, ?, ?, ?, ?, ?, ?)",
        *(attempt_id, run_id, version, lease_generation, worker_id, session_id, generation),
        *(token_digest, offer_id, expires_at_ms),
    )
    bundles = {} if plan.bundle is None else {"environmentBundleRefs": [plan.bundle.text]}
    return {
        "schema": f"qinglong/remote-secret-delivery@{'v2' if bundles else 'v1'}",
        "runId": run_id,
        "attemptId": attempt_id,
        "offerId": offer_id,
        "projectId": plan.project_id,
        "taskId": plan.task_id,
        "taskRevision": task_revision,
        "executionDigest": plan.digest,
        "workerGeneration": generation,
        "leaseGeneration": lease_generation,
        "expectedLeaseVersion": version,
        "leaseToken": token,
        "secretRefs": [ref.text for ref in plan.refs],
        **bundles,
        "workerId": worker_id,
        "sessionId": session_id,
        "leaseExpiresAtMs": expires_at_ms,
        "environment": [{"name": name, "secretRef": ref.text} for name, ref in plan.environment],
    }


async def _revise(tx: Tx, plan: Plan) -> str:
    """Return the task revision of a plan: the newest one if it is this very plan, otherwise the next."""
    rows = await tx.fetch(
        "SELECT source_revision, content_digest, task_revision FROM task_execution_revisions WHERE project_id = ?"
        " AND task_id = ? AND executor_type = 'remote_worker' ORDER BY source_revision DESC LIMIT 1",
        *(plan.project_id, plan.task_id),
    )
    if rows and rows[0][1] == plan.digest:
        return str(rows[0][2])
    source_revision = following(number(rows[0][0]) if rows else 0)
    task_revision = f"qltd:v1:{source_revision}:{plan.digest}"
    await tx.execute(
        "INSERT INTO task_execution_revisions (project_id, task_id, source_revision, executor_type, task_revision,"
        " source_content_digest, plan_schema, plan_json, content_digest)"
        " VALUES (?, ?, ?, 'remote_worker', ?, ?, ?, ?, ?)",
        *(plan.project_id, plan.task_id, source_revision, task_revision),
        *(plan.digest, PLAN_SCHEMA, plan.text, plan.digest),
    )
    return task_revision


async def renew(tx: Tx, attempt_id: str, lease_token_digest: str, ttl_ms: int) -> Until:
    """Give a lease a new end and the next version; a request with the version before is fenced from now on."""
    expires_at_ms = await until(tx, ttl_ms)
    lease_version, _ = await _held(tx, attempt_id, lease_token_digest)
    version = following(lease_version)
    await tx.execute(
        "UPDATE run_dispatch_leases SET version = ?, expires_at_ms = ? WHERE attempt_id = ?",
        *(version, expires_at_ms, attempt_id),
    )
    await tx.execute("UPDATE run_attempts SET lease_version = ? WHERE id = ?", version, attempt_id)
    return Until(version, expires_at_ms)


async def start(tx: Tx, attempt_id: str, lease_token_digest: str) -> None:
    """Set a starting attempt and its run to running: its secrets are not given out any more."""
    _, run_id = await _held(tx, attempt_id, lease_token_digest)
    if not await tx.execute(
        "UPDATE run_attempts SET status = 'running' WHERE id = ? AND status = 'starting'", attempt_id
    ):
        raise ControlRefused(Wrong.STATE, "The attempt is running already.", "There is nothing to do.")
    await tx.execute("UPDATE runs SET status = 'running' WHERE id = ? AND status = 'dispatching'", run_id)


async def cancel(tx: Tx, run_id: str) -> bool:
    """Ask for the end of a run: none of its attempts gets a secret from now on. Returns whether anything changed."""
    for attempt in await tx.fetch("SELECT id FROM run_attempts WHERE run_id = ? ORDER BY id", run_id):
        await tx.lock(str(attempt[0]))
    rows = await tx.fetch("SELECT status, cancel_requested_at_ms FROM runs WHERE id = ?", run_id)
    if not rows:
        raise unknown("run")
    status, requested = rows[0]
    if requested is not None:
        return False
    if status in TERMINAL:
        raise ControlRefused(Wrong.STATE, "The run is over.", "There is nothing to cancel.")
    await tx.execute("UPDATE runs SET cancel_requested_at_ms = ? WHERE id = ?", await tx.now_ms(), run_id)
    return True


async def release(tx: Tx, attempt_id: str) -> bool:
    """End an attempt, its lease and, when it was the last live one, its run. Returns whether that changed anything."""
    await tx.lock(attempt_id)
    rows = await tx.fetch(
        "SELECT a.run_id, a.status, r.cancel_requested_at_ms FROM run_attempts AS a LEFT JOIN runs AS r"
        " ON r.id = a.run_id WHERE a.id = ?",
        attempt_id,
    )
    if not rows:
        raise unknown("attempt")
    run_id, status, cancelled = rows[0]
    if status in TERMINAL:
        return False
    end = "released" if cancelled is None else "cancelled"
    await tx.execute("UPDATE run_dispatch_leases SET status = 'released' WHERE attempt_id = ?", attempt_id)
    await tx.execute("UPDATE run_attempts SET status = ? WHERE id = ?", end, attempt_id)
    await tx.execute(_END_RUN, end, run_id)
    return True


async def _held(tx: Tx, attempt_id: str, lease_token_digest: str) -> tuple[int, str]:
    """Lock an attempt and return its lease's version and its run. Raises ControlRefused unless the lease stands."""
    await tx.lock(attempt_id)
    rows = await tx.fetch(
        "SELECT l.version, l.lease_token_digest, l.status, l.expires_at_ms, a.run_id, r.cancel_requested_at_ms"
        " FROM run_dispatch_leases AS l JOIN run_attempts AS a ON a.id = l.attempt_id JOIN runs AS r"
        " ON r.id = a.run_id WHERE l.attempt_id = ?",
        attempt_id,
    )
    if not rows:
        raise unknown("attempt")
    version, digest, status, expires_at_ms, run_id, cancelled = rows[0]
    if digest != lease_token_digest:
        raise ControlRefused(
            Wrong.INPUT, "The offer's lease token is not the attempt's.", "Use the offer that `dispatch` wrote for it."
        )
    if status != "leased":
        raise ControlRefused(Wrong.STATE, "The lease was released.", "Dispatch the task again.")
    if number(expires_at_ms) <= await tx.now_ms():
        raise ControlRefused(Wrong.STATE, "The lease has expired.", "Release the attempt and dispatch the task again.")
    if cancelled is not None:
        raise ControlRefused(Wrong.STATE, "The run was cancelled.", "Release the attempt.")
    return number(version), str(run_id)
