"""The one closed table of outcomes (contract 4). HTTP, metrics, events and docs read it and nothing else.

A `Code` is what the peer sees: a problem code with its one status and fixed texts. A `Reason` is why we refused: it
belongs to a stage and has one code. Several reasons share a code where the peer must not tell them apart. The order
of `Reason` is the order of the contract's rows: the first that matches answers.

`Refused` carries a reason and nothing else, so no input, path, errno or value can travel in it.
"""

from dataclasses import dataclass
from enum import Enum, unique
from typing import Final


@unique
class Stage(Enum):
    """Where in the pipeline a request is or was decided. The closed label set of `stage`."""

    __hash__ = object.__hash__  # members are singletons; Enum's own hashes the name, in Python, for every look-up

    PARSE = "parse"
    CONNECTION = "connection"
    ROUTE = "route"
    ADMISSION = "admission"
    SHIELD = "shield"
    AUTHENTICATION = "authentication"
    AUDIT = "audit"
    HEADERS = "headers"
    BODY = "body"
    COMMAND = "command"
    AUTHORITY = "authority"
    PROVIDER = "provider"
    DELIVERY = "delivery"
    DEADLINE = "deadline"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Problem:
    """What a code means on the wire: status and the fixed texts of the problem document."""

    code: str
    status: int
    title: str
    detail: str


