"""`secret-sidecar ref`: write, read and hash SecretRefs (contract 1)."""

import argparse
import re
from typing import Final

from provider.limits import VERSION_MAX
from provider.refs import InvalidRef, SecretRef
from sidecar.cli.common import Exit, Fault, lines, print_json, print_table

_VERSION: Final = re.compile("[1-9][0-9]{0,9}")
_REF: Final = "qlsecret:v1:eyJwcm9qZWN0SWQiOiJwcm9qZWN0LTEiLCJuYW1lIjoidG9rZW4ifQ"
_ENCODE: Final = "  secret-sidecar ref encode --project project-1 --name token"


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the three actions."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    encode = actions.add_parser("encode", help="print the ref of a project's secret")
    encode.add_argument("--project", required=True, metavar="P", help="project id: 1 to 128 bytes")
    encode.add_argument("--name", required=True, metavar="N", help="name of the secret: 1 to 128 bytes")
    encode.add_argument("--version", metavar="V", help="a version from 1 on; without it the ref means the current one")
    encode.epilog = f"example:\n{_ENCODE}"
    for name, summary in (("decode", "print what a ref says"), ("filename", "print the name of a ref's file")):
        action = actions.add_parser(name, help=summary)
        action.add_argument("ref", metavar="REF", help="a ref; it begins with qlsecret:v1:")
        action.epilog = f"example:\n  secret-sidecar ref {name} {_REF}"
    for action in actions.choices.values():
        action.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.epilog = lines(
        (
            "A file name is an identifier. It neither hides the ref nor keeps anybody from the file.",
            "Ends with 65 for input that is no ref or makes none; the message never shows the input.",
            "",
            "example:",
            _ENCODE,
            f"  secret-sidecar ref filename {_REF}",
        )
    )


def run(args: argparse.Namespace) -> int:
    """Do the action; 65 for input that is no ref or makes none."""
    ref = _encode(args.project, args.name, args.version) if args.action == "encode" else _parse(args.ref)
    facts = {
        "ref": ref.text,
        "projectId": ref.project_id,
        "name": ref.name,
        "version": ref.version,
        "fileName": ref.file_name,
    }
    if args.json:
        print_json({"schemaVersion": 1, "command": f"ref {args.action}", **facts})
    elif args.action == "encode":
        print(ref.text)
    elif args.action == "filename":
        print(ref.file_name)
    else:
        version = "current" if ref.version is None else ref.version
        named = (("project", _visible(ref.project_id)), ("name", _visible(ref.name)))
        print_table((*named, ("version", version), ("file", ref.file_name)))
    return Exit.DONE


def _encode(project: str, name: str, version: str | None) -> SecretRef:
    if version is not None and _VERSION.fullmatch(version) is None:
        raise Fault(Exit.BAD_INPUT, "The version is none.", f"Give a whole number from 1 to {VERSION_MAX}.")
    try:
        return SecretRef.of(project, name, None if version is None else int(version))
    except InvalidRef:
        mend = "Project and name have 1 to 128 bytes each without control characters; the ref has at most 512."
        raise Fault(Exit.BAD_INPUT, "These parts make no SecretRef.", mend) from None


def _parse(text: str) -> SecretRef:
    try:
        return SecretRef.parse(text)
    except InvalidRef:
        mend = "Copy the whole ref, or make it with `secret-sidecar ref encode`."
        raise Fault(Exit.BAD_INPUT, "This is not a canonical SecretRef.", mend) from None


def _visible(text: str) -> str:
    """The text with escapes in place of what a terminal might obey; a ref may hold C1 controls and the like."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
