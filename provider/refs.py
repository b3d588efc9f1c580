"""SecretRef (contract 1): the canonical name of a secret. Parsed once, then always valid.

One rule decides: a ref is valid only if writing out what was read gives the same text again. The constructor holds
that rule, so no SecretRef exists, however it was made, whose text and fields disagree.
"""

import hashlib
import json
import re
from dataclasses import dataclass, field
from json.encoder import encode_basestring as _quote
from typing import Final, TypeGuard

from provider import base64url
from provider.limits import REF_BYTES, REF_PART_BYTES, VERSION_MAX

PREFIX: Final = "qlsecret:v1:"
"""What every ref begins with; the upper-case form is none."""

CHARACTER: Final = r"[^\x00-\x1f\x7f\ud800-\udfff]"
"""One character of a name or id, as a regular expression: any but control characters (contract 1) and lone
surrogates, which have no UTF-8."""

_TEXT: Final = re.compile(f"{PREFIX}[A-Za-z0-9_-]{{1,{REF_BYTES - len(PREFIX)}}}")
_PART: Final = re.compile(f"{CHARACTER}{{1,{REF_PART_BYTES}}}")
_read: Final = json.JSONDecoder().raw_decode


class InvalidRef(ValueError):
    """The text, or the parts, make no SecretRef. Says nothing of the input."""

    def __init__(self) -> None:
        """Make the exception; it takes no arguments, so that no input slips in."""
        super().__init__("not a canonical SecretRef")


@dataclass(frozen=True, slots=True, repr=False)
class SecretRef:
    """A canonical ref and what it says. Equal and hashed by `text`. Made by `parse` or `of`.

    `text` is at most 512 bytes, `project_id` and `name` are 1..128 UTF-8 bytes each without a control character,
    `version` is 1..2147483647 or None for "current". Raises InvalidRef for anything else (contract 1).
    """

    text: str
    project_id: str = field(compare=False)
    name: str = field(compare=False)
    version: int | None = field(compare=False)
    file_name: str = field(init=False, compare=False)
    """Lower-case hex SHA-256 of the text: the projected file. An identifier, neither encryption nor access control."""

    def __post_init__(self) -> None:
        """Hold the one rule and hash the text."""
        if _written(self.project_id, self.name, self.version) != self.text:
            raise InvalidRef
        object.__setattr__(self, "file_name", hashlib.sha256(self.text.encode()).hexdigest())

    @classmethod
    def parse(cls, text: str) -> "SecretRef":
        """Read a ref. Raises InvalidRef, without the text, unless it is canonical."""
        document = _document(text)
        if type(document) is not dict:
            raise InvalidRef
        return cls(text, document.get("projectId", ""), document.get("name", ""), document.get("version"))

    @classmethod
    def of(cls, project_id: str, name: str, version: int | None = None) -> "SecretRef":
        """Make the ref of these parts. Raises InvalidRef, without the parts, when they make none."""
        return cls(_written(project_id, name, version), project_id, name, version)

    def __repr__(self) -> str:
        """Show nothing of the ref: refs and names stay out of logs (contract 9)."""
        return "SecretRef(redacted)"


def _document(text: object) -> object:
    """The JSON inside a ref, None when there is none; what it means is not judged here."""
    if type(text) is not str or _TEXT.fullmatch(text) is None:
        return None
    try:
        # What follows the first value is not looked at here: it makes the text differ from what is written again.
        return _read(base64url.decode(text[len(PREFIX) :].encode()).decode())[0]
    except (ValueError, RecursionError):  # the caller raises: these exceptions hold the input
        return None


def _written(project_id: object, name: object, version: object) -> str:
    """The canonical text of these parts. Raises InvalidRef when they have none."""
    if not (_is_part(project_id) and _is_part(name) and _is_version(version)):
        raise InvalidRef
    tail = "}" if version is None else f',"version":{version}}}'
    document = f'{{"projectId":{_quote(project_id)},"name":{_quote(name)}{tail}'
    text = PREFIX + base64url.encode(document.encode()).decode()
    if len(text) > REF_BYTES:
        raise InvalidRef
    return text


def _is_part(part: object) -> TypeGuard[str]:
    return type(part) is str and _PART.fullmatch(part) is not None and len(part.encode()) <= REF_PART_BYTES


def _is_version(version: object) -> bool:
    return version is None or (type(version) is int and 1 <= version <= VERSION_MAX)
