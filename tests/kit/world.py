"""One valid world: a worker, its credential, session, run, attempt, lease and plan. A test breaks one fact of it.

`facts` says what is in every table, for any store; `build_world` writes it to a new SQLite file.
"""

import hashlib
import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from provider.command import Command, parse_command
from provider.credential import CredentialRow, Pepper, Peppers, Principal, authenticate, make_token, present
from provider.refs import SecretRef
from provider.strictjson import parse
from sidecar.stores import sqlite_make

PEPPER_TEXT = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
"""The pepper of the vectors."""
SECRET = b"\x02" * 32
CREDENTIAL_ID = "worker_primary"
WORKER_ID = "worker-1"
SESSION_ID = "018f0000-0000-7000-8000-0000000000aa"
RUN_ID = "018f0000-0000-7000-8000-000000000001"
ATTEMPT_ID = "018f0000-0000-7000-8000-000000000002"
OFFER_ID = "018f0000-0000-7000-8000-000000000003"
PROJECT_ID = "project-1"
TASK_ID = "task-1"
LEASE_TOKEN = "worker_generated_lease_capability_0000000000000001"
SOURCE_DIGEST = "5" * 64
EXECUTION_DIGEST = "e" * 64
MINUTE_MS = 60_000

Row = dict[str, object]


