-- The six tables that authority is read from, and the audit (contract 6), for a database without QL3. Names, columns
-- and sizes are QL3's. Keys apart, NULL is allowed: it equals nothing and fails its rule. There are no foreign keys:
-- whatever does not fit together is judged for every request, and must be able to stand here.

CREATE TABLE ql3.runs (
    id varchar(36) PRIMARY KEY,
    project_id varchar(128),
    task_id varchar(255),
    task_revision varchar(128),
    status varchar(32),
    execution_owner varchar(32),
    cancel_requested_at_ms bigint
);

CREATE TABLE ql3.run_attempts (
    id varchar(36) PRIMARY KEY,
    run_id varchar(36),
    status varchar(32),
    executor_type varchar(32),
    worker_id varchar(128),
    worker_session_id varchar(36),
    worker_generation integer,
    lease_generation integer,
    lease_version integer,
    lease_token_digest char(64),
    offer_id varchar(128)
);

CREATE TABLE ql3.run_dispatch_leases (
    attempt_id varchar(36) PRIMARY KEY,
    run_id varchar(36),
    status varchar(32),
    version integer,
    lease_generation integer,
    worker_id varchar(128),
    worker_session_id varchar(36),
    worker_generation integer,
    lease_token_digest char(64),
    offer_id varchar(128),
    expires_at_ms bigint
);

CREATE TABLE ql3.worker_sessions (
    worker_id varchar(128) PRIMARY KEY,
    session_id varchar(36),
    generation integer,
    status varchar(32),
    lease_expires_at_ms bigint
);

CREATE TABLE ql3.task_execution_revisions (
    project_id varchar(128) NOT NULL,
    task_id varchar(128) NOT NULL,
    source_revision integer NOT NULL,
    executor_type varchar(32) NOT NULL,
    task_revision varchar(96),
    source_content_digest char(64),
    plan_schema varchar(128),
    plan_json jsonb,
    content_digest char(64),
    PRIMARY KEY (project_id, task_id, source_revision, executor_type)
);

CREATE INDEX task_execution_revisions_by_task_revision
    ON ql3.task_execution_revisions (project_id, task_id, task_revision, executor_type);

CREATE TABLE ql3.worker_credentials (
    credential_id varchar(64) NOT NULL,
    version integer NOT NULL,
    worker_id varchar(128),
    secret_digest char(64),
    state varchar(32),
    not_before_at_ms bigint,
    expires_at_ms bigint,
    PRIMARY KEY (credential_id, version)
);

CREATE TABLE ql3.security_audit_events (
    event_id varchar(36) PRIMARY KEY,
    request_id varchar(128) NOT NULL,
    operation_id varchar(128) NOT NULL,
    outcome varchar(32) NOT NULL,
    subject_type varchar(32),
    subject_id varchar(128),
    authentication_id varchar(255),
    reasons jsonb NOT NULL CHECK (jsonb_typeof(reasons) = 'array'),
    occurred_at_ms bigint NOT NULL,
    -- Who was let in is known; who was not has proven nothing, so nothing may be said of them.
    CHECK (num_nulls(subject_type, subject_id, authentication_id) = CASE outcome WHEN 'allowed' THEN 0 ELSE 3 END)
);
