"""`secret-sidecar inventory`: every ref that the store names, against the files of a root."""

import argparse
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from provider.refs import SecretRef
from sidecar.cli.authority_store import moment
from sidecar.cli.common import lines, print_table
from sidecar.cli.reports import report
from sidecar.cli.store_reading import add_store_options, files_in_force, read_references, root_of
from sidecar.doctor.examine import label
from sidecar.findings import Finding, counted, printable
from sidecar.publish.manifest import HASH
from sidecar.stores.references import References

STATES: Final = ("served", "missing", "superseded", "orphaned")


@dataclass(frozen=True, slots=True)
class Item:
    """One ref or file, and how the two stand."""

    state: str
    file_name: str
    ref: SecretRef | None
    """None for a file that no revision has ever named."""
    written_ms: int | None
    delivered_ms: int | None


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.add_argument(
        "root", nargs="?", metavar="ROOT", help="the directory that serve reads (default: its variable)"
    )
    add_store_options(parser)
    parser.add_argument("--strict", action="store_true", help="end with 65 for warnings too")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of lines")
    parser.epilog = lines(
        (
            "served: named by a live run or a startable revision, and there; missing: named, and not there;",
            "superseded: named by nothing that counts, but another version of it is; orphaned: named by nothing.",
            "Live is every run whose status is not known to be over; startable the newest revision of each task.",
            "The last delivery is known from receipts alone; PostgreSQL's are read with --admin-url-file.",
            "Ends with 65 when something is missing.",
            "",
            "example:",
            "  secret-sidecar inventory /srv/secrets --file store.db",
        )
    )


def run(args: argparse.Namespace) -> int:
    """Compare and print."""
    root = root_of(args)
    files = files_in_force(root)
    named, deliveries, _ = read_references(args)
    items = take_stock(named, files, deliveries)
    found = _findings(root, named, items)
    summary = {state: sum(item.state == state for item in items) for state in STATES}
    shown = {"secrets": [_document(item, deliveries) for item in items]} if args.json else {}
    code = report("inventory", found, {**summary, **counted(found), **shown}, as_json=args.json, strict=args.strict)
    if not args.json:
        if items:
            print_table([_row(item, deliveries) for item in items], ("STATE", "SECRET", "FILE", "AGE", "DELIVERED"))
        print(", ".join(f"{number} {state}" for state, number in summary.items()))
    return code


def take_stock(named: References, files: Mapping[str, int], deliveries: Mapping[str, int] | None) -> list[Item]:
    """Return every named ref and every file that is named by hash, by project and name; unknown files come last."""
    wanted = named.wanted()
    versions = Counter((one.ref.project_id, one.ref.name) for one in wanted.values())
    items = []
    for name in wanted.keys() | {name for name in files if HASH.fullmatch(name)}:
        known = named.named.get(name)
        if name in wanted:
            state = "served" if name in files else "missing"
        else:
            other = known is not None and versions[(known.ref.project_id, known.ref.name)]
            state = "superseded" if other else "orphaned"
        ref = None if known is None else known.ref
        items.append(Item(state, name, ref, files.get(name), (deliveries or {}).get(name)))
    return sorted(items, key=_order)


def _order(item: Item) -> tuple[bool, str, str, int, str]:
    if item.ref is None:
        return True, "", "", 0, item.file_name
    return False, item.ref.project_id, item.ref.name, item.ref.version or 0, item.file_name


def plan_findings(named: References) -> list[Finding]:
    """Return what cannot be told of the store, because plans or revisions are not as the contract has them."""
    mend = "Mend the row; serve refuses every delivery of it."
    found = [
        Finding("plan_unreadable", printable(where), "the plan is none that serve accepts", mend, "warning")
        for where in named.unreadable
    ]
    if named.lost:
        cause = f"{named.lost} task revisions of live runs have no row, so nobody can tell what they name"
        found.append(Finding("revision_lost", "task_execution_revisions", cause, "Mend the store.", "warning"))
    return found


def _findings(root: str, named: References, items: list[Item]) -> list[Finding]:
    found = plan_findings(named)
    for item in items:
        where = f"{root}/{item.file_name}"
        if item.state == "missing" and item.ref is not None:
            entry = f'{{"ref":"{item.ref.text}","file":"..."}}'
            cause, mend = f"there is no file for {label(item.ref)}", f"Add to the manifest, and publish: {entry}"
            found.append(Finding("missing", where, cause, mend))
        elif item.state == "superseded" and item.ref is not None:
            cause, mend = f"{label(item.ref)} is asked for in another version", "See `secret-sidecar retention plan`."
            found.append(Finding("superseded", where, cause, mend, "info"))
        elif item.state == "orphaned":
            cause, mend = "nothing that counts names it", "Leave it, or drop it with `secret-sidecar publish --prune`."
            found.append(Finding("orphaned", where, cause, mend, "info"))
    return found


def _document(item: Item, deliveries: Mapping[str, int] | None) -> dict[str, object]:
    ref = item.ref
    return {
        "state": item.state,
        "projectId": None if ref is None else ref.project_id,
        "name": None if ref is None else ref.name,
        "version": None if ref is None else ref.version,
        "ref": None if ref is None else ref.text,
        "fileName": item.file_name,
        "ageSeconds": None if item.written_ms is None else _age_s(item.written_ms),
        "lastDeliveryAtMs": "unknown" if deliveries is None else item.delivered_ms,
    }


def _row(item: Item, deliveries: Mapping[str, int] | None) -> tuple[str, ...]:
    name = "?" if item.ref is None else printable(label(item.ref))
    age = "-" if item.written_ms is None else f"{_age_s(item.written_ms)}s"
    delivered = "unknown" if deliveries is None else moment(item.delivered_ms)
    return item.state, name, item.file_name, age, delivered


def _age_s(written_ms: int) -> int:
    return max(0, round(time.time() - written_ms / 1000))
