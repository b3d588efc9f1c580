"""What the steps of the control plane share: states that are over, bounds, and the refusals they have in common."""

from dataclasses import dataclass
from typing import Final

from provider.limits import VERSION_MAX
from sidecar.stores.control_db import ControlRefused, Tx, Value, Wrong

TERMINAL: Final = ("released", "cancelled", "succeeded", "failed", "timed_out")
"""The closed list of states in which a run or attempt is over; every other one, known or not, is live."""
LONGEST_TTL_MS: Final = 10 * 366 * 86_400_000
"""Ten years: no credential, session or lease is given for longer."""


@dataclass(frozen=True, slots=True)
class Until:
    """What was given, and when it ends (ms on the store's clock)."""

    number: int
    """The credential's version, the session's generation or the lease's version."""
    expires_at_ms: int


async def until(tx: Tx, ttl_ms: int) -> int:
    """Return the moment `ttl_ms` from now on the store's clock. Raises ControlRefused over ten years."""
    if not 0 < ttl_ms <= LONGEST_TTL_MS:
        raise ControlRefused(Wrong.INPUT, "The time asked for is over ten years.", "Choose a shorter one.")
    return await tx.now_ms() + ttl_ms


def number(value: Value) -> int:
    """Return a version or generation that the store holds. Raises ControlRefused for one that is no integer."""
    if type(value) is not int:
        raise ControlRefused(
            Wrong.STATE, "The store holds a version or generation that is no integer.", "Mend the row, or use a backup."
        )
    return value


def following(value: int) -> int:
    """Return the next version or generation. Raises ControlRefused beyond the contract's bound."""
    if value >= VERSION_MAX:
        raise ControlRefused(Wrong.STATE, "The last possible version or generation is in use.", "Choose another id.")
    return value + 1


def unknown(what: str) -> ControlRefused:
    """Return the refusal for an id that the store does not have."""
    return ControlRefused(
        Wrong.INPUT, f"There is no such {what}.", "See what there is with `secret-sidecar authority show`."
    )


async def require_enrolled(tx: Tx, worker_id: str) -> None:
    """Raise ControlRefused unless the newest version of one of the worker's credentials is good now."""
    now_ms = await tx.now_ms()
    rows = await tx.fetch(
        "SELECT c.version FROM worker_credentials AS c WHERE c.worker_id = ? AND c.state = 'active'"
        " AND c.expires_at_ms > ? AND c.version ="
        " (SELECT max(n.version) FROM worker_credentials AS n WHERE n.credential_id = c.credential_id)",
        *(worker_id, now_ms),
    )
    if not rows:
        raise ControlRefused(
            Wrong.INPUT,
            "There is no such worker, or it has no credential that is good now.",
            "Enrol it with `secret-sidecar authority enroll`.",
        )
