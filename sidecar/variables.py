"""Every environment variable as data (contract 8): its rule, its default, when it counts, what it means.

`sidecar/config.py` reads the environment by this table; `docs/configuration.md` is written from it.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from sidecar.variable_rules import (
    ABSOLUTE_FILE,
    ANYWHERE,
    APPLICATION,
    FILE,
    FLAG,
    HOST,
    IDENTIFIER,
    PASSWORD,
    PEPPER,
    PORT,
    REPLICA,
    ROOT,
    SERVER_NAME,
    URL,
    OneOf,
    Rule,
    Whole,
)


class Only(Enum):
    """When a variable counts. Set although it does not count, it is a fault."""

    ALWAYS = "always"
    MOUNTED = "QL3_WORKER_SECRET_PROVIDER=mounted-files"
    SQLITE = "QL3_WORKER_SECRET_AUTHORITY=sqlite"
    POSTGRES = "QL3_WORKER_SECRET_AUTHORITY=postgres"


class Group(Enum):
    """Sections of the docs' table."""

    GATE = "Gate"
    LISTENER = "Worker listener"
    IDENTITY = "TLS identity"
    CREDENTIALS = "Credentials"
    PROVIDER = "Provider and authority store"
    POSTGRES = "PostgreSQL"
    PROCESS = "Process, health and metrics"


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable. `default` is text that its rule reads, None where it is unset.

    `required`: must be set where it counts. `ours`: QL3 has no such variable, or not this bound.
    """

    name: str
    group: Group
    rule: Rule
    default: str | None
    meaning: str
    required: bool = False
    only: Only = Only.ALWAYS
    ours: bool = False

    @property
    def empty_is_a_fault(self) -> bool:
        """Whether an empty value is a fault; elsewhere it counts as unset."""
        return self.name == PROFILE or self.name.endswith(("_FILE", "_MODE", "_BINDING", "_PROVIDER", "_AUTHORITY"))


PROFILE: Final = "QL_DEPLOYMENT_PROFILE"
ENABLED: Final = "QL3_WORKER_INGRESS_ENABLED"
INGRESS: Final = "QL3_WORKER_INGRESS_"
SIDECAR: Final = "QL3_SECRET_SIDECAR_"
PROVIDING: Final = "QL3_WORKER_SECRET_"
CREDENTIAL: Final = "QL3_WORKER_CREDENTIAL_"
LOGIN: Final = "QL3_POSTGRES_WORKER_INGRESS_"
POOL: Final = "QL3_WORKER_INGRESS_POSTGRES_"
REPLICA_ID: Final = "QL3_CLUSTER_REPLICA_ID"
OWN_PREFIXES: Final = (SIDECAR, PROVIDING, INGRESS, CREDENTIAL)
"""A variable under one of these that is not in the table is a fault."""
VAULT_PREFIX: Final = f"{PROVIDING}VAULT_"
"""Variables of QL3's other provider, which is not offered here."""

_PROFILES: Final = OneOf(("edge", "standalone", "cluster-control", "worker"))
_PROVIDERS: Final = OneOf(("disabled", "mounted-files"))
_STORES: Final = OneOf(("sqlite", "postgres"))
_TLS_MODES: Final = OneOf(("verify-full", "disable"))
_RATE: Final = Whole(1, 1_000_000)
_TIMEOUT: Final = Whole(100, 120_000)


def _gate(name: str, rule: Rule, default: str, meaning: str) -> Variable:
    return Variable(name, Group.GATE, rule, default, meaning)


def _listener(name: str, rule: Rule, default: str, meaning: str, *, ours: bool = False) -> Variable:
    return Variable(INGRESS + name, Group.LISTENER, rule, default, meaning, ours=ours)


def _identity(name: str, meaning: str, *, required: bool = True) -> Variable:
    return Variable(f"{INGRESS}TLS_{name}_FILE", Group.IDENTITY, ABSOLUTE_FILE, None, meaning, required=required)


def _pepper(name: str, rule: Rule, meaning: str, *, ours: bool) -> Variable:
    return Variable(name, Group.CREDENTIALS, rule, None, meaning, ours=ours)


def _providing(name: str, rule: Rule, meaning: str, only: Only, *, ours: bool) -> Variable:
    return Variable(PROVIDING + name, Group.PROVIDER, rule, None, meaning, required=True, only=only, ours=ours)


def _postgres(name: str, rule: Rule, default: str | None, meaning: str, *, ours: bool = False) -> Variable:
    return Variable(name, Group.POSTGRES, rule, default, meaning, only=Only.POSTGRES, ours=ours)


def _sidecar(name: str, rule: Rule, default: str, meaning: str) -> Variable:
    return Variable(SIDECAR + name, Group.PROCESS, rule, default, meaning, ours=True)


