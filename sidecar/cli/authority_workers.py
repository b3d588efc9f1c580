"""Actions on workers: `enroll`, `revoke-credential`, `open-session`, `drain`."""

import argparse
import hashlib
import os
import secrets
from contextlib import suppress
from typing import Final

from provider.credential import SECRET_BYTES, Pepper, make_token, valid_credential_id, valid_worker_id
from sidecar.cli.authority_store import Actions, add_action, in_transaction, report
from sidecar.cli.common import Exit, Fault, duration_ms, write_private
from sidecar.config import ConfigFaults, peppers_from_environment
from sidecar.stores import control
from sidecar.stores.control import Tx, Until

_CREDENTIAL_ID_CHARACTERS: Final = 64
_ID_RULE: Final = "of A-Z a-z 0-9 . _ : -, a letter or digit first."


def configure(actions: Actions) -> None:
    """Describe the actions."""
    enroll = add_action(
        actions,
        "enroll",
        _enroll,
        summary="give a worker a credential, or the next version of one",
        example="enroll worker-1 --token-file worker-1.token --ttl 90d --file store.db",
    )
    enroll.add_argument("worker", metavar="WORKER", help="worker id")
    enroll.add_argument("--token-file", required=True, metavar="F", help="new file for the token and one LF, mode 0600")
    enroll.add_argument(
        "--credential-id", metavar="C", help="the same one again adds a version (default: of the worker)"
    )
    enroll.add_argument("--ttl", type=duration_ms, default="365d", help="how long it is good (default: 365d)")
    revoke = add_action(
        actions,
        "revoke-credential",
        _revoke,
        summary="revoke a credential, all versions of it",
        example="revoke-credential worker-1 --file store.db",
    )
    revoke.add_argument("credential", metavar="C", help="credential id")
    session = add_action(
        actions,
        "open-session",
        _open_session,
        summary="open a worker's session; the one before, and all it held, is fenced",
        example="open-session worker-1 --ttl 12h --file store.db",
    )
    session.add_argument("worker", metavar="WORKER", help="worker id")
    session.add_argument("--ttl", type=duration_ms, default="10m", help="how long it is good (default: 10m)")
    drain = add_action(
        actions,
        "drain",
        _drain,
        summary="let a worker finish what it has, and dispatch nothing new to it",
        example="drain worker-1 --file store.db",
    )
    drain.add_argument("worker", metavar="WORKER", help="worker id")
    for action in (enroll, session):
        action.add_argument("--json", action="store_true", help="print one JSON document instead of lines")


def _enroll(args: argparse.Namespace) -> int:
    """Write the token file before COMMIT: a credential that nobody has is worse than a file that means nothing."""
    worker_id = args.worker
    credential_id = args.credential_id or _credential_id(worker_id)
    if not valid_worker_id(worker_id):
        raise Fault(Exit.BAD_INPUT, "That is no worker id.", f"Use 1 to 128 {_ID_RULE}")
    if not valid_credential_id(credential_id):
        raise Fault(Exit.BAD_INPUT, "That is no credential id.", f"Use 1 to 64 {_ID_RULE}")
    pepper = _pepper()
    secret = secrets.token_bytes(SECRET_BYTES)
    written = False

    async def step(tx: Tx) -> Until:
        nonlocal written
        given = await control.enroll(tx, worker_id, credential_id, pepper.digest(credential_id, secret), args.ttl)
        write_private(args.token_file, f"{make_token(credential_id, secret)}\n".encode())
        written = True
        return given

    try:
        given = in_transaction(args, step)
    except BaseException:
        if written:
            with suppress(OSError):
                os.unlink(args.token_file)
        raise
    facts = {"workerId": worker_id, "credentialId": credential_id, "version": given.number}
    return report(args, facts | {"expiresAtMs": given.expires_at_ms})


def _credential_id(worker_id: str) -> str:
    """The worker's id where it fits, otherwise its beginning and a digest of all of it."""
    if len(worker_id) <= _CREDENTIAL_ID_CHARACTERS:
        return worker_id
    return f"{worker_id[:47]}-{hashlib.sha256(worker_id.encode(errors='replace')).hexdigest()[:16]}"


def _pepper() -> Pepper:
    try:
        return peppers_from_environment().current
    except ConfigFaults as faults:
        wrong = "There is no pepper to digest with, so nothing was written."
        raise Fault(Exit.CONFIGURATION, wrong, str(faults)) from None


def _revoke(args: argparse.Namespace) -> int:
    changed = in_transaction(args, lambda tx: control.revoke_credential(tx, args.credential))
    print("revoked" if changed else "revoked already; nothing was changed")
    return Exit.DONE


def _open_session(args: argparse.Namespace) -> int:
    session_id, given = in_transaction(args, lambda tx: control.open_session(tx, args.worker, args.ttl))
    facts = {"workerId": args.worker, "sessionId": session_id, "generation": given.number}
    return report(args, facts | {"expiresAtMs": given.expires_at_ms})


def _drain(args: argparse.Namespace) -> int:
    changed = in_transaction(args, lambda tx: control.drain(tx, args.worker))
    print("draining" if changed else "the session is not online; nothing was changed")
    return Exit.DONE