@dataclass(frozen=True)
class World:
    """A valid world and what its worker knows."""

    path: Path
    now_ms: int
    """The moment it was made, on the machine's clock; everything is good from a minute before until an hour after."""
    refs: tuple[SecretRef, ...]
    bundle: SecretRef | None
    rows: Mapping[str, Row]
    """What each table holds, one row each."""
    offer: Mapping[str, object]

    token: str = make_token(CREDENTIAL_ID, SECRET)
    worker_id: str = WORKER_ID
    session_id: str = SESSION_ID
    attempt_id: str = ATTEMPT_ID
    run_id: str = RUN_ID

    @property
    def peppers(self) -> Peppers:
        """The pepper in force."""
        return Peppers(Pepper.parse(PEPPER_TEXT), None)

    @property
    def target(self) -> str:
        """Request target of the secrets."""
        return f"/api/v3/worker-ingress/workers/{self.worker_id}/sessions/{self.session_id}/secrets"

    def body(self, **changed: object) -> dict[str, object]:
        """Return the request's body as an object, with these keys changed."""
        own = ("workerId", "sessionId", "leaseExpiresAtMs", "environment")
        return {key: value for key, value in self.offer.items() if key not in own} | changed

    def body_bytes(self, **changed: object) -> bytes:
        """Return the request's body, with these keys changed."""
        return json.dumps(self.body(**changed), ensure_ascii=False, separators=(",", ":")).encode()

    def command(self, **changed: object) -> Command:
        """Return the parsed command, with these keys of the body changed."""
        return parse_command(parse(self.body_bytes(**changed)))

    def principal(self) -> Principal:
        """Return the worker as it authenticates in this world."""
        row = CredentialRow(**{key: self.rows["worker_credentials"][key] for key in CredentialRow.__dataclass_fields__})
        return authenticate(present(f"Worker {self.token}".encode()), self.worker_id, row, self.now_ms, self.peppers)

    def execute(self, statement: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        """Run one statement on the store file, as an outside program would, and return its rows."""
        with closing(sqlite3.connect(self.path, isolation_level=None, timeout=5)) as connection:
            return connection.execute(statement, values).fetchall()

    def change(self, table: str, **columns: object) -> None:
        """Change columns of every row of a table."""
        names = ", ".join(f"{name} = ?" for name in columns)
        self.execute(f"UPDATE {table} SET {names}", tuple(columns.values()))

    def audit(self) -> list[dict[str, object]]:
        """Return every audit row, oldest first."""
        names = ["event_id", "request_id", "operation_id", "outcome", "subject_type", "subject_id"]
        names += ["authentication_id", "reasons", "occurred_at_ms"]
        rows = self.execute(f"SELECT {', '.join(names)} FROM security_audit_events ORDER BY rowid")
        return [dict(zip(names, row, strict=True)) for row in rows]


def default_refs(count: int = 1) -> tuple[SecretRef, ...]:
    """Return `count` refs of the world's project; odd ones have a version."""
    return tuple(SecretRef.of(PROJECT_ID, f"secret-{n}", n if n % 2 else None) for n in range(count))


def plan(refs: Sequence[SecretRef], bundle: SecretRef | None = None) -> dict[str, object]:
    """Return a plan that names these refs, with a public variable between them."""
    environment: list[dict[str, str]] = [
        {"name": f"SECRET_{n}", "kind": "secret", "secretRef": ref.text} for n, ref in enumerate(refs)
    ]
    environment.insert(1, {"name": "PUBLIC", "kind": "public", "value": "shown"})
    document: dict[str, object] = {
        "command": {"kind": "argv", "file": "/bin/true", "args": []},
        "environment": environment,
    }
    return document if bundle is None else document | {"environmentBundleRef": bundle.text}


def facts(now_ms: int, refs: Sequence[SecretRef], bundle: SecretRef | None = None) -> dict[str, Row]:
    """Return the one row of each of the six tables of a valid world."""
    lease_digest = hashlib.sha256(LEASE_TOKEN.encode()).hexdigest()
    until = now_ms + 60 * MINUTE_MS
    task_revision = f"qltd:v1:1:{SOURCE_DIGEST}"
    pepper = Pepper.parse(PEPPER_TEXT)
    return {
        "runs": {
            "id": RUN_ID,
            "project_id": PROJECT_ID,
            "task_id": TASK_ID,
            "task_revision": task_revision,
            "status": "dispatching",
            "execution_owner": "runtime",
            "cancel_requested_at_ms": None,
        },
        "run_attempts": {
            "id": ATTEMPT_ID,
            "run_id": RUN_ID,
            "status": "starting",
            "executor_type": "remote_worker",
            "worker_id": WORKER_ID,
            "worker_session_id": SESSION_ID,
            "worker_generation": 3,
            "lease_generation": 2,
            "lease_version": 1,
            "lease_token_digest": lease_digest,
            "offer_id": OFFER_ID,
        },
        "run_dispatch_leases": {
            "attempt_id": ATTEMPT_ID,
            "run_id": RUN_ID,
            "status": "leased",
            "version": 1,
            "lease_generation": 2,
            "worker_id": WORKER_ID,
            "worker_session_id": SESSION_ID,
            "worker_generation": 3,
            "lease_token_digest": lease_digest,
            "offer_id": OFFER_ID,
            "expires_at_ms": until,
        },
        "worker_sessions": {
            "worker_id": WORKER_ID,
            "session_id": SESSION_ID,
            "generation": 3,
            "status": "online",
            "lease_expires_at_ms": until,
        },
        "task_execution_revisions": {
            "project_id": PROJECT_ID,
            "task_id": TASK_ID,
            "source_revision": 1,
            "executor_type": "remote_worker",
            "task_revision": task_revision,
            "source_content_digest": SOURCE_DIGEST,
            "plan_schema": "qinglong/command-execution@v1",
            "plan_json": json.dumps(plan(refs, bundle)),
            "content_digest": EXECUTION_DIGEST,
        },
        "worker_credentials": {
            "credential_id": CREDENTIAL_ID,
            "version": 1,
            "worker_id": WORKER_ID,
            "secret_digest": pepper.digest(CREDENTIAL_ID, SECRET),
            "state": "active",
            "not_before_at_ms": now_ms - MINUTE_MS,
            "expires_at_ms": until,
        },
    }


def offer(rows: Mapping[str, Row], refs: Sequence[SecretRef], bundle: SecretRef | None = None) -> dict[str, object]:
    """Return the offer that the world's worker was handed, `@v2` when there is a bundle."""
    run, attempt, lease = rows["runs"], rows["run_attempts"], rows["run_dispatch_leases"]
    document: dict[str, object] = {
        "schema": "qinglong/remote-secret-delivery@v1",
        "runId": run["id"],
        "attemptId": attempt["id"],
        "offerId": attempt["offer_id"],
        "projectId": run["project_id"],
        "taskId": run["task_id"],
        "taskRevision": run["task_revision"],
        "executionDigest": rows["task_execution_revisions"]["content_digest"],
        "workerGeneration": attempt["worker_generation"],
        "leaseGeneration": lease["lease_generation"],
        "expectedLeaseVersion": lease["version"],
        "leaseToken": LEASE_TOKEN,
        "secretRefs": [ref.text for ref in refs],
    }
    if bundle is not None:
        document |= {
            "schema": "qinglong/remote-secret-delivery@v2",
            "environmentBundleRefs": [bundle.text],
        }
    return document | {
        "workerId": attempt["worker_id"],
        "sessionId": attempt["worker_session_id"],
        "leaseExpiresAtMs": lease["expires_at_ms"],
        "environment": [{"name": f"SECRET_{n}", "secretRef": ref.text} for n, ref in enumerate(refs)],
    }


def build_world(
    path: Path, *, refs: int | Sequence[SecretRef] = 1, bundle: SecretRef | None = None, receipts: bool = False
) -> World:
    """Make a new store file at `path` that holds a valid world, good for an hour from now."""
    chosen = default_refs(refs) if isinstance(refs, int) else tuple(refs)
    now_ms = time.time_ns() // 1_000_000
    rows = facts(now_ms, chosen, bundle)
    sqlite_make.create(str(path), receipts=receipts)
    world = World(path, now_ms, chosen, bundle, rows, offer(rows, chosen, bundle))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        for table, row in rows.items():
            marks = ", ".join("?" * len(row))
            connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))
        connection.execute("COMMIT")
    return world
