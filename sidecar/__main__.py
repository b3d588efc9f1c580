"""The composition root and command line: `secret-sidecar ...`, also `python -m sidecar`.

A command's module is imported only when it is named, so a disabled or misconfigured install loads nothing else.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Final

from sidecar import __version__
from sidecar.cli import streams
from sidecar.cli.common import Exit, Fault, Parser, print_json, tell

COMMANDS: Final[dict[str, str]] = {
    "serve": "serve secrets to workers, configured by the environment, until SIGTERM",
    "check": "validate configuration, root, TLS files and store as serve would",
    "demo": "run the whole job on loopback with throw-away certificates, store and files",
    "ref": "encode, decode and hash SecretRefs",
    "publish": "write secret values into a root so that no reader meets half of one",
    "manifest": "write what Kubernetes needs for a set of refs: Secret, CSI, Vault Agent",
    "doctor": "tell what is wrong with a root of secret files, and the exact mend",
    "inventory": "compare the refs that the store names with the files of a root",
    "retention": "plan which old versions may go, and let them go",
    "receipts": "show which value went to whom, and forget old receipts",
    "authority": "keep the authority store: workers, sessions, runs, leases, audit rows",
    "audit": "judge rendered Kubernetes manifests, and show the patch for each finding",
    "fetch": "fetch the secrets of an offer, as a worker does",
    "exec": "run a command with the secrets of an offer, and leave nothing behind",
}
"""Every command and its line of help; `sidecar/cli/<command>.py` has `configure(parser)` and `run(args) -> int`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (contract 9)."""
    streams.secure()
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
    except SystemExit as end:  # argparse, for help and wrong usage
        raise SystemExit(streams.finish(int(end.code or Exit.DONE))) from None
    except OSError as error:
        # A command tells what it expects to fail; what is left is, as a rule, its output.
        code = streams.failed(error)
    except KeyboardInterrupt:
        code = 130
    return streams.finish(code)


def _run(arguments: list[str]) -> int:
    names = "\n".join(f"  {name:<12}{summary}" for name, summary in COMMANDS.items())
    parser = Parser(
        prog="secret-sidecar",
        description="Hands the secrets of a run to the remote worker that runs it, over mTLS, from mounted files.",
        usage="secret-sidecar COMMAND ...",
        epilog=f"commands:\n{names}\n\nexample:\n  secret-sidecar demo",
    )
    parser.add_argument("--version", action="version", version=f"secret-sidecar {__version__}")
    if not arguments or arguments[0] not in COMMANDS:
        parser.add_argument("command", metavar="COMMAND", choices=tuple(COMMANDS), help="one of the commands below")
        parser.parse_args(arguments[:1])
        return int(Exit.USAGE)
    name = arguments[0]
    module = import_module(f"sidecar.cli.{name}")
    command = Parser(prog=f"secret-sidecar {name}", description=f"{COMMANDS[name][0].upper()}{COMMANDS[name][1:]}.")
    module.configure(command)
    args = command.parse_args(arguments[1:])
    try:
        return _ended(module, args)
    except Fault as fault:
        if getattr(args, "json", False):
            from sidecar.cli.reports import fault_document

            print_json(fault_document(" ".join([name, *_action(args)]), fault))
            return int(fault.code)
        return tell(fault, f"secret-sidecar {name}")


def _ended(module: ModuleType, args: argparse.Namespace) -> int:
    try:
        return int(module.run(args))
    except UnicodeEncodeError:
        # Paths may be any bytes, but what names something in a store, a ref or a URL is text.
        wrong = "An argument is no text in UTF-8."
        raise Fault(Exit.BAD_INPUT, wrong, "Write it again, or check the terminal's encoding.") from None


def _action(args: argparse.Namespace) -> list[str]:
    """The action of a command that has several, as its reports name it."""
    return [args.action] if hasattr(args, "action") else []


if __name__ == "__main__":
    sys.exit(main())