class Code(Enum):
    """Every problem code, once, with its one status."""

    # A table: code, status and title, and below them the detail.
    # fmt: off
    MALFORMED_REQUEST = Problem("malformed_request", 400, "Malformed request",
        "The request is not well-formed HTTP/1.1 within the limits of this listener.")
    EXPECTATION_FAILED = Problem("expectation_failed", 417, "Expectation failed",
        "This listener meets no expectation; send the request without an Expect header.")
    TLS_CONTEXT_RELOADED = Problem("tls_context_reloaded", 503, "Connection no longer trusted",
        "The client certificate is no longer good under the trust now in force; connect again.")
    INVALID_URL = Problem("invalid_url", 400, "Invalid request target",
        "The request target must be a path that begins with a slash.")
    NOT_FOUND = Problem("not_found", 404, "Not found",
        "Nothing is served at this target.")
    NOT_READY = Problem("not_ready", 503, "Not ready",
        "This replica does not admit requests now; try another replica.")
    AUTHENTICATION_RATE_LIMITED = Problem("authentication_rate_limited", 429, "Too many failed authentications",
        "The budget of failed authentications is spent; wait for the time named in Retry-After.")
    METHOD_NOT_ALLOWED = Problem("method_not_allowed", 405, "Method not allowed",
        "Secrets are fetched with POST.")
    ADMISSION_CAPACITY_EXHAUSTED = Problem("admission_capacity_exhausted", 503, "At capacity",
        "The limit of requests in flight is reached; try again after the time named in Retry-After.")
    WORKER_ROUTE_NOT_FOUND = Problem("worker_route_not_found", 404, "Worker route not found",
        "No worker route matches this target.")
    WORKER_AUTHENTICATION_UNAVAILABLE = Problem("worker_authentication_unavailable", 503, "Authentication unavailable",
        "The credential could not be checked now.")
    WORKER_AUTHENTICATION_REQUIRED = Problem("worker_authentication_required", 401, "Authentication required",
        "A valid worker credential for this worker is required.")
    WORKER_AUDIT_UNAVAILABLE = Problem("worker_audit_unavailable", 503, "Audit unavailable",
        "The request could not be recorded, so it was not served.")
    UNSUPPORTED_CONTENT_ENCODING = Problem("unsupported_content_encoding", 415, "Unsupported content encoding",
        "The body must be sent without a content encoding.")
    LENGTH_REQUIRED = Problem("length_required", 411, "Length required",
        "The body must be sent with a Content-Length and not in chunks.")
    REQUEST_TOO_LARGE = Problem("request_too_large", 413, "Request too large",
        "The declared body is over the limit.")
    UNSUPPORTED_CONTENT_TYPE = Problem("unsupported_content_type", 415, "Unsupported content type",
        "The body must be application/json.")
    BODY_TIMEOUT = Problem("body_timeout", 408, "Body timeout",
        "The body did not arrive in time.")
    INVALID_JSON = Problem("invalid_json", 400, "Invalid JSON",
        "The body is not strict JSON.")
    WORKER_SECRET_DELIVERY_UNAVAILABLE = Problem("worker_secret_delivery_unavailable", 503, "Delivery unavailable",
        "Secret delivery is disabled on this listener.")
    INVALID_WORKER_REQUEST = Problem("invalid_worker_request", 400, "Invalid worker request",
        "The body is not a secret delivery command.")
    WORKER_SECRET_DELIVERY_FENCED = Problem("worker_secret_delivery_fenced", 409, "Secret delivery fenced",
        "This attempt may not have these secrets now.")
    WORKER_INGRESS_UNAVAILABLE = Problem("worker_ingress_unavailable", 503, "Worker ingress unavailable",
        "The delivery could not be completed now.")
    REQUEST_TIMEOUT = Problem("request_timeout", 504, "Request timeout",
        "The request ran out of time before it was answered.")
    INTERNAL_ERROR = Problem("internal_error", 500, "Internal error",
        "The request failed for a reason that is not named here.")
    # fmt: on


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table.

    `closes`: the answer carries `connection: close`, as contract 4 asks of all before the body and of 408, and as we
    choose for the last two, after which nothing is known of the connection. `provider_reason` is the event's
    `providerReason` (contract 7).
    """

    order: int
    stage: Stage
    code: Code
    condition: str
    closes: bool = False
    provider_reason: str | None = None


class Reason(Enum):
    """Why a request is refused, in the contract's order. `condition` is the text of the docs' generated table."""

    # A table: order, stage and code, and below them the condition.
    # fmt: off
    MALFORMED = Row(1, Stage.PARSE, Code.MALFORMED_REQUEST,
        "not well-formed HTTP/1.1 within the limits", closes=True)
    EXPECTATION = Row(2, Stage.PARSE, Code.EXPECTATION_FAILED,
        "`Expect`", closes=True)
    PEER_NOT_GOOD = Row(3, Stage.CONNECTION, Code.TLS_CONTEXT_RELOADED,
        "the peer's chain is no longer good under the current trust, CRL and clock", closes=True)
    INVALID_TARGET = Row(4, Stage.ROUTE, Code.INVALID_URL,
        "target parses but does not begin with `/`", closes=True)
    OUTSIDE_API = Row(5, Stage.ROUTE, Code.NOT_FOUND,
        "target outside the API", closes=True)
    NOT_ADMITTING = Row(6, Stage.ADMISSION, Code.NOT_READY,
        "not open yet, or withdrawn by shutdown", closes=True)
    SHIELDED = Row(7, Stage.SHIELD, Code.AUTHENTICATION_RATE_LIMITED,
        "this peer's, or the global, budget of failed authentications is spent", closes=True)
    METHOD = Row(8, Stage.ROUTE, Code.METHOD_NOT_ALLOWED,
        "the secrets route, method is not POST", closes=True)
    IN_FLIGHT_LIMIT = Row(9, Stage.ADMISSION, Code.ADMISSION_CAPACITY_EXHAUSTED,
        "in-flight limit reached", closes=True)
    UNKNOWN_WORKER_PATH = Row(10, Stage.ROUTE, Code.WORKER_ROUTE_NOT_FOUND,
        "any other worker path, or a query", closes=True)
    CREDENTIAL_STORE = Row(11, Stage.AUTHENTICATION, Code.WORKER_AUTHENTICATION_UNAVAILABLE,
        "credential store failed", closes=True)
    UNAUTHENTICATED = Row(12, Stage.AUTHENTICATION, Code.WORKER_AUTHENTICATION_REQUIRED,
        "no valid credential of this path's worker, or the binding is not met", closes=True)
    AUDIT_STORE = Row(13, Stage.AUDIT, Code.WORKER_AUDIT_UNAVAILABLE,
        "the audit row could not be written, that of a rejection included", closes=True)
    CREDENTIAL_IN_FLIGHT_LIMIT = Row(14, Stage.ADMISSION, Code.ADMISSION_CAPACITY_EXHAUSTED,
        "this credential has its limit of requests in flight", closes=True)
    CONTENT_ENCODING = Row(15, Stage.HEADERS, Code.UNSUPPORTED_CONTENT_ENCODING,
        "content encoding other than identity", closes=True)
    NO_LENGTH = Row(16, Stage.HEADERS, Code.LENGTH_REQUIRED,
        "no content length, or chunked", closes=True)
    DECLARED_TOO_LARGE = Row(17, Stage.HEADERS, Code.REQUEST_TOO_LARGE,
        "declared length over the limit", closes=True)
    CONTENT_TYPE = Row(18, Stage.HEADERS, Code.UNSUPPORTED_CONTENT_TYPE,
        "content type other than application/json", closes=True)
    BODY_TIMEOUT = Row(19, Stage.BODY, Code.BODY_TIMEOUT,
        "not complete 5 s after its audit row was written", closes=True)
    JSON = Row(20, Stage.BODY, Code.INVALID_JSON,
        "not strict JSON")
    PROVIDER_DISABLED = Row(21, Stage.DELIVERY, Code.WORKER_SECRET_DELIVERY_UNAVAILABLE,
        "provider disabled (decided before the command's shape)")
    COMMAND = Row(22, Stage.COMMAND, Code.INVALID_WORKER_REQUEST,
        "wrong keys, schema or field values")
    AUTHORITY_MISMATCH = Row(23, Stage.AUTHORITY, Code.WORKER_SECRET_DELIVERY_FENCED,
        "a fence of session, run, attempt, lease or credential does not hold")
    SECRET_SCOPE_MISMATCH = Row(24, Stage.AUTHORITY, Code.WORKER_SECRET_DELIVERY_FENCED,
        "the execution digest or the refs are not the plan's")
    AUTHORITY_STORE = Row(25, Stage.AUTHORITY, Code.WORKER_INGRESS_UNAVAILABLE,
        "authority store failed, timed out, or holds a malformed row")
    INVALID_CONFIGURATION = Row(26, Stage.PROVIDER, Code.WORKER_INGRESS_UNAVAILABLE,
        "the provider's configuration does not hold", provider_reason="invalid_configuration")
    ROOT_UNAVAILABLE = Row(27, Stage.PROVIDER, Code.WORKER_INGRESS_UNAVAILABLE,
        "the root is missing, replaced, writable by others, or hangs", provider_reason="root_unavailable")
    MATERIAL_UNAVAILABLE = Row(28, Stage.PROVIDER, Code.WORKER_INGRESS_UNAVAILABLE,
        "a file is missing, not as it must be, or drifted twice", provider_reason="material_unavailable")
    OVER_BUDGET = Row(29, Stage.PROVIDER, Code.WORKER_INGRESS_UNAVAILABLE,
        "the values or the escaped response are over a limit")
    DEADLINE = Row(30, Stage.DEADLINE, Code.REQUEST_TIMEOUT,
        "out of time before the first response byte", closes=True)
    INTERNAL = Row(31, Stage.INTERNAL, Code.INTERNAL_ERROR,
        "anything else", closes=True)
    # fmt: on


PROVIDER_CODE: Final = "QL3_CLUSTER_MOUNTED_SECRET_UNAVAILABLE"
"""`providerCode` of the outcome event for every reason that has a `provider_reason` (contract 7)."""

DELIVERED: Final = "delivered"
"""The code that metrics and events show for a 200."""


@unique
class Close(Enum):
    """Connections closed without an answer (contract 4), each counted. The closed label set of `cause`."""

    CONNECTION_LIMIT = "connection_limit"
    ADDRESS_LIMIT = "address_limit"
    HANDSHAKE_EVICTED = "handshake_evicted"
    HANDSHAKE_TIMEOUT = "handshake_timeout"
    HANDSHAKE_FAILED = "handshake_failed"
    HEADERS_TIMEOUT = "headers_timeout"
    IDLE_TIMEOUT = "idle_timeout"
    RESPONSE_TIMEOUT = "response_timeout"
    DEADLINE_RESET = "deadline_reset"
    DRAIN_RESET = "drain_reset"


class Refused(Exception):
    """The one exception of the pipeline. Carries a `Reason` and nothing else; raise it `from None`."""

    __slots__ = ("reason",)

    def __init__(self, reason: Reason) -> None:
        """Refuse for `reason`. Raises TypeError for anything that is no `Reason`, so that no text slips in."""
        if not isinstance(reason, Reason):
            raise TypeError("Refused takes a Reason")
        super().__init__()
        self.reason: Reason = reason

    def __str__(self) -> str:
        """Return the reason's name, the only thing there is to say."""
        return self.reason.name
