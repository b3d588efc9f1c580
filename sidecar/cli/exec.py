"""`secret-sidecar exec`: fetch the secrets of an offer, run a command with them, and leave nothing behind."""

import argparse
import ctypes
import errno
import os
from collections.abc import Callable
from typing import Final

from sidecar import inject
from sidecar.cli import worker
from sidecar.cli.common import Exit, Fault, Parser
from sidecar.client_errors import FetchError
from sidecar.client_offer import Offer
from sidecar.inject import Injection
from sidecar.inject_env import Environment
from sidecar.inject_fd import Descriptors
from sidecar.inject_files import Files
from sidecar.inject_stdin import StandardInput
from sidecar.stage import Stage
from sidecar.supervise import hold_signals, supervise

_PR_SET_DUMPABLE: Final = 4

_MODES: Final[dict[str, Callable[[argparse.Namespace], Injection]]] = {
    "fd": lambda _: Descriptors(),
    "env": lambda _: Environment(),
    "files": lambda args: Files(args.dir, allow_disk=args.allow_disk),
    "stdin": lambda _: StandardInput(),
}

_EPILOG: Final = f"""\
modes of --inject:
  fd     NAME_FILE=/proc/self/fd/N, one sealed memory file a secret; on no file system, gone
         with the last process that has it open (default)
  env    NAME=value; EXPOSED: root and the same user read it in /proc/PID/environ while the
         command runs, all that it starts inherits it, and crash reports like to print it
  files  D/NAME, mode 0400, and NAME_FILE=D/NAME; D is private and on tmpfs, for this command
         alone where that is permitted; overwritten and removed at the end, or at the next start
  stdin  {{"NAME":"value",...}} and a newline as the command's standard input

names: [A-Za-z_][A-Za-z0-9_]{{0,127}}; refused:
  {inject.REFUSED_NAMES}

example:
  secret-sidecar exec --url https://sidecar.example:5801 --offer-file offer.json \\
    --credential-file token --cert worker.pem --key worker.key --ca ca.pem \\
    -- sh -c 'PGPASSFILE="$PGPASS_FILE" exec psql -h db.example -f job.sql'

exit codes: the command's own, 128 + signal, 126 and 127 as a shell; before it started: 64 usage;
65 malformed offer or credential, or refused name; 66 a file is missing, unreadable or open to
others; 69 unreachable or unavailable; 70 not the contracted answer; 73 target refused; 75 lease
over, or out of time; 76 TLS; 77 denied."""


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.usage = (
        "secret-sidecar exec --url U --offer-file F --credential-file F --cert F --key F --ca F\n"
        "  [--timeout 30s] [--bundle-name NAME] [--inject fd|env|files|stdin] [--dir D [--allow-disk]] -- COMMAND ..."
    )
    worker.configure(parser)
    parser.add_argument("--bundle-name", type=_name, metavar="NAME", help="the variable of the environment bundle")
    parser.add_argument("--inject", choices=tuple(_MODES), default="fd", help="how the command gets its secrets")
    parser.add_argument("--dir", metavar="D", help="directory of mode files; made if it does not exist")
    parser.add_argument("--allow-disk", action="store_true", help="let D be on a disk, where overwriting is no promise")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="the command and its arguments, after --")
    parser.epilog = _EPILOG
    parser.set_defaults(refuse=parser.error)


def run(args: argparse.Namespace) -> int:
    """Fetch, inject, run and clean up; return the command's status. Raises Fault for what is our own."""
    if (args.inject == "files") != (args.dir is not None) or (args.allow_disk and args.dir is None):
        args.refuse("--dir belongs to --inject files, which needs it; --allow-disk to --dir")
    end = worker.deadline(args)
    try:
        offer = Offer.read(args.offer_file)
        names = inject.names_of(offer, args.bundle_name)
        # Nobody without root reads our memory, and no core file has it. The command's own are as usual.
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
        with _MODES[args.inject](args) as injection:
            with worker.client(args) as client, client.fetch(offer, deadline=end) as secrets:
                mask = hold_signals()
                injection.fill(inject.values_of(secrets, names))
            return _run(args.command, injection, mask)
    except FetchError as error:
        raise worker.fault(error) from None


def _run(command: list[str], injection: Injection, mask: set[int]) -> int:
    """Run the command. Here no buffer of the fetch holds a value any more, only what the mode keeps for the command."""
    try:
        stage = Stage(command, injection, mask)
        injection.forked()
        failure = stage.go()
    except OSError as error:
        failure = error.errno or errno.EIO
    else:
        if failure == 0:
            return supervise(stage.pid)
    if not _found(command[0]):
        failure = errno.ENOENT
    code = Exit.NOT_FOUND if failure == errno.ENOENT else Exit.NOT_EXECUTABLE
    raise Fault(code, f"The command could not be started ({os.strerror(failure)}).", "Check its name and its mode.")


def _found(command: str) -> bool:
    """Tell whether there is such a file: to a directory of PATH that is closed to us the kernel says EACCES as well."""
    folders = [""] if "/" in command else os.get_exec_path()
    return any(os.path.exists(os.path.join(folder, command)) for folder in folders)


def _name(text: str) -> str:
    if not inject.is_name(text):
        raise argparse.ArgumentTypeError(f"[A-Za-z_][A-Za-z0-9_]{{0,127}}, and none of {inject.REFUSED_NAMES}")
    return text