VARIABLES: Final[tuple[Variable, ...]] = (
    _gate(PROFILE, _PROFILES, "standalone", "The deployment's profile. Enabled, it must be `cluster-control`."),
    _gate(ENABLED, FLAG, "false", "`false`: nothing else is read, and the process says so and ends with 0."),
    _listener("HOST", HOST, ANYWHERE, "Address of the worker listener."),
    _listener(
        "PORT", PORT, "5801", "Its port. A QL3 control container listens on 5801 too: beside one, choose another."
    ),
    _listener("MAX_BODY_BYTES", Whole(1024, 65_536), "65536", "Largest request body."),
    _listener(
        "MAX_RESPONSE_BYTES",
        Whole(1024, 262_144),
        "262144",
        "Largest response body after escaping. Each schema's own limit holds besides.",
        ours=True,
    ),
    _listener("MAX_IN_FLIGHT", Whole(1, 256), "64", "Requests in flight at once."),
    _listener(
        "AUTH_RATE_WINDOW_MS", Whole(1000, 3_600_000), "60000", "Window of the budgets of failed authentications."
    ),
    _listener("AUTH_RATE_PER_PEER", _RATE, "120", "Failed authentications of one peer in a window."),
    _listener("AUTH_RATE_GLOBAL", _RATE, "1200", "Failed authentications of all peers in a window."),
    _listener("AUTH_RATE_MAX_PEERS", Whole(1, 65_536), "4096", "Peers remembered; a full table drops its oldest."),
    _listener("REQUEST_TIMEOUT_MS", _TIMEOUT, "15000", "Deadline of a whole request."),
    _listener("DRAIN_TIMEOUT_MS", _TIMEOUT, "10000", "How long running requests may take to finish at shutdown."),
    _listener(
        "CERTIFICATE_BINDING", OneOf(("off", "san")), "off", "`san`: the certificate must name the worker.", ours=True
    ),
    _identity("PRIVATE_KEY", "Private key in PEM; not group-writable, nothing for others."),
    _identity("CERTIFICATE", "Certificate in PEM: the leaf, then its intermediates."),
    _identity("CLIENT_CA", "1 to 16 client CAs in PEM."),
    _identity("CLIENT_CRL", "One current CRL in PEM for each CA of the client CA file.", required=False),
    _pepper(f"{CREDENTIAL}PEPPER", PEPPER, "The pepper under which credentials are digested.", ours=False),
    _pepper(f"{CREDENTIAL}PEPPER_FILE", FILE, "File that holds the pepper.", ours=True),
    _pepper(
        f"{SIDECAR}PREVIOUS_PEPPER_FILE",
        FILE,
        "File that holds the pepper before: a credential digested under it is accepted, and counted.",
        ours=True,
    ),
    Variable(
        f"{PROVIDING}PROVIDER",
        Group.PROVIDER,
        _PROVIDERS,
        "disabled",
        "`disabled`: every command is answered with 503.",
    ),
    _providing("ROOT_DIRECTORY", ROOT, "Directory of the projected files.", Only.MOUNTED, ours=False),
    _providing(
        "AUTHORITY", _STORES, "Kind of the authority store; `sqlite` is for one replica.", Only.ALWAYS, ours=True
    ),
    _providing("AUTHORITY_FILE", FILE, "Store made by `secret-sidecar authority init`.", Only.SQLITE, ours=True),
    _postgres(f"{LOGIN}URL", URL, None, "Server and login in one, in place of the six below."),
    _postgres(f"{LOGIN}HOST", HOST, None, "Address or name of the server."),
    _postgres(f"{LOGIN}PORT", Whole(1, 65_535), "5432", "Port of the server."),
    _postgres(f"{LOGIN}DATABASE", IDENTIFIER, None, "Database."),
    _postgres(f"{LOGIN}USER", IDENTIFIER, None, "A login with the rights of `ql3_secret_sidecar` and no more."),
    _postgres(f"{LOGIN}PASSWORD", PASSWORD, None, "Password of the login."),
    _postgres(
        f"{LOGIN}PASSWORD_FILE", FILE, None, "File that holds the password, read for every new connection.", ours=True
    ),
    _postgres(f"{POOL}TLS_MODE", _TLS_MODES, "verify-full", f"`disable` only with `{POOL}ALLOW_INSECURE=true`."),
    _postgres(f"{POOL}ALLOW_INSECURE", FLAG, "false", "`true`: TLS may be disabled."),
    _postgres(
        f"{POOL}TLS_SERVERNAME", SERVER_NAME, None, "Name that the server's certificate must bear; for `verify-full`."
    ),
    _postgres(f"{POOL}TLS_CA_FILE", FILE, None, "CAs that may sign it, else the system's; for `verify-full`."),
    _postgres(f"{POOL}APPLICATION_NAME", APPLICATION, "qinglong-worker-ingress", "Name of our sessions at the server."),
    _postgres(f"{POOL}MAX_CONNECTIONS", Whole(2, 16), "4", "Sessions of the pool.", ours=True),
    _postgres(f"{POOL}CONNECTION_TIMEOUT_MS", Whole(100, 60_000), "5000", "How long an attempt to connect may take."),
    Variable(REPLICA_ID, Group.PROCESS, REPLICA, None, "Name of this replica in events."),
    _sidecar("HEALTH_HOST", HOST, ANYWHERE, "Address of the health listener: plain HTTP."),
    _sidecar("HEALTH_PORT", PORT, "8080", "Its port."),
    _sidecar("METRICS_HOST", HOST, ANYWHERE, "Address of the metrics listener: plain HTTP."),
    _sidecar("METRICS_PORT", PORT, "9090", "Its port."),
    _sidecar("SHUTDOWN_DELAY_MS", Whole(0, 60_000), "5000", "How long admission stays open after SIGTERM."),
    _sidecar("MAX_IN_FLIGHT_PER_CREDENTIAL", Whole(1, 256), "8", "Requests of one credential in flight at once."),
    _sidecar("MAX_CONNECTIONS", Whole(16, 65_536), "1024", "Open connections."),
    _sidecar("MAX_CONNECTIONS_PER_ADDRESS", Whole(1, 65_536), "64", "Open connections of one address, IPv6 by /64."),
    _sidecar("RECEIPTS", OneOf(("off", "on")), "off", "`on`: each ref released leaves a row, in the same transaction."),
)
"""In the order of the docs and of the faults."""
BY_NAME: Final[dict[str, Variable]] = {variable.name: variable for variable in VARIABLES}
