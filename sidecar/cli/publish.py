"""`secret-sidecar publish`: write secret values into a root so that no reader meets half of one."""

import argparse
import grp
import os
from typing import Final

from sidecar.cli.common import Exit, Fault, lines
from sidecar.cli.reports import report, verdict
from sidecar.findings import Finding, counted
from sidecar.publish import How, Inputs, Published, Unpublished, judge_target, publish, read_directory, read_manifest

_GROUPS: Final = 2**32 - 1
"""No group has this number: to the kernel it means none."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.add_argument("root", metavar="ROOT", help="the directory that serve reads: QL3_WORKER_SECRET_ROOT_DIRECTORY")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--manifest", metavar="M.json", help="which refs, and the file of each value")
    source.add_argument("--from-dir", metavar="D", help="a directory whose files are named by hash already")
    parser.add_argument(
        "--layout", choices=("linked", "flat"), default="linked", help="linked: all values change together (default)"
    )
    parser.add_argument("--mode", choices=("0440", "0400"), default="0440", help="mode of each file (default: 0440)")
    parser.add_argument("--group", metavar="G", help="group of each file: name or number")
    parser.add_argument("--prune", action="store_true", help="drop the names that are not published now")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of lines")
    parser.epilog = lines(
        (
            'M.json is {"schemaVersion":1,"secrets":[{"project":"p","name":"n","version":1,"file":"n.txt"}]}; "ref"',
            'may stand for project, name and version, "stdin":true for file, and "bundle":true allows 98304 bytes.',
            "Linked: killed at any moment, a reader has the old values or the new ones. Flat: each file is old or",
            "new, but a set may mix. Names that are not published now stay, unless --prune is given.",
            "Ends with 65, with nothing written, for any fault in the manifest, a value or the root, and with 1 when",
            "the file system refuses midway: what was in force stays so.",
            "",
            "example:",
            "  secret-sidecar publish /srv/secrets --manifest secrets.json --group secret-sidecar",
        )
    )


def run(args: argparse.Namespace) -> int:
    """Publish; 65 for faulty input, 1 when the file system refuses."""
    root = os.path.abspath(args.root)
    read = read_directory(args.from_dir) if args.manifest is None else read_manifest(args.manifest)
    sources, found = read
    gid, wrong = _gid(args.group)
    found += wrong + judge_target(root)
    how = How(args.layout, int(args.mode, 8), gid, args.prune)
    with Inputs(sources) as inputs:
        found += inputs.check()
        if verdict(found) is not Exit.DONE:
            return _refused(args, found)
        try:
            done = publish(root, inputs, how)
        except Unpublished as unpublished:
            return _refused(args, found + unpublished.findings)
        except OSError as error:
            told = f"The file system refused ({error.strerror}); every value in force is whole."
            raise Fault(Exit.FAILED, told, "Mend the cause and publish again, which also cleans up.") from None
    summary: dict[str, object] = {"published": True, "layout": done.layout, "generation": done.generation}
    numbers = {"written": done.written, "kept": done.kept, "dropped": len(done.dropped)}
    code = report("publish", found, {**summary, **numbers, **counted(found)}, as_json=args.json)
    if not args.json:
        print(_told(done))
    return code


def _told(done: Published) -> str:
    where = "flat; a set may mix while it is renamed" if done.generation is None else f"generation {done.generation}"
    return f"published {done.written}, kept {done.kept}, dropped {len(done.dropped)}: {where}"


def _refused(args: argparse.Namespace, found: list[Finding]) -> int:
    code = report("publish", found, {"published": False, **counted(found)}, as_json=args.json)
    if not args.json:
        print("nothing was published")
    return code


def _gid(group: str | None) -> tuple[int | None, list[Finding]]:
    if group is None:
        return None, []
    if group.isascii() and group.isdigit() and int(group) < _GROUPS:
        return int(group), []
    try:
        return grp.getgrnam(group).gr_gid, []
    except (KeyError, ValueError):
        return None, [Finding("group_unknown", "--group", "there is no such group here", "Give its number.")]
