"""What the text of a variable may be (contract 8): each rule reads it or refuses it, and says in words what it wants.

The words stand in faults and in the docs' table. No rule keeps or shows the text that it judged.
"""

import ipaddress
import os.path
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from provider.limits import ROOT_PATH_BYTES

Value = str | int | bool

IDENTIFIER_BYTES: Final = 63
"""What PostgreSQL keeps of a name; it would cut the rest off in silence."""

_INTEGER_DIGITS: Final = 10
"""More than any bound has; keeps `int` away from texts that it takes long over or refuses."""
_LABEL: Final = "[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST_NAME: Final = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*")
_VISIBLE: Final = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,128}")
_PRINTABLE: Final = re.compile(rf"[ -~]{{1,{IDENTIFIER_BYTES}}}")


class Rule(Protocol):
    """What a text must be to count as a value."""

    @property
    def wants(self) -> str:
        """What the text must be, in words that follow "is not" and "Set it to"."""

    def read(self, text: str) -> Value | None:
        """Return the value, None when the text is not one."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number of ASCII digits within bounds, both included."""

    low: int
    high: int

    @property
    def wants(self) -> str:
        """The bounds in words."""
        return f"a whole number from {self.low} to {self.high}"

    def read(self, text: str) -> int | None:
        """Return the number; leading zeros are digits like others."""
        if re.fullmatch("[0-9]+", text) is None or len(text.lstrip("0")) > _INTEGER_DIGITS:
            return None
        number = int(text.lstrip("0") or "0")
        return number if self.low <= number <= self.high else None


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few words, spelt exactly."""

    words: tuple[str, ...]

    @property
    def wants(self) -> str:
        """The words."""
        return " or ".join(self.words) if len(self.words) < 3 else f"one of {', '.join(self.words)}"

    def read(self, text: str) -> str | None:
        """Return the word."""
        return text if text in self.words else None


@dataclass(frozen=True, slots=True)
class Flag:
    """`true` or `false`, spelt exactly."""

    wants: str = "true or false"

    def read(self, text: str) -> bool | None:
        """Return what the word says."""
        return {"true": True, "false": False}.get(text)


@dataclass(frozen=True, slots=True)
class Text:
    """A text that a function accepts."""

    wants: str
    accepts: Callable[[str], bool]

    def read(self, text: str) -> str | None:
        """Return the text itself."""
        return text if self.accepts(text) else None


def _is_path(text: str) -> bool:
    try:
        return "\0" not in text and len(os.fsencode(text)) <= ROOT_PATH_BYTES
    except UnicodeEncodeError:  # surrogates that stand for no byte
        return False


def _is_absolute(text: str) -> bool:
    return text.startswith("/") and _is_path(text)


def _is_root(text: str) -> bool:
    # normpath keeps two leading slashes, which POSIX leaves open.
    return _is_absolute(text) and text != "/" and not text.startswith("//") and os.path.normpath(text) == text


def _is_host_name(text: str) -> bool:
    # A last label of digits alone would be read as a number of an address.
    return _HOST_NAME.fullmatch(text) is not None and not text.rpartition(".")[2].isdigit()


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return _is_host_name(text)
    return "%" not in text


def _is_server_name(text: str) -> bool:
    return "." in text and _is_host_name(text)


def _is_replica(text: str) -> bool:
    return _VISIBLE.fullmatch(text) is not None


def _is_identifier(text: str) -> bool:
    return _VISIBLE.fullmatch(text) is not None and len(text.encode()) <= IDENTIFIER_BYTES


def _is_application(text: str) -> bool:
    return _PRINTABLE.fullmatch(text) is not None


def _has_no_nul(text: str) -> bool:
    return "\0" not in text


ANYWHERE: Final = "0.0.0.0"  # noqa: S104 - the contract's default; a NetworkPolicy bounds who comes near
"""Every IPv4 address of the host."""
FLAG: Final = Flag()
PORT: Final = Whole(0, 65535)
"""A port to listen on; 0 asks the kernel for a free one."""
HOST: Final = Text("an IP address without brackets, or a host name", _is_host)
SERVER_NAME: Final = Text("a DNS name of at least two labels, without wildcard", _is_server_name)
FILE: Final = Text(f"a path of at most {ROOT_PATH_BYTES} bytes", _is_path)
ABSOLUTE_FILE: Final = Text(f"an absolute path of at most {ROOT_PATH_BYTES} bytes", _is_absolute)
ROOT: Final = Text(f"an absolute, normalised path of at most {ROOT_PATH_BYTES} bytes, not /", _is_root)
REPLICA: Final = Text("1 to 128 characters without control characters", _is_replica)
IDENTIFIER: Final = Text(f"1 to {IDENTIFIER_BYTES} bytes of UTF-8 without control characters", _is_identifier)
APPLICATION: Final = Text(f"1 to {IDENTIFIER_BYTES} printable ASCII characters", _is_application)
PEPPER: Final = Text("43 characters of base64url", _has_no_nul)
PASSWORD: Final = Text("a text without NUL", _has_no_nul)
URL: Final = Text("postgresql://USER:PASSWORD@HOST[:PORT]/DATABASE", _has_no_nul)
"""These three are judged further where they are read."""
