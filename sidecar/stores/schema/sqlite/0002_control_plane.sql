-- What the commands of the control plane look up: the attempts of a run, the runs of a state, the credentials of a
-- worker, and which attempts a worker has. Requests use none of these.
CREATE INDEX run_attempts_by_run ON run_attempts (run_id);
CREATE INDEX run_attempts_by_worker ON run_attempts (worker_id);
CREATE INDEX runs_by_status ON runs (status);
CREATE INDEX worker_credentials_by_worker ON worker_credentials (worker_id);
