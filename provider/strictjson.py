"""Strict JSON (contract 2): what RFC 8259 allows, and of that only what cannot be read in two ways.

The standard library's scanner does the reading; its hooks refuse what it lets pass. Numbers are handed back as they
were written, so that `4.0`, `-0` and a 5,000-digit integer are told apart by the one who asked for an integer.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Final, NoReturn

from provider.limits import JSON_DEPTH
from provider.outcomes import Reason, Refused

_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Number:
    """A JSON number as it was written; never text, never a bool. The repr leaves it out, as it is input."""

    lexeme: str = field(repr=False)


class _NotStrict(ValueError):
    """Raised by the hooks; never leaves this module."""


def parse(body: bytes | bytearray | memoryview) -> object:
    """Read one JSON document: dict, list, str, Number, bool or None.

    Raises Refused(JSON) and nothing else, whatever the bytes, when they are empty, begin with a byte order mark, are
    not UTF-8 or not RFC 8259, hold NaN, Infinity, a lone surrogate or a repeated key, or open more than 4 arrays and
    objects at once (contract 2). The length is the caller's to bound.
    """
    try:
        return _read(str(body, "utf-8"))
    except (ValueError, RecursionError):
        refused = Refused(Reason.JSON)
    raise refused  # outside the handler, as its context would be an exception that holds the body


def _read(text: str) -> object:
    """The document, or ValueError or RecursionError."""
    document: object = _decoder.decode(text)
    # Few brackets cannot nest too deep, and only an escape can make a surrogate: most bodies need no walk.
    if text.count("[") + text.count("{") > JSON_DEPTH or "\\u" in text:
        _check(document, JSON_DEPTH)
    return document


def _check(value: object, depth: int) -> None:
    """Raise _NotStrict where more than `depth` arrays and objects are open at once, or a string has a surrogate."""
    if type(value) is str:
        if _SURROGATE.search(value) is not None:
            raise _NotStrict
    elif type(value) is list or type(value) is dict:
        if depth == 0:
            raise _NotStrict
        for item in value:
            _check(item, depth - 1)
        if type(value) is dict:
            for item in value.values():
                _check(item, depth - 1)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _NotStrict
    return members


def _constant(_name: str) -> NoReturn:
    raise _NotStrict


_decoder: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=Number, parse_float=Number, parse_constant=_constant
)
