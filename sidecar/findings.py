"""Findings: what a command that looks at something has to say, in one shape for people and machines.

Every code is stable: a program may read it. `cause` and `mend` are for a person and hold no secret value.
"""

import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from sidecar.cli.common import Exit, Fault, print_json, print_table

Severity = Literal["error", "warning", "info"]
_RANK: Final = {"error": 0, "warning": 1, "info": 2}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a person should know. `where` is a variable, a path, a file name or a place in a document."""

    code: str
    where: str
    cause: str
    mend: str
    severity: Severity = "error"

    def document(self) -> dict[str, str]:
        """Return it for JSON, keys in the contracted order."""
        shown = {"code": self.code, "severity": self.severity}
        shown |= {"where": self.where, "cause": self.cause, "mend": self.mend}
        return {key: encodable(text) for key, text in shown.items()}


def document(command: str, findings: Iterable[Finding], summary: Mapping[str, object]) -> dict[str, object]:
    """Return the JSON document of a command that reports findings."""
    shown = [finding.document() for finding in findings]
    return {"schemaVersion": 1, "command": command, "findings": shown, "summary": dict(summary)}


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Errors first, then warnings; within a severity as they were found."""
    return sorted(findings, key=lambda finding: _RANK[finding.severity])


def verdict(findings: Iterable[Finding], *, strict: bool = False) -> Exit:
    """Return 65 for a finding of severity error, with `strict` for a warning too, otherwise 0 (contract 9)."""
    bad = {"error", "warning"} if strict else {"error"}
    return Exit.BAD_INPUT if any(finding.severity in bad for finding in findings) else Exit.DONE


def counted(findings: Iterable[Finding]) -> dict[str, int]:
    """Return how many findings there are of each severity, for a summary."""
    kinds = [finding.severity for finding in findings]
    return {"errors": kinds.count("error"), "warnings": kinds.count("warning"), "infos": kinds.count("info")}


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


def printable(text: str) -> str:
    """The text with escapes in place of what a terminal might obey."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode() for one in text)


def encodable(text: str) -> str:
    """The text as UTF-8 can hold it: a file's name may have bytes that are none, which Python keeps as surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()


def quoted(path: str) -> str:
    """A path for a command line that a person pastes: quoted for the shell, and nothing that a terminal obeys."""
    if path.isprintable():
        return shlex.quote(path)
    plain = {byte: chr(byte) for byte in range(0x20, 0x7F) if chr(byte) not in "\\'"}
    return "$'" + "".join(plain.get(byte, f"\\x{byte:02x}") for byte in os.fsencode(path)) + "'"
