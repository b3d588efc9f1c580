"""How secrets reach a command: what the four modes have in common, and which names may be used.

An injection goes through the same steps in every mode: `prepare` before anything is fetched, `fill` while the values
are in memory, `child` in the stage that becomes the command, `forked` in the parent at that moment, `close` at the end.
"""

import re
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from sidecar.cli.common import Exit, Fault
from sidecar.client_offer import Offer
from sidecar.client_secrets import Secrets

Values = Sequence[tuple[str, memoryview]]
"""Names and values in plan order, the bundle last."""

_NAME: Final = re.compile("[A-Za-z_][A-Za-z0-9_]{0,127}")
_REFUSED: Final = re.compile(
    "PATH|LD_.*|PYTHON.*|QL3_.*|IFS|BASH_ENV|ENV|NODE_OPTIONS|PERL5.*|RUBY.*|GIT_.*", re.DOTALL
)
REFUSED_NAMES: Final = "PATH, LD_*, PYTHON*, QL3_*, IFS, BASH_ENV, ENV, NODE_OPTIONS, PERL5*, RUBY*, GIT_*"
"""What a secret may not be called, as the help shows it: names by which a value would become code or configuration."""


def is_name(text: str) -> bool:
    """Tell whether a variable may have this name: `[A-Za-z_][A-Za-z0-9_]{0,127}` and not a refused one."""
    return _NAME.fullmatch(text) is not None and _REFUSED.fullmatch(text) is None


def names_of(offer: Offer, bundle_name: str | None) -> tuple[str, ...]:
    """Return the names of the offer's environment, then the bundle's. Raises Fault(BAD_INPUT), which names the rule."""
    names = [name for name, _ in offer.environment]
    if offer.command.bundle_refs:
        if bundle_name is None:
            raise Fault(Exit.BAD_INPUT, "The offer has an environment bundle.", "Name its variable with --bundle-name.")
        names.append(bundle_name)
    if not all(map(is_name, names)):
        rule = f"[A-Za-z_][A-Za-z0-9_]{{0,127}}, and none of {REFUSED_NAMES}"
        raise Fault(Exit.BAD_INPUT, "The offer names a variable that is refused.", f"Allowed is {rule}.")
    if len(set(names)) < len(names):
        raise Fault(Exit.BAD_INPUT, "The bundle's name is that of a secret.", "Choose another --bundle-name.")
    if any(f"{name}_FILE" in names for name in names):
        raise Fault(Exit.BAD_INPUT, "The offer names both X and X_FILE.", "Rename one of the two in the plan.")
    return tuple(names)


def values_of(secrets: Secrets, names: tuple[str, ...]) -> Values:
    """Pair the names of `names_of` with their values."""
    views = list(secrets.values())
    if secrets.bundle is not None:
        views.append(secrets.bundle)
    return list(zip(names, views, strict=True))


class Injection:
    """One mode. A context manager: entering prepares, leaving closes. A step that a mode does not need does nothing."""

    def prepare(self) -> None:
        """Make room, or raise Fault(TARGET_REFUSED); nothing is fetched yet."""

    def fill(self, values: Values) -> None:
        """Put the values where the command will find them; the caller wipes them afterwards. Raises Fault."""

    def variables(self) -> Mapping[str, str]:
        """Return the variables to set that are not secret."""
        return {}

    def secret_strings(self) -> Sequence[int]:
        """Return addresses of NUL-terminated `NAME=value` strings, for the command's environment alone."""
        return ()

    def secret_names(self) -> frozenset[str]:
        """Return the names that `secret_strings` sets."""
        return frozenset()

    def child(self) -> None:
        """Run in the stage, just before it becomes the command."""

    def forked(self) -> None:
        """Run in the parent once the stage has its own copy: wipe what was kept for it, before the command runs."""

    def close(self) -> None:
        """Leave nothing behind. Idempotent; raises nothing."""

    def __enter__(self) -> Self:
        try:
            self.prepare()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
