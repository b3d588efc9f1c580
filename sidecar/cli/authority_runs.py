"""Actions on runs: `dispatch`, `renew`, `start`, `cancel`, `release`, and the offer file that they pass on."""

import argparse
import json
import os
from contextlib import suppress
from dataclasses import dataclass

from sidecar.cli.authority_store import Actions, add_action, in_transaction, report
from sidecar.cli.common import Exit, Fault, duration_ms, read_private, write_private
from sidecar.client_errors import OfferInvalid
from sidecar.client_offer import Offer
from sidecar.stores import control
from sidecar.stores.control import Tx


def configure(actions: Actions) -> None:
    """Describe the actions."""
    dispatch = add_action(
        actions,
        "dispatch",
        _dispatch,
        summary="make a run for a worker and write its offer",
        example="dispatch --worker worker-1 --project p --task t --secret API_TOKEN=REF --offer-file worker-1.offer"
        " --file store.db",
    )
    dispatch.add_argument("--worker", required=True, metavar="W", help="worker id; it needs a session that is online")
    dispatch.add_argument("--project", required=True, metavar="P", help="project id; every ref is of this project")
    dispatch.add_argument("--task", required=True, metavar="T", help="task id")
    dispatch.add_argument(
        "--secret",
        action="append",
        default=[],
        metavar="NAME=REF",
        help="a variable and its ref; repeat, in plan order",
    )
    dispatch.add_argument("--bundle", metavar="REF", help="ref, with a version, of the environment bundle")
    dispatch.add_argument(
        "--lease-ttl", type=duration_ms, default="10m", help="how long the lease is good (default: 10m)"
    )
    dispatch.add_argument("--offer-file", required=True, metavar="F", help="new file for the offer, mode 0600")
    renew = add_action(
        actions,
        "renew",
        _renew,
        summary="renew an offer's lease and replace the offer file",
        example="renew --offer-file worker-1.offer --file store.db",
    )
    renew.add_argument("--lease-ttl", type=duration_ms, default="10m", help="how long from now on (default: 10m)")
    start = add_action(
        actions,
        "start",
        _start,
        summary="set an offer's attempt to running; it gets no secrets any more",
        example="start --offer-file worker-1.offer --file store.db",
    )
    for action in (renew, start):
        action.add_argument("--offer-file", required=True, metavar="F", help="the offer that dispatch wrote")
    for action in (dispatch, renew):
        action.add_argument("--json", action="store_true", help="print one JSON document instead of lines")
    cancel = add_action(
        actions,
        "cancel",
        _cancel,
        summary="cancel a run; its attempt gets no secrets any more",
        example="cancel 018f0000-0000-7000-8000-000000000001 --file store.db",
    )
    cancel.add_argument("run", metavar="RUN", help="run id")
    release = add_action(
        actions,
        "release",
        _release,
        summary="end an attempt, its lease and its run",
        example="release 018f0000-0000-7000-8000-000000000002 --file store.db",
    )
    release.add_argument("attempt", metavar="ATTEMPT", help="attempt id")


def _dispatch(args: argparse.Namespace) -> int:
    plan = control.make_plan(args.project, args.task, args.secret, args.bundle)
    written = False

    async def step(tx: Tx) -> dict[str, object]:
        nonlocal written
        offer = await control.dispatch(tx, args.worker, plan, args.lease_ttl)
        # Before COMMIT: a lease whose token nobody has is worse than a file that means nothing.
        write_private(args.offer_file, _written(offer))
        written = True
        return offer

    try:
        offer = in_transaction(args, step)
    except BaseException:
        if written:
            with suppress(OSError):
                os.unlink(args.offer_file)
        raise
    shown = ("runId", "attemptId", "taskRevision", "leaseExpiresAtMs")
    return report(args, {name: offer[name] for name in shown})


@dataclass(frozen=True, slots=True, repr=False)
class _Held:
    """An offer file that was read and found good. Holds the lease token."""

    document: dict[str, object]
    offer: Offer


def _read(path: str) -> _Held:
    content = read_private(path)
    try:
        return _Held(json.loads(content), Offer.parse(content))
    except (OfferInvalid, ValueError):
        raise Fault(Exit.BAD_INPUT, "The offer file holds no offer.", "Use the file that `dispatch` wrote.") from None


def _renew(args: argparse.Namespace) -> int:
    held = _read(args.offer_file)
    command = held.offer.command
    given = in_transaction(
        args, lambda tx: control.renew(tx, command.attempt_id, command.lease_token_digest, args.lease_ttl)
    )
    # After COMMIT: when this fails the old file still holds the token, and another `renew` mends it.
    document = held.document | {"expectedLeaseVersion": given.number, "leaseExpiresAtMs": given.expires_at_ms}
    write_private(args.offer_file, _written(document), replace=True)
    return report(args, {"leaseVersion": given.number, "leaseExpiresAtMs": given.expires_at_ms})


def _start(args: argparse.Namespace) -> int:
    command = _read(args.offer_file).offer.command
    in_transaction(args, lambda tx: control.start(tx, command.attempt_id, command.lease_token_digest))
    print("running")
    return Exit.DONE


def _cancel(args: argparse.Namespace) -> int:
    changed = in_transaction(args, lambda tx: control.cancel(tx, args.run))
    print("cancelled" if changed else "cancelled already; nothing was changed")
    return Exit.DONE


def _release(args: argparse.Namespace) -> int:
    changed = in_transaction(args, lambda tx: control.release(tx, args.attempt))
    print("released" if changed else "the attempt is over already; nothing was changed")
    return Exit.DONE


def _written(document: dict[str, object]) -> bytes:
    return (json.dumps(document, ensure_ascii=False, indent=2) + "\n").encode()
