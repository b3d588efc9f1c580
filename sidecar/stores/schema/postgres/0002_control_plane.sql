-- What the commands of the control plane look up: the attempts of a run, the runs of a state, the credentials of a
-- worker, which attempts a worker has, and audit rows by age. Requests use none of these.
CREATE INDEX run_attempts_by_run ON ql3.run_attempts (run_id);
CREATE INDEX run_attempts_by_worker ON ql3.run_attempts (worker_id);
CREATE INDEX runs_by_status ON ql3.runs (status);
CREATE INDEX worker_credentials_by_worker ON ql3.worker_credentials (worker_id);
CREATE INDEX security_audit_events_by_age ON ql3.security_audit_events (occurred_at_ms);
