-- The six tables that authority is read from, and the audit (contract 6). Names and columns are QL3's.
--
-- Columns have no declared type: a value of a wrong type stays what it is and is seen as such when it is read, instead
-- of being turned silently into one of the right type. Ids, states, digests and plans are text; generations, versions
-- and times (milliseconds since 1970) are integers. Keys apart, NULL is allowed: it equals nothing and fails its rule.

CREATE TABLE runs (
    id NOT NULL PRIMARY KEY,
    project_id,
    task_id,
    task_revision,
    status,
    execution_owner,
    cancel_requested_at_ms
);

CREATE TABLE run_attempts (
    id NOT NULL PRIMARY KEY,
    run_id,
    status,
    executor_type,
    worker_id,
    worker_session_id,
    worker_generation,
    lease_generation,
    lease_version,
    lease_token_digest,
    offer_id
);

CREATE TABLE run_dispatch_leases (
    attempt_id NOT NULL PRIMARY KEY,
    run_id,
    status,
    version,
    lease_generation,
    worker_id,
    worker_session_id,
    worker_generation,
    lease_token_digest,
    offer_id,
    expires_at_ms
);

CREATE TABLE worker_sessions (
    worker_id NOT NULL PRIMARY KEY,
    session_id,
    generation,
    status,
    lease_expires_at_ms
);

CREATE TABLE task_execution_revisions (
    project_id NOT NULL,
    task_id NOT NULL,
    source_revision NOT NULL,
    executor_type NOT NULL,
    task_revision,
    source_content_digest,
    plan_schema,
    plan_json,
    content_digest,
    PRIMARY KEY (project_id, task_id, source_revision, executor_type)
);

CREATE INDEX task_execution_revisions_by_task_revision
    ON task_execution_revisions (project_id, task_id, task_revision, executor_type);

CREATE TABLE worker_credentials (
    credential_id NOT NULL,
    version NOT NULL,
    worker_id,
    secret_digest,
    state,
    not_before_at_ms,
    expires_at_ms,
    PRIMARY KEY (credential_id, version)
);

-- No key and no index: every request appends one row, and each index would cost it another page of the log. Rows lie in
-- the order of time, which is enough for their age and for pruning.
CREATE TABLE security_audit_events (
    event_id,
    request_id,
    operation_id,
    outcome,
    subject_type,
    subject_id,
    authentication_id,
    reasons,
    occurred_at_ms
);
