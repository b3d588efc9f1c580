"""Every statement that a request sends to PostgreSQL (contract 6). Names are qualified: no search path matters.

Round trips of a delivery: credential 1 and audit row 1, each shared by all that come meanwhile; begin with lock and
read 1, COMMIT 1; receipts add 1 before COMMIT and 1 after the last byte. A statement is prepared when a session first
runs it, which costs one more then.
"""

from typing import Final

_NOW: Final = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
"""The server's clock in whole ms, rounded down as every other clock here."""

# Audit rows and receipts must outlive a crash of the server; whoever chose more than that keeps it.
DURABLE: Final = (
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
)

SEPARATOR: Final = "\x1f"
"""Between the values of a list that is sent as one text: the driver takes longer over an array than over all the rest.
None of the values has a control character, and none is empty, which stands for NULL."""
_LIST: Final = "string_to_array($1::text, E'\\x1f', '')"

NEWEST: Final = f"""
SELECT {_NOW}, pg_is_in_recovery(),
       c.credential_id, c.version, c.worker_id, c.secret_digest, c.state, c.not_before_at_ms, c.expires_at_ms
FROM unnest({_LIST}) WITH ORDINALITY AS asked (credential_id, place)
LEFT JOIN LATERAL (
    SELECT * FROM ql3.worker_credentials AS w WHERE w.credential_id = asked.credential_id ORDER BY version DESC LIMIT 1
) AS c ON true
ORDER BY asked.place
"""  # noqa: S608 - of constants
AUDIT: Final = f"""
INSERT INTO ql3.security_audit_events (event_id, request_id, operation_id, outcome, subject_type, subject_id,
    authentication_id, reasons, occurred_at_ms)
SELECT v[n], v[n + 1], 'worker.secrets', v[n + 2], v[n + 3], v[n + 4], v[n + 5], v[n + 6]::jsonb, {_NOW}
FROM {_LIST} AS v, generate_series(1, cardinality(v), 7) AS n
"""  # noqa: S608 - of constants
# One statement, so one state of the store. A table's key stands first of its columns: NULL there means no such row.
# What is there twice makes a second row here.
READ: Final = f"""
SELECT {_NOW}, pg_is_in_recovery(),
       a.id, a.run_id, a.status, a.executor_type, a.worker_id, a.worker_session_id, a.worker_generation,
       a.lease_generation, a.lease_version, a.lease_token_digest, a.offer_id,
       r.id, r.project_id, r.task_id, r.task_revision, r.status, r.execution_owner, r.cancel_requested_at_ms,
       l.attempt_id, l.run_id, l.status, l.version, l.lease_generation, l.worker_id, l.worker_session_id,
       l.worker_generation, l.lease_token_digest, l.offer_id, l.expires_at_ms,
       s.worker_id, s.session_id, s.generation, s.status, s.lease_expires_at_ms,
       t.project_id, t.source_revision, t.source_content_digest, t.plan_schema, t.plan_json::text, t.content_digest,
       c.credential_id, c.version, c.worker_id, c.state, c.not_before_at_ms, c.expires_at_ms
FROM (VALUES (1)) AS one (n)
LEFT JOIN ql3.run_attempts AS a ON a.id = $1
LEFT JOIN ql3.runs AS r ON r.id = a.run_id
LEFT JOIN ql3.run_dispatch_leases AS l ON l.attempt_id = a.id
LEFT JOIN ql3.worker_sessions AS s ON s.worker_id = l.worker_id
LEFT JOIN ql3.task_execution_revisions AS t ON t.project_id = r.project_id AND t.task_id = r.task_id
     AND t.task_revision = r.task_revision AND t.executor_type = 'remote_worker'
LEFT JOIN (SELECT * FROM ql3.worker_credentials WHERE credential_id = $2 ORDER BY version DESC LIMIT 1) AS c ON true
LIMIT 2
"""  # noqa: S608 - of constants
_RECEIPTS: Final = f"""
INSERT INTO secret_sidecar.receipts (receipt_id, kind, attempt_id, worker_id, credential_id, credential_version,
    file_name, mark, occurred_at_ms)
SELECT one.receipt_id, '%s', $1, $2, $3, $4, one.file_name, one.mark, {_NOW}
FROM unnest($5::text[], $6::text[], $7::text[]) AS one (receipt_id, file_name, mark)
"""  # noqa: S608 - of constants
RELEASE: Final = _RECEIPTS % "released"
"""One row for each ref, before COMMIT."""
ACKNOWLEDGE: Final = _RECEIPTS % "delivered"
"""The same after the last byte."""

BEGIN_READING: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY"
"""READ COMMITTED is said, since any other level would read as of BEGIN."""
BEGIN_WRITING: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
LOCK: Final = """
SELECT 1 WHERE pg_advisory_xact_lock(hashtextextended('ql3-attempt-authority:' || $1::text, 0)) IS NULL
"""
"""Waits for the attempt's lock, takes it and returns no row, since `void` is not NULL."""
NAMES: Final = {
    NEWEST: "newest",
    AUDIT: "audit",
    BEGIN_READING: "begin_reading",
    BEGIN_WRITING: "begin_writing",
    LOCK: "lock",
    READ: "read",
    RELEASE: "release",
    ACKNOWLEDGE: "acknowledge",
}
"""What each statement is prepared as in a session."""
