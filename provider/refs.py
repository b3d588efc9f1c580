"""SecretRef (contract 1): the canonical name of a secret. Parsed once, then always valid.

A secret has one spelling: the grammar below has no second one, and what it has read must be written in base64 as it
came. The fields are read from the text and from nowhere else, so no SecretRef exists, however it was made, whose text
and fields disagree.
"""

import hashlib
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

_PART: Final = re.compile(f"{CHARACTER}{{1,{REF_PART_BYTES}}}")
# In a document quote and backslash are escaped, and nothing else is; control characters are in no part.
_WRITTEN_PART: Final = rb'((?:[^"\\\x00-\x1f\x7f]++|\\["\\])++)'
_DOCUMENT: Final = re.compile(
    rb'\{"projectId":"%b","name":"%b"(?:,"version":([1-9][0-9]{0,9}))?\}' % (_WRITTEN_PART, _WRITTEN_PART)
)
_ESCAPE: Final = re.compile(rb"\\(.)")
_set: Final = object.__setattr__


class InvalidRef(ValueError):
    """The text, or the parts, make no SecretRef. Says nothing of the input."""

    def __init__(self) -> None:
        """Make the exception; it takes no arguments, so that no input slips in."""
        super().__init__("not a canonical SecretRef")


@dataclass(frozen=True, slots=True, repr=False)
class SecretRef:
    """A canonical ref and what it says. Equal and hashed by `text`.

    `text` is at most 512 bytes, `project_id` and `name` are 1..128 UTF-8 bytes each without a control character,
    `version` is 1..2147483647 or None for "current". Raises InvalidRef, without the text, for anything else
    (contract 1).
    """

    text: str
    project_id: str = field(init=False, compare=False)
    name: str = field(init=False, compare=False)
    version: int | None = field(init=False, compare=False)
    file_name: str = field(init=False, compare=False)
    """Lower-case hex SHA-256 of the text: the projected file. An identifier, neither encryption nor access control."""

    def __post_init__(self) -> None:
        """Read the fields out of the text, and hash it."""
        parts = _parts(self.text)
        if parts is None:
            raise InvalidRef
        project_id, name, version = parts
        _set(self, "project_id", project_id)
        _set(self, "name", name)
        _set(self, "version", version)
        _set(self, "file_name", hashlib.sha256(self.text.encode()).hexdigest())

    @classmethod
    def parse(cls, text: str) -> "SecretRef":
        """Read a ref. Raises InvalidRef, without the text, unless it is canonical."""
        return cls(text)

    @classmethod
    def of(cls, project_id: str, name: str, version: int | None = None) -> "SecretRef":
        """Make the ref of these parts. Raises InvalidRef, without the parts, when they make none."""
        return cls(_written(project_id, name, version))

    def __repr__(self) -> str:
        """Show nothing of the ref: refs and names stay out of logs (contract 9)."""
        return "SecretRef(redacted)"


def _parts(text: object) -> tuple[str, str, int | None] | None:
    """Project, name and version that a text names; None when it is not the one spelling of any."""
    if type(text) is not str or not text.startswith(PREFIX) or len(text) > REF_BYTES:
        return None
    try:
        sealed = text[len(PREFIX) :].encode()
        document = base64url.decode(sealed)
        found = _DOCUMENT.fullmatch(document)
        # Decoding passes over signs that are none and drops stray bits: none of that is written again.
        if found is None or base64url.encode(document) != sealed:
            return None
        project_id, name = _part(found[1]), _part(found[2])
    except ValueError:  # the caller raises: this exception holds the input
        return None
    version = None if found[3] is None else int(found[3])
    if project_id is None or name is None or (version is not None and version > VERSION_MAX):
        return None
    return project_id, name, version


def _part(written: bytes) -> str | None:
    """The part that a document writes so; None when it is too long. Raises ValueError for what is not UTF-8."""
    if b"\\" in written:
        written = _ESCAPE.sub(rb"\1", written)
    return written.decode() if len(written) <= REF_PART_BYTES else None


def _written(project_id: object, name: object, version: object) -> str:
    """The text of these parts. Raises InvalidRef when they are none; how long it may be is judged where it is read."""
    if not (_is_part(project_id) and _is_part(name) and _is_version(version)):
        raise InvalidRef
    tail = "}" if version is None else f',"version":{version}}}'
    document = f'{{"projectId":{_quote(project_id)},"name":{_quote(name)}{tail}'
    return PREFIX + base64url.encode(document.encode()).decode()


def _is_part(part: object) -> TypeGuard[str]:
    return type(part) is str and _PART.fullmatch(part) is not None


def _is_version(version: object) -> bool:
    return version is None or (type(version) is int and 1 <= version <= VERSION_MAX)
