"""`make evidence`, also `python -m tests.evidence`: run the scenario apart from the machine, print and keep its gates.

The scenario is the first process of namespaces of its own. So however it ends, the kernel ends every process that it
started, and with the last one its network and its mounts are gone; what is left to remove are the groups of the limits
and an empty directory.
"""

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NoReturn

from sidecar.cli.common import Exit, Parser, write_private
from tests.evidence import linux
from tests.evidence.gates import GATES
from tests.evidence.limits import limited

ROOT: Final = Path(__file__).resolve().parents[2]
REPORT: Final = ROOT / "build" / "evidence.json"
BREAKS: Final = {
    "writable": "file systems are left writable",
    "capable": "user and capabilities are left as they are",
    "token": "a token is mounted where a ServiceAccount's would be",
    "stray": "a connection is opened to where the API server would be",
    "rotation": "generation 2 is never published",
}
"""What can be made wrong on purpose, to see that the gates see it."""
_NOT_REACHED: Final = "not reached"


def main(argv: Sequence[str] | None = None) -> int:
    """Run and report; 0 when every gate holds, 1 otherwise, 77 for anybody but root."""
    parser = Parser(
        prog="make evidence",
        description="Two sidecars as a cluster runs them, through a rotation and a deletion; one line a gate.",
        epilog="example:\n  python -m tests.evidence --out evidence.json",
    )
    parser.add_argument("--out", metavar="FILE", type=Path, default=REPORT, help="the report (default: %(default)s)")
    parser.add_argument("--break", dest="broken", choices=tuple(BREAKS), default="", help="make something wrong first")
    args = parser.parse_args(argv)
    if os.geteuid() != 0:
        print("make evidence: only root may make namespaces with a network; run it as root.", file=sys.stderr)
        return int(Exit.DENIED)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupted)
    lines = list(_told(args.broken))
    gates = _gates(lines)
    facts = {line["fact"]: line["value"] for line in lines if "fact" in line}
    passed = all(gate["passed"] for gate in gates)
    document = {"schemaVersion": 1, "command": "evidence", "passed": passed, "broken": args.broken or None}
    document |= {"gates": gates, "facts": facts | _circumstances()}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_private(str(args.out), json.dumps(document, indent=2).encode() + b"\n", replace=True)
    print(f"{sum(gate['passed'] for gate in gates)} of {len(gates)} gates hold; {args.out}")
    return 0 if passed else 1


def _interrupted(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def _gates(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    told = {line["gate"]: line for line in lines if "gate" in line}
    missing = {"passed": False, "reason": _NOT_REACHED, "seconds": 0.0}
    for name in GATES:
        if name not in told:
            _print(name, _NOT_REACHED)
    return [{"gate": name, "says": says, **missing, **told.get(name, {})} for name, says in GATES.items()]


def _print(name: str, reason: str | None) -> None:
    print(f"{'held' if reason is None else 'FAILED':<8}{name:<16}{reason or GATES[name]}", flush=True)


def _circumstances() -> dict[str, object]:
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "not_applied": "seccomp RuntimeDefault (a container engine's), TLS of the database (the wheel has none)",
    }


def _told(broken: str) -> Iterator[dict[str, Any]]:
    """Run the scenario and yield each line that it tells; its gates are printed as they come."""
    with ExitStack() as stack:
        directory = stack.enter_context(_directory())
        groups = []
        for number in (1, 2):
            limits, refused = stack.enter_context(limited(f"evidence-{number}"))
            groups.append([asdict(limit) for limit in limits])
            yield from ({"fact": f"replica-{number}_no_limit", "value": why} for why in refused)
        try:
            linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWNET | linux.CLONE_NEWPID | linux.CLONE_NEWIPC)
            linux.keep_mounts_private()
            stack.enter_context(_in_memory(directory))
        except OSError as error:
            reason = f"the kernel refuses them to root here ({error.strerror})"
            _print("namespaces", reason)
            yield {"gate": "namespaces", "passed": False, "reason": reason}
            return
        reader, writer = os.pipe()
        command = [sys.executable, "-m", "tests.evidence.scenario", str(directory), str(writer), json.dumps(groups)]
        process = subprocess.Popen([*command, broken], cwd=ROOT, pass_fds=[writer], start_new_session=True)
        stack.callback(_end, process)
        os.close(writer)
        with os.fdopen(reader, encoding="utf-8") as told:
            for line in told:
                document = json.loads(line)
                if "gate" in document:
                    _print(document["gate"], document["reason"])
                yield document


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the scenario, and with it every process of its namespace."""
    with suppress(ProcessLookupError):
        process.kill()
    process.wait()


@contextmanager
def _directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="secret-sidecar-evidence-"))
    try:
        yield path
    finally:
        path.rmdir()


@contextmanager
def _in_memory(directory: Path) -> Iterator[None]:
    """Keep what is in the directory in memory, where only this run sees it."""
    linux.mount("work", directory, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=0711,size=1g")
    try:
        yield
    finally:
        # The only process that it was busy with has been waited for.
        linux.unmount(directory)


if __name__ == "__main__":
    sys.exit(main())
