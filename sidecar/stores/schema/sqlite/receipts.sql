-- Which value went to whom (contract 6, step 8): a row `released` before COMMIT, a row `delivered` after the last byte.
-- Made by `authority init --receipts` alone, so it stands beside the numbered migrations.
CREATE TABLE IF NOT EXISTS receipts (
    receipt_id,
    kind,
    attempt_id,
    worker_id,
    credential_id,
    credential_version,
    file_name,
    mark,
    occurred_at_ms
);

CREATE INDEX IF NOT EXISTS receipts_by_file ON receipts (file_name, occurred_at_ms);
