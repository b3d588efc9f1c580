"""An `Authority` for any refs, made the only way there is one: by `verify`, in a world made by hand where it holds."""

import hashlib
import json
from collections.abc import Sequence

from provider import strictjson
from provider.authority import Authority, Tenure, verify
from provider.command import Schema, parse_command
from provider.credential import CredentialRow, Pepper, Peppers, Principal, authenticate, make_token, present
from provider.plan import PLAN_SCHEMA
from provider.receipts import Receipt
from provider.refs import SecretRef
from provider.snapshot import Attempt, Credential, Lease, Revision, Run, Session, Snapshot

PROJECT = "project"
_WORKER, _SESSION, _RUN, _ATTEMPT, _OFFER, _TASK = "worker", "session", "run", "attempt", "offer", "task"
_LEASE_TOKEN = "t" * 43
_DIGEST = "d" * 64
_REVISION = f"qltd:v1:1:{_DIGEST}"
_NOW, _LATER = 1_000, 2_000


class _Hold:
    """A hold that only `verify` looks at."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.tenure = Tenure()

    async def commit(self, authority: Authority, receipts: tuple[Receipt, ...]) -> None:
        """Never called: material is read before the end."""
        raise AssertionError("no test of the provider commits")


def secret(name: str) -> SecretRef:
    """Return the ref of secret `name` of the world's project."""
    return SecretRef.of(PROJECT, name)


def bundle(name: str) -> SecretRef:
    """Return the ref of environment bundle `name`; a bundle has a version."""
    return SecretRef.of(PROJECT, name, 1)


def authority_for(secret_refs: Sequence[SecretRef], bundle_refs: Sequence[SecretRef] = ()) -> Authority:
    """Return leave to open exactly these refs of project `PROJECT`; the hold stays open."""
    document = {
        "schema": Schema.V2.value, "runId": _RUN, "attemptId": _ATTEMPT, "offerId": _OFFER, "projectId": PROJECT,
        "taskId": _TASK, "taskRevision": _REVISION, "executionDigest": _DIGEST, "workerGeneration": 1,
        "leaseGeneration": 1, "expectedLeaseVersion": 1, "leaseToken": _LEASE_TOKEN,
        "secretRefs": [ref.text for ref in secret_refs], "environmentBundleRefs": [ref.text for ref in bundle_refs],
    }  # fmt: skip
    command = parse_command(strictjson.parse(json.dumps(document).encode()))
    return verify(_principal(), _SESSION, command, _Hold(_snapshot(secret_refs, bundle_refs)))


def _principal() -> Principal:
    pepper = Pepper(bytes(range(32)))
    raw = bytes(range(32, 64))
    row = CredentialRow("c", 1, _WORKER, pepper.digest("c", raw), "active", 0, _LATER)
    presented = present(f"Worker {make_token('c', raw)}".encode())
    return authenticate(presented, _WORKER, row, _NOW, Peppers(pepper, None))


def _snapshot(secret_refs: Sequence[SecretRef], bundle_refs: Sequence[SecretRef]) -> Snapshot:
    token_digest = hashlib.sha256(_LEASE_TOKEN.encode()).hexdigest()
    environment = [
        {"name": f"V{number}", "kind": "secret", "secretRef": ref.text} for number, ref in enumerate(secret_refs)
    ]
    plan: dict[str, object] = {"command": {}, "environment": environment}
    if bundle_refs:
        plan["environmentBundleRef"] = bundle_refs[0].text
    return Snapshot(
        now_ms=_NOW,
        read_at=0.0,
        attempt=Attempt(_RUN, "starting", "remote_worker", _WORKER, _SESSION, 1, 1, 1, token_digest, _OFFER),
        run=Run(PROJECT, _TASK, _REVISION, "dispatching", "runtime", None),
        lease=Lease(_RUN, "leased", 1, 1, _WORKER, _SESSION, 1, token_digest, _OFFER, _LATER),
        session=Session(_SESSION, 1, "online", _LATER),
        revision=Revision("1", _DIGEST, PLAN_SCHEMA, json.dumps(plan), _DIGEST),
        credential=Credential(1, _WORKER, "active", 0, _LATER),
    )
