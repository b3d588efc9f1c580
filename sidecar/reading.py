"""Reading variables out of an environment by the table, and gathering every fault on the way (contract 8).

A fault names a variable and never a value. Where a value is faulty a stand-in is returned, so that reading goes on and
all faults are found at once; `finish` raises before anybody can use what was read.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sidecar.variable_rules import Value
from sidecar.variables import BY_NAME, OWN_PREFIXES, VARIABLES, VAULT_PREFIX, Only

_SERVICE_LINK: Final = re.compile(r".+_SERVICE_(?:HOST|PORT(?:_.+)?)|.+_PORT_[0-9]+_(?:TCP|UDP)(?:_.+)?")
_LINK_VALUE: Final = ("tcp://", "udp://")
_SHOWN_CHARACTERS: Final = 128


@dataclass(frozen=True, slots=True)
class ConfigFault:
    """One fault: the variable, what is wrong with it (to follow its name), and how to mend it (a sentence)."""

    variable: str
    wrong: str
    mend: str

    def __str__(self) -> str:
        """Return the fault as one line."""
        return f"{self.variable} {self.wrong}. {self.mend}"


class ConfigFaults(Exception):
    """The environment makes no configuration. `faults` lists all that were found, in the docs' order; never empty."""

    def __init__(self, faults: Iterable[ConfigFault]) -> None:
        """Raise for these faults."""
        super().__init__()
        self.faults: tuple[ConfigFault, ...] = tuple(faults)

    def __str__(self) -> str:
        """Return a line for each fault."""
        return "\n".join(map(str, self.faults))


def is_service_link(name: str, value: str) -> bool:
    """Whether Kubernetes injects such a variable for a Service.

    Of a Service named `ql3-worker-ingress` the kubelet makes QL3_WORKER_INGRESS_PORT=tcp://...: our own name, so a link
    counts as unset there. A port that the deployer sets replaces the link.
    """
    return _SERVICE_LINK.fullmatch(name) is not None or (name.endswith("_PORT") and value.startswith(_LINK_VALUE))


class Reading:
    """One pass over an environment. Looks at the variables that it is asked for; `refuse_unknown` looks at all."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Read from this mapping, which stays unchanged."""
        self._environ = environ
        self._faults: dict[str, ConfigFault] = {}

    def fault(self, name: str, wrong: str, mend: str) -> None:
        """Note a fault; the first of a variable stands."""
        self._faults.setdefault(name, ConfigFault(name, wrong, mend))

    def faults(self) -> tuple[ConfigFault, ...]:
        """Return what was noted, in the order of the table, unknown variables last."""
        place = {variable.name: index for index, variable in enumerate(VARIABLES)}
        known = len(place)
        return tuple(sorted(self._faults.values(), key=lambda at: (place.get(at.variable, known), at.variable)))

    def finish(self) -> None:
        """Raise ConfigFaults when any fault was noted."""
        if self._faults:
            raise ConfigFaults(self.faults())

    def given(self, name: str) -> str | None:
        """Return the text, None when unset; an empty one counts as unset or, for some variables, is a fault."""
        text = self._environ.get(name)
        if text is None or is_service_link(name, text):
            return None
        if not text and BY_NAME[name].empty_is_a_fault:
            self.fault(name, "is empty", "Give it a value or remove it.")
        return text or None

    def integer(self, name: str) -> int:
        """Return a whole number."""
        value = self._value(name)
        return value if isinstance(value, int) else 0

    def flag(self, name: str) -> bool:
        """Return a boolean."""
        return self._value(name) is True

    def text(self, name: str) -> str:
        """Return a text that must be there, from the environment or by default; its absence is a fault."""
        value = self.optional(name)
        if value is None:
            self.fault(name, "is required", f"Set it to {BY_NAME[name].rule.wants}.")
        return value or ""

    def optional(self, name: str) -> str | None:
        """Return a text, None when there is none."""
        value = self._value(name)
        return value if isinstance(value, str) else None

    def refuse_not_chosen(self, only: Only) -> None:
        """Note a fault for every variable that is set and counts only with a choice that was not taken."""
        for name in self._given_of(only):
            self.fault(name, f"is set, but counts only with {only.value}", "Remove it, or change the choice.")

    def judge_undecided(self, only: Only) -> None:
        """Judge what is set of these variables alone: the choice they hang on is itself at fault."""
        for name in self._given_of(only):
            self._value(name)

    def refuse_unknown(self) -> None:
        """Note a fault for every variable under our own prefixes that is neither in the table nor a service link."""
        for name, value in self._environ.items():
            if name in BY_NAME or not name.startswith(OWN_PREFIXES) or is_service_link(name, value):
                continue
            shown = re.sub("[^A-Za-z0-9_]", "?", name)[:_SHOWN_CHARACTERS]
            if name.startswith(VAULT_PREFIX):
                self.fault(shown, "belongs to a provider that is not offered", "Remove it and use mounted-files.")
            else:
                self.fault(shown, "is unknown", "Correct its name or remove it.")

    def _given_of(self, only: Only) -> list[str]:
        counting = (variable.name for variable in VARIABLES if variable.only is only)
        return [name for name in counting if self.given(name) is not None]

    def _value(self, name: str) -> Value | None:
        variable = BY_NAME[name]
        text = self.given(name) or variable.default
        value = None if text is None else variable.rule.read(text)
        if text is not None and value is None:
            hint = "" if variable.default is None else f", or remove it for the default {variable.default}"
            self.fault(name, f"is not {variable.rule.wants}", f"Correct it{hint}.")
        return value
