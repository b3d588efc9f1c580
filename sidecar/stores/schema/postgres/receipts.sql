-- Which value went to whom (contract 6, step 8): a row `released` before COMMIT, a row `delivered` after the last byte.
-- Made by `authority init --receipts` alone, beside QL3's own schema too, so it stands apart from the migrations.
CREATE SCHEMA IF NOT EXISTS secret_sidecar;

CREATE TABLE secret_sidecar.receipts (
    receipt_id varchar(36) PRIMARY KEY,
    kind varchar(16) NOT NULL CHECK (kind IN ('released', 'delivered')),
    attempt_id varchar(36) NOT NULL,
    worker_id varchar(128) NOT NULL,
    credential_id varchar(64) NOT NULL,
    credential_version integer NOT NULL,
    file_name char(64) NOT NULL,
    mark char(64) NOT NULL,
    occurred_at_ms bigint NOT NULL
);

CREATE INDEX receipts_by_file ON secret_sidecar.receipts (file_name, occurred_at_ms);
