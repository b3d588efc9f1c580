"""Reports: what every command that looks at something prints, and the exit code that follows (contract 9)."""

from collections.abc import Iterable, Mapping

from sidecar.cli.common import Exit, Fault, print_json, print_table
from sidecar.findings import Finding, counted, document, ordered, printable


def verdict(findings: Iterable[Finding], *, strict: bool = False) -> Exit:
    """Return 65 for a finding of severity error, with `strict` for a warning too, otherwise 0 (contract 9)."""
    bad = {"error", "warning"} if strict else {"error"}
    return Exit.BAD_INPUT if any(finding.severity in bad for finding in findings) else Exit.DONE


def report(
    command: str, findings: Iterable[Finding], summary: Mapping[str, object], *, as_json: bool, strict: bool = False
) -> Exit:
    """Print findings and summary, as one JSON document or as aligned lines, and return the exit code."""
    found = ordered(findings)
    if as_json:
        print_json(document(command, found, summary))
    elif found:
        rows = [(one.severity, one.code, printable(one.where), printable(f"{one.cause}. {one.mend}")) for one in found]
        print_table(rows)
    return verdict(found, strict=strict)


def fault_document(command: str, fault: Fault) -> dict[str, object]:
    """Return the JSON document of a command that ended before it could report: its fault as the only finding."""
    found = [Finding(fault.code.name.lower(), command, fault.wrong.removesuffix("."), fault.mend)]
    return document(command, found, {"exitCode": int(fault.code), **counted(found)})
