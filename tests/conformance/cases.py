"""Each column of the six tables, one changed fact at a time, and how the request must end (contract 6)."""

import json
from dataclasses import dataclass

from provider.outcomes import Reason
from tests.kit.world import PROJECT_ID, TASK_ID, default_refs, plan

FENCED, SCOPE, STORE = Reason.AUTHORITY_MISMATCH, Reason.SECRET_SCOPE_MISMATCH, Reason.AUTHORITY_STORE
OTHER_ID = "018f0000-0000-7000-8000-0000000000ff"
OTHER_DIGEST = "0" * 64
LONG_AGO, FAR = 1, 9_000_000_000_000


@dataclass(frozen=True)
class Case:
    """One column with another value."""

    table: str
    column: str
    value: object
    reason: Reason

    def __str__(self) -> str:
        """Name the test."""
        return f"{self.table}.{self.column}={str(self.value)[:24]}"


def _all(table: str, reason: Reason, **columns: object) -> list[Case]:
    return [Case(table, column, value, reason) for column, value in columns.items()]


CHANGED = [
    *_all("run_attempts", FENCED, id=OTHER_ID, run_id=OTHER_ID, status="running", executor_type="local"),
    *_all("run_attempts", FENCED, worker_id="worker-2", worker_session_id=OTHER_ID, worker_generation=4),
    *_all("run_attempts", FENCED, lease_generation=3, lease_version=2, lease_token_digest=OTHER_DIGEST),
    *_all("run_attempts", FENCED, offer_id=OTHER_ID),
    *_all("runs", FENCED, id=OTHER_ID, project_id="project-2", task_id="task-2", task_revision="qltd:v1:2:x"),
    *_all("runs", FENCED, status="running", execution_owner="other", cancel_requested_at_ms=LONG_AGO),
    *_all("run_dispatch_leases", FENCED, attempt_id=OTHER_ID, run_id=OTHER_ID, status="released", version=2),
    *_all("run_dispatch_leases", FENCED, lease_generation=3, worker_id="worker-2", worker_session_id=OTHER_ID),
    *_all("run_dispatch_leases", FENCED, worker_generation=4, lease_token_digest=OTHER_DIGEST, offer_id=OTHER_ID),
    *_all("run_dispatch_leases", FENCED, expires_at_ms=LONG_AGO),
    *_all("worker_sessions", FENCED, worker_id="worker-2", session_id=OTHER_ID, generation=4, status="offline"),
    *_all("worker_sessions", FENCED, lease_expires_at_ms=LONG_AGO),
    *_all("task_execution_revisions", FENCED, project_id="project-2", task_id="task-2", executor_type="local"),
    *_all("task_execution_revisions", FENCED, task_revision="qltd:v1:2:x"),
    *_all("task_execution_revisions", STORE, source_revision=2, source_content_digest=OTHER_DIGEST),
    *_all("task_execution_revisions", STORE, plan_schema="qinglong/command-execution@v2", plan_json="[]"),
    *_all("task_execution_revisions", SCOPE, content_digest=OTHER_DIGEST),
    Case("task_execution_revisions", "plan_json", json.dumps(plan(default_refs(2))), SCOPE),
    *_all("worker_credentials", FENCED, credential_id="other", version=2, worker_id="worker-2", state="revoked"),
    *_all("worker_credentials", FENCED, not_before_at_ms=FAR, expires_at_ms=LONG_AGO),
]

UNCOMPARED = {("worker_credentials", "secret_digest")}
"""Columns that only authentication looks at."""
KEYS = {
    ("run_attempts", "id"),
    ("runs", "id"),
    ("run_dispatch_leases", "attempt_id"),
    ("worker_sessions", "worker_id"),
    ("task_execution_revisions", "project_id"),
    ("task_execution_revisions", "task_id"),
    ("task_execution_revisions", "source_revision"),
    ("task_execution_revisions", "executor_type"),
    ("worker_credentials", "credential_id"),
    ("worker_credentials", "version"),
}
"""Columns of a primary key: they hold no NULL."""
NULL_REASONS = {
    ("task_execution_revisions", "source_content_digest"): STORE,
    ("task_execution_revisions", "plan_schema"): STORE,
    ("task_execution_revisions", "plan_json"): STORE,
    ("task_execution_revisions", "content_digest"): SCOPE,
}
"""Where NULL is something else than a fence."""
FOUND_BY = KEYS | {
    ("run_attempts", "run_id"),
    ("runs", "project_id"),
    ("runs", "task_id"),
    ("runs", "task_revision"),
    ("run_dispatch_leases", "worker_id"),
    ("task_execution_revisions", "task_revision"),
}
"""Columns that another row is found by: with a value of a wrong type that row is missing, which comes first."""
SECOND_REVISION = {
    "project_id": PROJECT_ID,
    "task_id": TASK_ID,
    "source_revision": 2,
    "executor_type": "remote_worker",
}
