"""What the store holds, for a person or a machine: workers and runs, without a digest, token or plan."""

from collections.abc import Sequence
from typing import Final

from sidecar.stores.control_db import Row, Tx
from sidecar.stores.control_rules import TERMINAL, unknown

_OVER: Final = ", ".join(f"'{state}'" for state in TERMINAL)
_LIVE: Final = f"r.status NOT IN ({_OVER})"
_NAMED: Final = (
    f"({_LIVE} AND r.id IN (SELECT run_id FROM run_attempts WHERE worker_id = ?))"  # noqa: S608 - of constants
    " OR r.id = ? OR r.id IN (SELECT run_id FROM run_attempts WHERE id = ?)"
)
_RUNS: Final = (
    "SELECT r.id, r.project_id, r.task_id, r.task_revision, r.status, r.cancel_requested_at_ms, a.id, a.status,"
    " a.worker_id, a.worker_session_id, l.status, l.version, l.expires_at_ms FROM runs AS r"
    " LEFT JOIN run_attempts AS a ON a.run_id = r.id LEFT JOIN run_dispatch_leases AS l ON l.attempt_id = a.id"
)
_CREDENTIALS: Final = (
    "SELECT worker_id, credential_id, version, state, not_before_at_ms, expires_at_ms FROM worker_credentials AS c"
    " WHERE c.version = (SELECT max(n.version) FROM worker_credentials AS n WHERE n.credential_id = c.credential_id)"
)
_SESSIONS: Final = "SELECT worker_id, session_id, generation, status, lease_expires_at_ms FROM worker_sessions"
_CREDENTIAL_KEYS: Final = ("credentialId", "version", "state", "notBeforeAtMs", "expiresAtMs")
_SESSION_KEYS: Final = ("sessionId", "generation", "status", "expiresAtMs")
_RUN_KEYS: Final = ("runId", "projectId", "taskId", "taskRevision", "status", "cancelRequestedAtMs")
_ATTEMPT_KEYS: Final = ("attemptId", "status", "workerId", "sessionId")
_LEASE_KEYS: Final = ("status", "version", "expiresAtMs")

Document = dict[str, object]


async def show(tx: Tx, what: str | None) -> Document:
    """Return `nowMs`, `workers` and `runs`: all workers and live runs, or those that the id of one of them names.

    A run's or attempt's id gives that run, a worker's its live runs too. Raises ControlRefused for an unknown id.
    """
    if what is None:
        workers = await _workers(tx)
        runs = await _runs(tx, _LIVE)
    else:
        workers = await _workers(tx, what)
        runs = await _runs(tx, _NAMED, what, what, what)
        if not workers and not runs:
            raise unknown("run, attempt or worker")
    return {"schemaVersion": 1, "nowMs": await tx.now_ms(), "workers": workers, "runs": runs}


async def _workers(tx: Tx, *worker_id: str) -> list[Document]:
    """Every worker, or the one named, with its session and the newest version of each of its credentials."""
    found: dict[object, Document] = {}

    def worker(name: object) -> Document:
        return found.setdefault(name, {"workerId": name, "session": None, "credentials": []})

    for row in await tx.fetch(_SESSIONS + (" WHERE worker_id = ?" if worker_id else ""), *worker_id):
        worker(row[0])["session"] = _document(_SESSION_KEYS, row[1:])
    for row in await tx.fetch(_CREDENTIALS + (" AND c.worker_id = ?" if worker_id else ""), *worker_id):
        credentials = worker(row[0])["credentials"]
        assert isinstance(credentials, list)
        credentials.append(_document(_CREDENTIAL_KEYS, row[1:]))
    return [found[name] for name in sorted(found, key=str)]


async def _runs(tx: Tx, condition: str, *values: str) -> list[Document]:
    """The runs that meet a condition, oldest first (ids are made of their time), with attempts and leases."""
    found: dict[object, Document] = {}
    for row in await tx.fetch(f"{_RUNS} WHERE {condition} ORDER BY r.id, a.id", *values):
        run = found.setdefault(row[0], _document(_RUN_KEYS, row[:6]) | {"attempts": []})
        attempts = run["attempts"]
        assert isinstance(attempts, list)
        if row[6] is not None:
            lease = None if row[10] is None else _document(_LEASE_KEYS, row[10:])
            attempts.append(_document(_ATTEMPT_KEYS, row[6:10]) | {"lease": lease})
    return list(found.values())


def _document(keys: Sequence[str], row: Row) -> Document:
    return dict(zip(keys, row, strict=True))
