"""`secret-sidecar check`: everything that keeps `serve` from starting, found at once, each with its mend (contract 8).

It looks at what `serve` would look at, in the same code, and changes nothing. A part whose own variables are at fault
is not looked at, and that is said.
"""

import argparse
import asyncio
import os
import stat
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from sidecar.cli.common import Exit, lines, print_json, print_table
from sidecar.config import ConfigFaults, Gate, IdentityFilesConfig, Postgres, Store, Survey, gate, survey
from sidecar.findings import Finding, document

if TYPE_CHECKING:
    from sidecar.trust import Finding as IdentityFinding

ROOT: Final = "QL3_WORKER_SECRET_ROOT_DIRECTORY"
STORE_FILE: Final = "QL3_WORKER_SECRET_AUTHORITY_FILE"
STORE_KIND: Final = "QL3_WORKER_SECRET_AUTHORITY"


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command; what it checks is configured by the environment."""
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of lines")
    parser.epilog = lines(
        (
            "Reads the environment as serve does; docs/configuration.md lists every variable.",
            "Ends with 0 when serve would start, also when it would end at once because the ingress is disabled,",
            "and with 78 when there is any finding.",
            "",
            "example:",
            "  QL_DEPLOYMENT_PROFILE=cluster-control QL3_WORKER_INGRESS_ENABLED=true ... secret-sidecar check",
        )
    )


def run(args: argparse.Namespace) -> int:
    """Check everything that can be checked and print it; 78 for any finding."""
    try:
        if gate() is Gate.DISABLED:
            return _report(args.json, "disabled", [], [], [])
        found = survey()
    except ConfigFaults as faults:
        return _report(args.json, "faulty", _configuration(faults), ["configuration"], ["tls", "root", "store"])
    findings = _configuration(ConfigFaults(found.faults))
    checked: list[str] = ["configuration"]
    skipped: list[str] = []
    for part, look in _parts(found):
        if look is None:
            skipped.append(part)
        else:
            checked.append(part)
            findings += look()
    return _report(args.json, "faulty" if findings else "sound", findings, checked, skipped)


def _parts(found: Survey) -> Iterator[tuple[str, Callable[[], list[Finding]] | None]]:
    """Every part that `serve` would look at, and how to look at it; None where its variables are at fault."""
    yield "tls", None if found.tls is None else partial(_identity, found.tls)
    if found.provider is None:
        yield "root", None
    elif found.provider.root_directory is not None:
        yield "root", partial(_root, found.provider.root_directory)
    yield "store", None if found.store is None else partial(_store, found.store, receipts=found.receipts)


def _configuration(faults: ConfigFaults) -> list[Finding]:
    return [Finding("configuration", fault.variable, fault.wrong, fault.mend) for fault in faults.faults]


def _identity(tls: IdentityFilesConfig) -> list[Finding]:
    from sidecar.identity import load
    from sidecar.identityfiles import IdentityFiles
    from sidecar.trust import IdentityFault

    try:
        load(IdentityFiles(tls.private_key, tls.certificate, tls.client_ca, tls.client_crl))
    except IdentityFault as fault:
        return [_identity_finding(found) for found in fault.faults]
    return []


def _identity_finding(found: "IdentityFinding") -> Finding:
    code, mend = found.fault.code, found.fault.mend
    cause = f"names a file that cannot be used: {code.replace('_', ' ')}"
    return Finding(f"tls_{code}", found.role.variable, cause, f"{mend[0].upper()}{mend[1:]}.")


def _root(path: str) -> list[Finding]:
    from provider.limits import MATERIAL_S
    from provider.memory import BufferPool
    from provider.mounted import MountedFiles
    from provider.outcomes import Refused
    from provider.readers import within

    found: list[Finding] = []
    try:
        MountedFiles(path, BufferPool()).verify_root()
    except Refused:
        # The provider names no cause, so that none can leak; here a person asks, who may see the directory anyway.
        try:
            within(MATERIAL_S, lambda: found.append(_root_cause(path)))
        except Refused:
            found = [Finding("root_silent", ROOT, "does not answer", "Look at the mount: its file system hangs.")]
    return found


def _root_cause(path: str) -> Finding:
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return Finding("root_missing", ROOT, "names nothing", "Mount the secrets there, or correct the path.")
    except OSError:
        return Finding("root_unreachable", ROOT, "cannot be reached", "Let this user pass the directories above it.")
    if stat.S_ISLNK(status.st_mode):
        return Finding("root_link", ROOT, "names a link", "Name the directory itself; links above it may be.")
    if not stat.S_ISDIR(status.st_mode):
        return Finding("root_not_directory", ROOT, "names no directory", "Name the directory of the projected files.")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mend = "Set its mode to 0750, or mount it read-only into this container."
        return Finding("root_writable", ROOT, "may be written by others than its owner", mend)
    return Finding("root_unavailable", ROOT, "was refused, but is good now", "Check again; it changed meanwhile.")


def _store(store: Store, *, receipts: bool) -> list[Finding]:
    from sidecar.stores.faults import StoreFault

    if store.postgres is not None:
        try:
            return asyncio.run(_database(store.postgres, receipts=receipts))
        except StoreFault as fault:
            return [Finding(f"store_{fault.kind.value}", STORE_KIND, fault.wrong.rstrip("."), fault.mend)]
    assert store.authority_file is not None
    from sidecar.stores.sqlite import SqliteStore

    opened = SqliteStore(store.authority_file, receipts=receipts)
    try:
        opened.open()
    except StoreFault as fault:
        return [Finding(f"store_{fault.kind.value}", STORE_FILE, fault.wrong.rstrip("."), fault.mend)]
    opened.close()
    return []


async def _database(postgres: Postgres, *, receipts: bool) -> list[Finding]:
    """Log in as `serve` does, and judge schema and rights. Raises StoreFault."""
    from sidecar.stores.postgres_control import PostgresControl
    from sidecar.stores.postgres_rights import judge

    async with PostgresControl(postgres) as control, control.turn(write=False):
        faults = await judge(control.connection, receipts=receipts)
    return [Finding(f"store_{fault.kind.value}", STORE_KIND, fault.wrong.rstrip("."), fault.mend) for fault in faults]


def _report(as_json: bool, state: str, findings: list[Finding], checked: list[str], skipped: list[str]) -> int:
    if as_json:
        summary = {"state": state, "findings": len(findings), "checked": checked, "skipped": skipped}
        print_json(document("check", findings, summary))
        return Exit.CONFIGURATION if findings else Exit.DONE
    if findings:
        print_table([(finding.where, finding.code, f"{finding.cause}. {finding.mend}") for finding in findings])
    if state == "disabled":
        print("the ingress is disabled: serve would end with 0, so nothing else was checked")
    elif findings:
        later = f"; not checked before its variables are mended: {', '.join(skipped)}" if skipped else ""
        print(f"{len(findings)} finding{'s' if len(findings) > 1 else ''}{later}")
    else:
        print(f"serve would start; checked: {', '.join(checked)}")
    return Exit.CONFIGURATION if findings else Exit.DONE
