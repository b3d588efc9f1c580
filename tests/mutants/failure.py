"""What a row of the failure modes is, and where a promise or a failure shows.

A row names what a worker sees by the outcome table, so that code and metric follow from it and cannot be misspelt.
Mutants are named by their file and a part of the line that they break.
"""

from dataclasses import dataclass
from enum import Enum, unique

from provider.outcomes import Close, Reason
from tests.mutants.mutant import Mutant
from tests.mutants.table import MUTANTS

PREFIX = "secret_sidecar_"


@unique
class Group(Enum):
    """The sections of docs/failure-modes.md."""

    NETWORK = "network"
    IDENTITY = "identity"
    AUTHORITY = "authority"
    SQLITE = "sqlite"
    POSTGRES = "postgres"
    MATERIAL = "material"
    PROCESS = "process"
    WORKER = "worker"


@unique
class Seen(Enum):
    """What a worker sees where it is no answer of ours: a closed set."""

    NOTHING = "nothing: served as before"
    ENDED = "served; the connection ends with the answer"
    GONE = "a reset or a close: its own connection is gone"
    REFUSED = "no connection: this replica does not listen"
    ITS_OWN_TLS = "its own TLS refuses our certificate"
    ITS_OWN_FILES = "old or new values, each whole"
    TORN = "perhaps a torn value; nobody can tell"
    ITS_OWN_CODE = "an exit code and a line on its own side"


@unique
class Silent(Enum):
    """Why no metric can show it: a closed set of reasons."""

    UNMADE = "none: the breach has no form at run time, since nobody else can make the value"
    LOOKS_GOOD = "none: the breach would count as a delivery or a refusal like others; its tests alone tell"
    COMMAND = "none: a command tells by its exit code and its findings"
    NO_PROCESS = "none: the process ends; its exit code, its last event and the scrape's `up` tell"
    WORKERS = "none: it happens in the worker's process, which tells by exit code or typed error"


@dataclass(frozen=True, slots=True)
class Line:
    """A broken line: the end of its file's name, and a part of the line as it is."""

    file: str
    part: str

    def mutants(self) -> list[Mutant]:
        """Every row of the table that breaks this line."""
        return [one for one in MUTANTS if one.file.endswith(f"/{self.file}") and self.part in one.before]


@dataclass(frozen=True, slots=True)
class Failure:
    """One way in which things go wrong."""

    happens: str
    seen: tuple[Reason | Close | Seen, ...]
    do: str
    """What the operator does."""
    mutants: tuple[Line, ...]
    metrics: tuple[str, ...] | Silent = ()
    """Beside those that follow from `seen`: names without prefix, with a label where one counts."""
    events: tuple[str, ...] = ()
    """Beside `request_completed`, which follows from `seen`."""
    tests: tuple[str, ...] = ()
    """Beside those of the mutants."""

    def shown(self) -> tuple[str, ...]:
        """The metrics that show it, in full; none where `metrics` says why."""
        own = () if isinstance(self.metrics, Silent) else self.metrics
        return tuple(f"{PREFIX}{name}" for name in (*_derived(self.seen), *own))

    def told(self) -> tuple[str, ...]:
        """The events that tell it."""
        answered = any(isinstance(one, Reason) for one in self.seen)
        return (*(("request_completed",) if answered else ()), *self.events)

    def proof(self) -> tuple[str, ...]:
        """The tests that show it: first those that fail under its mutants."""
        caught = [mutant.test for line in self.mutants for mutant in line.mutants()]
        return tuple(dict.fromkeys(test.partition("[")[0] for test in (*caught, *self.tests)))


def _derived(seen: tuple[Reason | Close | Seen, ...]) -> tuple[str, ...]:
    codes = [f'requests_total{{code="{one.value.code.value.code}"}}' for one in seen if isinstance(one, Reason)]
    reasons = [f'refusals_total{{reason="{one.name.lower()}"}}' for one in seen if isinstance(one, Reason)]
    closes = [f'silent_closes_total{{cause="{one.value}"}}' for one in seen if isinstance(one, Close)]
    return tuple(dict.fromkeys((*codes, *reasons, *closes)))
