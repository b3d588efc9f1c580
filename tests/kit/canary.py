"""Canaries: the secrets of the tests' worlds, and a look for them wherever nothing of a secret may ever stand.

Every value, credential, lease token, pepper and password of a test's world is one of these or bears one. The look is
part of every test (`tests/conftest.py`): at log records, expected exceptions, and all that a stand's process lets out.
"""

import logging
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from typing import Final, Protocol

from tests.kit import valid, world
from tests.kit.exceptions import said

VALUE: Final = "c4n4ry-v4lu3"
"""Part of every secret value."""
PASSWORD: Final = "c4n4ry-p4ssw0rd"
"""Part of every password of a database."""
_SECRETS: Final[dict[str, tuple[bytes, ...]]] = {
    # Beside those of the world in a store, those of the world of fakes.
    "value": (VALUE.encode(), b"CANARY-token", b"CANARY-key", b"CANARY-bundle"),
    "password": (PASSWORD.encode(),),
    "lease_token": (world.LEASE_TOKEN.encode(), valid.LEASE_TOKEN.encode()),
    "credential": (world.SECRET, valid.SECRET),
    "pepper": (bytes(range(32)),),
}


class Watched(Protocol):
    """A process with outputs, as `Stand` is one."""

    def let_out(self) -> Iterator[tuple[str, str]]:
        """Yield where something was let out, and what, since the last call."""


def _spellings(secret: bytes) -> Iterator[str]:
    """Yield the ways in which a text may show a secret: as it is, as Python writes bytes, in hex and in base64."""
    for text in (repr(secret)[2:-1], secret.hex()):
        yield from (text, text.upper(), text.lower())
    for encode in (b64encode, urlsafe_b64encode):
        for shift, start in enumerate((0, 2, 3)):
            # Wherever in a longer text the secret begins: the characters that no neighbour has a part in.
            yield encode(bytes(shift) + secret).decode()[start : (shift + len(secret)) * 8 // 6]


_ANY: Final = re.compile(
    "|".join(
        f"(?P<{kind}>{'|'.join(re.escape(text) for secret in secrets for text in _spellings(secret))})"
        for kind, secrets in _SECRETS.items()
    )
)


def found(text: str) -> set[str]:
    """Return which kinds of secrets a text shows, in whatever spelling."""
    return {match.lastgroup or "" for match in _ANY.finditer(text)}


def refuse(where: str, text: str) -> None:
    """Fail when a text shows a secret; the failure names the place and the kind, never the text."""
    kinds = found(text)
    assert not kinds, f"a secret got out: {', '.join(sorted(kinds))} in {where}"


def refuse_record(record: logging.LogRecord) -> None:
    """Fail when a log record shows a secret: in its message, its arguments or its exception."""
    parts = [record.getMessage(), repr(record.args), str(record.exc_text)]
    if record.exc_info and record.exc_info[1] is not None:
        parts.append(said(record.exc_info[1]))
    refuse(f"a log record of {record.name}", "\n".join(parts))


class Watch:
    """All that may have let something out. One for a run of tests, and asleep everywhere else, the bench for one."""

    def __init__(self) -> None:
        """Watch nobody."""
        self.awake = False
        self._processes: list[Watched] = []

    def add(self, process: Watched) -> None:
        """Watch a process from now on."""
        if self.awake and process not in self._processes:
            self._processes.append(process)

    def look(self) -> None:
        """Look at what every process let out since the last look."""
        for process in self._processes:
            self.look_at(process.let_out())

    def look_at(self, shown: Iterator[tuple[str, str]]) -> None:
        """Fail when one of these texts, each with its place, shows a secret."""
        if self.awake:
            for where, text in shown:
                refuse(where, text)

    def leave(self, process: Watched, shown: Iterator[tuple[str, str]]) -> None:
        """Look at a process and at these texts of it once more, and then no longer."""
        if process in self._processes:
            self._processes.remove(process)
            self.look_at(process.let_out())
            self.look_at(shown)


WATCH: Final = Watch()
