-- The age of the oldest audit row, and pruning by age, without reading the whole table.
CREATE INDEX security_audit_events_by_time ON security_audit_events (occurred_at_ms);
