"""Steps of the control plane for workers: credentials and sessions. See `control` for the states."""

from sidecar.ids import uuid7
from sidecar.stores.control_db import ControlRefused, Tx, Wrong
from sidecar.stores.control_rules import Until, following, number, require_enrolled, unknown, until


async def enroll(tx: Tx, worker_id: str, credential_id: str, secret_digest: str, ttl_ms: int) -> Until:
    """Add the next version of a credential; it alone counts from now on. The first version makes the credential."""
    expires_at_ms = await until(tx, ttl_ms)
    rows = await tx.fetch("SELECT version, worker_id FROM worker_credentials WHERE credential_id = ?", credential_id)
    if any(row[1] != worker_id for row in rows):
        raise ControlRefused(
            Wrong.INPUT, "That credential id belongs to another worker.", "Choose another with --credential-id."
        )
    version = following(max((number(row[0]) for row in rows), default=0))
    await tx.execute(
        "UPDATE worker_credentials SET state = 'superseded' WHERE credential_id = ? AND state = 'active'", credential_id
    )
    await tx.execute(
        "INSERT INTO worker_credentials (credential_id, version, worker_id, secret_digest, state, not_before_at_ms,"
        " expires_at_ms) VALUES (?, ?, ?, ?, 'active', ?, ?)",
        *(credential_id, version, worker_id, secret_digest, await tx.now_ms(), expires_at_ms),
    )
    return Until(version, expires_at_ms)


async def revoke_credential(tx: Tx, credential_id: str) -> bool:
    """Revoke every version of a credential. Returns whether that changed anything."""
    if not await tx.fetch("SELECT version FROM worker_credentials WHERE credential_id = ?", credential_id):
        raise unknown("credential")
    changed = await tx.execute(
        "UPDATE worker_credentials SET state = 'revoked' WHERE credential_id = ? AND state <> 'revoked'", credential_id
    )
    return changed > 0


async def open_session(tx: Tx, worker_id: str, ttl_ms: int) -> tuple[str, Until]:
    """Give an enrolled worker a new session of the next generation; whatever the one before held is fenced."""
    expires_at_ms = await until(tx, ttl_ms)
    await require_enrolled(tx, worker_id)
    rows = await tx.fetch("SELECT generation FROM worker_sessions WHERE worker_id = ?", worker_id)
    generation = following(number(rows[0][0]) if rows else 0)
    session_id = uuid7(await tx.now_ms())
    await tx.execute(
        "INSERT INTO worker_sessions (worker_id, session_id, generation, status, lease_expires_at_ms)"
        " VALUES (?, ?, ?, 'online', ?) ON CONFLICT (worker_id) DO UPDATE SET session_id = excluded.session_id,"
        " generation = excluded.generation, status = excluded.status,"
        " lease_expires_at_ms = excluded.lease_expires_at_ms",
        *(worker_id, session_id, generation, expires_at_ms),
    )
    return session_id, Until(generation, expires_at_ms)


async def drain(tx: Tx, worker_id: str) -> bool:
    """Let a worker finish what it has and get nothing new. Returns whether that changed anything."""
    if not await tx.fetch("SELECT session_id FROM worker_sessions WHERE worker_id = ?", worker_id):
        raise unknown("worker with a session")
    changed = await tx.execute(
        "UPDATE worker_sessions SET status = 'draining' WHERE worker_id = ? AND status = 'online'", worker_id
    )
    return changed > 0
