"""What can go wrong with a fetch: typed, and with no content of offer, credential, answer or secret (contract 9).

Every error has one fixed sentence. What varies is a status, a member of a closed list or the request id, which the
client made itself and which the server's events show too.
"""

from enum import Enum, unique


@unique
class Input(Enum):
    """The worker's files. The value is how a person calls the file."""

    OFFER = "offer"
    CREDENTIAL = "credential"
    KEY = "key"
    CERTIFICATE = "certificate"
    CA = "CA"


@unique
class Trouble(Enum):
    """Why a file cannot be used. The value completes the sentence "The ... file ..."."""

    MISSING = "does not exist"
    UNREADABLE = "cannot be read"
    NOT_REGULAR = "is no regular file"
    OPEN_TO_OTHERS = "is open to others"
    TOO_LARGE = "is too large"


@unique
class Tls(Enum):
    """Why TLS failed. The value is a whole sentence."""

    IDENTITY = "The client's certificate, key and CA files do not make a usable identity."
    SERVER_UNTRUSTED = "The server's certificate does not lead to the CA given."
    SERVER_NAME = "The server's certificate is not for the host of the URL."
    SERVER_EXPIRED = "The server's certificate is not valid at this time."
    CLIENT_REFUSED = "The server refused the client's certificate."
    PROTOCOL = "The server does not speak TLS 1.3 as this client does."


class FetchError(Exception):
    """The base of all of them; nothing was delivered and nothing of an answer is left."""

    request_id: str | None = None
    """The `x-request-id` of the last attempt, where there was one."""


class OfferInvalid(FetchError):
    """The offer is not one JSON object as `authority dispatch` writes it (contract 2 and its four keys more)."""

    def __init__(self) -> None:
        super().__init__("The offer is malformed.")


class CredentialInvalid(FetchError):
    """The credential is not `ql3w_<id>_<secret>` (contract 5)."""

    def __init__(self) -> None:
        super().__init__("The credential is malformed.")


class InputUnusable(FetchError):
    """One of the worker's files is missing, unreadable or open to others."""

    def __init__(self, which: Input, trouble: Trouble) -> None:
        super().__init__(f"The {which.value} file {trouble.value}.")
        self.input = which
        self.trouble = trouble


class TlsFailed(FetchError):
    """TLS failed for a reason that another attempt does not mend."""

    def __init__(self, cause: Tls) -> None:
        super().__init__(cause.value)
        self.cause = cause


class Denied(FetchError):
    """The sidecar denied the request: 400, 401 or 409. Never retried."""

    def __init__(self, status: int) -> None:
        super().__init__(f"The sidecar denied the request ({status}).")
        self.status = status


class Unavailable(FetchError):
    """No delivery for now: unreachable or reset (`status` None), or 429, 500, 503, 504.

    `retry_after` is the server's wish in seconds, None where it has none. 500 and 504 are never retried.
    """

    def __init__(self, status: int | None = None, retry_after: int | None = None) -> None:
        text = "cannot be reached, or closed the connection" if status is None else f"does not deliver now ({status})"
        super().__init__(f"The sidecar {text}.")
        self.status = status
        self.retry_after = retry_after

    @property
    def retried(self) -> bool:
        """Whether another attempt may help."""
        return self.status in {None, 429, 503}


class UnexpectedAnswer(FetchError):
    """An answer that is not as contracted: a status, a head, or a body that differs in any byte it may not."""

    def __init__(self, status: int) -> None:
        text = "is not as contracted" if status == 200 else f"has an unexpected status ({status})"
        super().__init__(f"The sidecar's answer {text}.")
        self.status = status


class LeaseOver(FetchError):
    """The lease had expired before the first attempt."""

    def __init__(self) -> None:
        super().__init__("The offer's lease is over.")


class OutOfTime(FetchError):
    """No attempt ended before the deadline or the end of the lease."""

    def __init__(self) -> None:
        super().__init__("No attempt ended in time.")
