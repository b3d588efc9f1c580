"""Further attempts and credentials of a world, so that the connections of a load are not all one worker's."""

from typing import Final

from provider.credential import make_token
from tests.kit.stand import Stand
from tests.kit.world import CREDENTIAL_ID, SECRET

# The casts tell PostgreSQL what a parameter is; SQLite knows the same types.
_COPIES: Final = (
    "INSERT INTO worker_credentials SELECT CAST(? AS text), 1, worker_id, CAST(? AS text), state, not_before_at_ms,"
    " expires_at_ms FROM worker_credentials WHERE credential_id = ?",
    "INSERT INTO run_attempts SELECT CAST(? AS text), run_id, status, executor_type, worker_id, worker_session_id,"
    " worker_generation, lease_generation, lease_version, lease_token_digest, offer_id FROM run_attempts WHERE id = ?",
    "INSERT INTO run_dispatch_leases SELECT CAST(? AS text), run_id, status, version, lease_generation, worker_id,"
    " worker_session_id, worker_generation, lease_token_digest, offer_id, expires_at_ms FROM run_dispatch_leases"
    " WHERE attempt_id = ?",
)


def crowd(stand: Stand, number: int) -> list[str]:
    """Give the world so many further attempts and credentials, and return a request of each."""
    world, requests = stand.world, []
    for one in range(number):
        attempt, credential = f"attempt-{one}", f"worker-{one}"
        digest = world.peppers.current.digest(credential, SECRET)
        world.execute(_COPIES[0], (credential, digest, CREDENTIAL_ID))
        for statement in _COPIES[1:]:
            world.execute(statement, (attempt, world.attempt_id))
        body = world.body_bytes(attemptId=attempt)
        requests.append(stand.request(body, token=make_token(credential, SECRET)).decode("ascii"))
    return requests
