"""`secret-sidecar doctor`: what is wrong with a root of secret files, and the exact mend."""

import argparse
import os
from collections.abc import Mapping

from sidecar.cli.common import lines, print_table
from sidecar.cli.reports import report
from sidecar.config import named
from sidecar.doctor import Examination, Known, examine, read_refs
from sidecar.doctor.examine import label
from sidecar.doctor.files import Facts
from sidecar.findings import Finding, counted, printable
from sidecar.variables import PROVIDING


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.add_argument("root", metavar="ROOT", help="the directory that serve reads: QL3_WORKER_SECRET_ROOT_DIRECTORY")
    parser.add_argument("--refs", metavar="FILE", help="refs that must be there: one on each line, or a manifest")
    parser.add_argument("--strict", action="store_true", help="end with 65 for warnings too")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of lines")
    parser.epilog = lines(
        (
            "Run it as the user that the sidecar runs as, in its container. Changes nothing and never shows a value.",
            "Without --refs the refs are those of the store that the variables of serve name, if they name one.",
            "Ends with 65 for any error.",
            "",
            "example:",
            "  secret-sidecar doctor /var/run/secrets/qinglong3/worker-values --refs refs.txt",
        )
    )


def run(args: argparse.Namespace) -> int:
    """Examine the root and print what was found."""
    root = os.path.abspath(args.root)
    known, found = _known(args)
    result = examine(root, known)
    found += result.findings
    code = report("doctor", found, _summary(result, known) | counted(found), as_json=args.json, strict=args.strict)
    if not args.json:
        _tell(result, known)
    return code


def _known(args: argparse.Namespace) -> tuple[dict[str, Known] | None, list[Finding]]:
    if args.refs is None:
        return _of_the_store(), []
    refs, faults = read_refs(args.refs)
    return {name: Known(ref) for name, ref in refs.items()}, faults


def _of_the_store() -> dict[str, Known] | None:
    """The refs that a delivery may ask for, where the variables of serve name a store; otherwise None."""
    if named(f"{PROVIDING}AUTHORITY") is None:
        return None
    from sidecar.cli.store_reading import read_references

    found, _, _ = read_references(argparse.Namespace(file=None, admin_url_file=None))
    return {name: Known(one.ref, one.bundle) for name, one in found.wanted().items()}


def _summary(result: Examination, known: Mapping[str, Known] | None) -> dict[str, object]:
    return {
        "writer": result.writer,
        "generations": [
            {"name": printable(name), "inForce": in_force, "ageSeconds": round(age)}
            for name, (in_force, age) in result.generations.items()
        ],
        "files": [
            {
                "name": name,
                "ref": None if known is None or name not in known else known[name].ref.text,
                "readable": facts is not None,
                "kind": None if facts is None else facts.kind,
                "mode": None if facts is None else f"{facts.mode:04o}",
                "uid": None if facts is None else facts.uid,
                "gid": None if facts is None else facts.gid,
                "links": None if facts is None else facts.links,
                "size": None if facts is None else facts.size,
            }
            for name, facts in result.files.items()
        ],
    }


def _tell(result: Examination, known: Mapping[str, Known] | None) -> None:
    for name, (in_force, age) in result.generations.items():
        print(f"generation {printable(name)}: {'in force, ' if in_force else ''}{_age(age)} old")
    rows = [_row(name, facts, known) for name, facts in result.files.items()]
    missing = [one.ref for name, one in (known or {}).items() if name not in result.files]
    rows += [(printable(label(ref)), "missing", "-", "-", "-", "-") for ref in missing]
    if rows:
        print_table(sorted(rows), ("SECRET", "KIND", "MODE", "OWNER", "LINKS", "SIZE"))
    numbers = counted(result.findings)
    print(
        f"{len(result.files)} files, written by {result.writer}:"
        f" {numbers['errors']} errors, {numbers['warnings']} warnings"
    )


def _row(name: str, facts: Facts | None, known: Mapping[str, Known] | None) -> tuple[str, ...]:
    shown = name if known is None or name not in known else printable(label(known[name].ref))
    if facts is None:
        return shown, "unreadable", "-", "-", "-", "-"
    owner = f"{facts.uid}:{facts.gid}"
    return shown, facts.kind, f"{facts.mode:04o}", owner, str(facts.links), str(facts.size)


def _age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
