"""Findings: what a command that looks at something has to say, in one shape for people and machines.

Every code is stable: a program may read it. `cause` and `mend` are for a person and hold no secret value.
"""

import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

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


def counted(findings: Iterable[Finding]) -> dict[str, int]:
    """Return how many findings there are of each severity, for a summary."""
    kinds = [finding.severity for finding in findings]
    return {"errors": kinds.count("error"), "warnings": kinds.count("warning"), "infos": kinds.count("info")}


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
