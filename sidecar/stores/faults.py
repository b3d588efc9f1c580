"""Why a store cannot be used: one exception for every engine, with words for whoever has to mend it."""

from enum import Enum, unique


@unique
class StoreFaultKind(Enum):
    """What is wrong with a store. Each is an exit code 78 at start, but for a server that is not there (contract 9)."""

    MISSING = "missing"
    UNREADABLE = "unreadable"
    TOO_OPEN = "too_open"
    NOT_A_STORE = "not_a_store"
    CORRUPT = "corrupt"
    OLDER = "older"
    NEWER = "newer"
    LOCKED = "locked"
    FULL = "full"
    NO_RECEIPTS = "no_receipts"
    EXISTS = "exists"
    FOREIGN = "foreign"
    UNREACHABLE = "unreachable"
    LOGIN = "login"
    RIGHTS = "rights"


class StoreFault(Exception):
    """A store that cannot be used as it is. `wrong` and `mend` are whole sentences without a path, secret or row."""

    def __init__(self, kind: StoreFaultKind, wrong: str, mend: str) -> None:
        """Say what is wrong and how to mend it."""
        super().__init__(wrong)
        self.kind = kind
        self.wrong = wrong
        self.mend = mend
