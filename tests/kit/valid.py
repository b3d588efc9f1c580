"""The valid world as `provider` sees it: a request, its worker, the snapshot it meets. A test breaks one fact of it.

Nothing here needs a store; `tests/kit/world.py` writes the like of it into one.
"""

import hashlib
import json
from dataclasses import replace
from typing import Any, Final

from provider import strictjson
from provider.command import Command, Schema, parse_command
from provider.credential import CredentialRow, Pepper, Peppers, Principal, authenticate, make_token, present
from provider.refs import SecretRef
from provider.snapshot import Attempt, Credential, Lease, Revision, Run, Session, Snapshot

PROJECT: Final = "project-1"
WORKER: Final = "worker-1"
CREDENTIAL: Final = "cred_1"
CREDENTIAL_VERSION: Final = 3
SESSION: Final = "01890a5d-ac96-774b-bcce-b302099a8057"
RUN: Final = "01890a5d-ac96-774b-bcce-b302099a8001"
ATTEMPT: Final = "01890a5d-ac96-774b-bcce-b302099a8002"
OFFER: Final = "offer-1"
NOW_MS: Final = 1_800_000_000_000
READ_AT: Final = 1000.0
LEASE_TOKEN: Final = "CANARY-lease-token-0123456789abcdef"
SECRET: Final = b"CANARY-credential-secret-32bytes"
PEPPER: Final = Pepper.parse("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8")
PEPPERS: Final = Peppers(PEPPER, None)
AUTHORIZATION: Final = b"Worker " + make_token(CREDENTIAL, SECRET).encode()

TOKEN: Final = SecretRef.of(PROJECT, "token")
KEY: Final = SecretRef.of(PROJECT, "key", 2)
SECRETS: Final = (TOKEN, KEY)
BUNDLE: Final = SecretRef.of(PROJECT, "bundle", 7)

LEASE_DIGEST: Final = hashlib.sha256(LEASE_TOKEN.encode()).hexdigest()
PLAN_DIGEST: Final = "ab" * 32
SOURCE_DIGEST: Final = "cd" * 32
TASK_REVISION: Final = f"qltd:v1:9:{SOURCE_DIGEST}"

PLAN: Final[dict[str, object]] = {
    "command": {"kind": "argv", "file": "/bin/true", "args": []},
    "environment": [
        {"name": "TOKEN", "kind": "secret", "secretRef": TOKEN.text},
        {"name": "MODE", "kind": "public", "value": "fast"},
        {"name": "KEY", "kind": "secret", "secretRef": KEY.text},
        {"name": "TOKEN_AGAIN", "kind": "secret", "secretRef": TOKEN.text},
    ],
    "environmentBundleRef": BUNDLE.text,
    "timeoutMs": 1000,
}
"""Both secrets, one of them twice, and the bundle."""

CREDENTIAL_ROW: Final = CredentialRow(
    credential_id=CREDENTIAL,
    version=CREDENTIAL_VERSION,
    worker_id=WORKER,
    secret_digest=PEPPER.digest(CREDENTIAL, SECRET),
    state="active",
    not_before_at_ms=NOW_MS - 1000,
    expires_at_ms=NOW_MS + 9000,
)


def body(**changes: object) -> bytes:
    """The request's body in `@v2`, with these keys changed; None removes a key."""
    document: dict[str, object] = {
        "schema": Schema.V2.value,
        "runId": RUN,
        "attemptId": ATTEMPT,
        "offerId": OFFER,
        "projectId": PROJECT,
        "taskId": "task-1",
        "taskRevision": TASK_REVISION,
        "executionDigest": PLAN_DIGEST,
        "workerGeneration": 4,
        "leaseGeneration": 5,
        "expectedLeaseVersion": 6,
        "leaseToken": LEASE_TOKEN,
        "secretRefs": [ref.text for ref in SECRETS],
        "environmentBundleRefs": [BUNDLE.text],
    }
    document.update(changes)
    return json.dumps({key: value for key, value in document.items() if value is not None}).encode()


def body_v1(**changes: object) -> bytes:
    """The same in `@v1`, which knows no bundle."""
    return body(**{"schema": Schema.V1.value, "environmentBundleRefs": None, **changes})


def command(content: bytes | None = None) -> Command:
    """The command of this body, or of the valid one."""
    return parse_command(strictjson.parse(body() if content is None else content))


def principal() -> Principal:
    """The worker, authenticated."""
    return authenticate(present(AUTHORIZATION), WORKER, CREDENTIAL_ROW, NOW_MS, PEPPERS)


def plan_json(**changes: object) -> str:
    """The plan's text with these keys changed; None removes a key."""
    return json.dumps({key: value for key, value in {**PLAN, **changes}.items() if value is not None})


SNAPSHOT: Final = Snapshot(
    now_ms=NOW_MS,
    read_at=READ_AT,
    attempt=Attempt(
        run_id=RUN,
        status="starting",
        executor_type="remote_worker",
        worker_id=WORKER,
        worker_session_id=SESSION,
        worker_generation=4,
        lease_generation=5,
        lease_version=6,
        lease_token_digest=LEASE_DIGEST,
        offer_id=OFFER,
    ),
    run=Run(
        project_id=PROJECT,
        task_id="task-1",
        task_revision=TASK_REVISION,
        status="dispatching",
        execution_owner="runtime",
        cancel_requested_at_ms=None,
    ),
    lease=Lease(
        run_id=RUN,
        status="leased",
        version=6,
        lease_generation=5,
        worker_id=WORKER,
        worker_session_id=SESSION,
        worker_generation=4,
        lease_token_digest=LEASE_DIGEST,
        offer_id=OFFER,
        expires_at_ms=NOW_MS + 5000,
    ),
    session=Session(session_id=SESSION, generation=4, status="online", lease_expires_at_ms=NOW_MS + 7000),
    revision=Revision(
        source_revision=9,
        source_content_digest=SOURCE_DIGEST,
        plan_schema="qinglong/command-execution@v1",
        plan_json=plan_json(),
        content_digest=PLAN_DIGEST,
    ),
    credential=Credential(
        version=CREDENTIAL_VERSION,
        worker_id=WORKER,
        state="active",
        not_before_at_ms=NOW_MS - 1000,
        expires_at_ms=NOW_MS + 9000,
    ),
)


def changed(row: str, **columns: Any) -> Snapshot:
    """The snapshot with these columns of one row changed."""
    return replace(SNAPSHOT, **{row: getattr(SNAPSHOT, row)._replace(**columns)})
