
-- Receipts are written here by whoever runs with QL3_SECRET_SIDECAR_RECEIPTS=on; nobody reads them with this role.
GRANT USAGE ON SCHEMA secret_sidecar TO ql3_secret_sidecar;
GRANT INSERT ON secret_sidecar.receipts TO ql3_secret_sidecar;
