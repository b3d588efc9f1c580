"""The action `show`: workers and runs, for a person as aligned lines or for a machine as JSON."""

import argparse
from collections.abc import Iterator
from typing import Any

from sidecar.cli.authority_store import Actions, add_action, in_transaction, moment
from sidecar.cli.common import Exit, print_json, print_table
from sidecar.stores import control

_HEADER = ("KIND", "ID", "STATE", "UNTIL", "OF", "MORE")


def configure(actions: Actions) -> None:
    """Describe the action."""
    show = add_action(
        actions,
        "show",
        _show,
        summary="show all workers and live runs, or what a run, attempt or worker id names",
        example="show worker-1 --json --file store.db",
    )
    show.add_argument("id", nargs="?", metavar="RUN|ATTEMPT|WORKER", help="id of a run, an attempt or a worker")
    show.add_argument("--json", action="store_true", help="print one JSON document instead of lines")


def _show(args: argparse.Namespace) -> int:
    document = in_transaction(args, lambda tx: control.show(tx, args.id), write=False)
    if args.json:
        print_json(document)
        return Exit.DONE
    rows = list(_lines(document))
    if rows:
        print_table(rows, _HEADER)
    return Exit.DONE


def _lines(document: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    for worker in document["workers"]:
        name, session = worker["workerId"], worker["session"]
        for credential in worker["credentials"]:
            more = f"version {credential['version']}"
            yield (
                "credential",
                credential["credentialId"],
                credential["state"],
                moment(credential["expiresAtMs"]),
                name,
                more,
            )
        if session is not None:
            more = f"generation {session['generation']}"
            yield "session", session["sessionId"], session["status"], moment(session["expiresAtMs"]), name, more
    for run in document["runs"]:
        asked = run["cancelRequestedAtMs"]
        more = "" if asked is None else f"cancel asked {moment(asked)}"
        yield "run", run["runId"], run["status"], "-", f"{run['projectId']}/{run['taskId']}", more
        for attempt in run["attempts"]:
            lease = attempt["lease"] or {"status": "none", "version": "-", "expiresAtMs": None}
            more = f"lease {lease['status']} version {lease['version']}"
            yield (
                "attempt",
                attempt["attemptId"],
                attempt["status"],
                moment(lease["expiresAtMs"]),
                attempt["workerId"],
                more,
            )
