-- Says that our own migrations made this schema, and how far they went; QL3 has no such table. Only commands read it.
CREATE SCHEMA IF NOT EXISTS ql3;

CREATE TABLE ql3.secret_sidecar_schema (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    version integer NOT NULL
);

INSERT INTO ql3.secret_sidecar_schema (version) VALUES (0);
