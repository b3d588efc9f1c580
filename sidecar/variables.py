"""Every environment variable as data (contract 8): its rule, its default, when it counts, what it means.

`sidecar/config.py` reads the environment by this table; `docs/configuration.md` is written from it.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from sidecar.variable_rules import (
    APPLICATION,
    FILE,
    FLAG,
    HOST,
    IDENTIFIER,
    PORT,
    REPLICA,
    ROOT,
    SECRET,
    SERVER_NAME,
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
    """One variable. `default` is text that its rule reads; None is unset. `ours`: QL3 has no such variable or not this bound."""

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
OWN_PREFIXES: Final = ("QL3_SECRET_SIDECAR_", "QL3_WORKER_SECRET_", "QL3_WORKER_INGRESS_", "QL3_WORKER_CREDENTIAL_")
"""A variable under one of these that is not in the table is a fault."""
VAULT_PREFIX: Final = "QL3_WORKER_SECRET_VAULT_"
"""QL3's other provider, which is not offered here."""

_RATE: Final = Whole(1, 1_000_000)
_TIMEOUT: Final = Whole(100, 120_000)


def _gate(name: str, rule: Rule, default: str, meaning: str) -> Variable:
    return Variable(name, Group.GATE, rule, default, meaning)


def _listener(name: str, rule: Rule, default: str, meaning: str, *, ours: bool = False) -> Variable:
    return Variable(f"QL3_WORKER_INGRESS_{name}", Group.LISTENER, rule, default, meaning, ours=ours)


def _identity(name: str, meaning: str, *, required: bool = True) -> Variable:
    return Variable(f"QL3_WORKER_INGRESS_TLS_{name}_FILE", Group.IDENTITY, FILE, None, meaning, required=required)


def _login(name: str, rule: Rule, default: str | None, meaning: str, *, ours: bool = False) -> Variable:
    return Variable(f"QL3_POSTGRES_WORKER_INGRESS_{name}", Group.POSTGRES, rule, default, meaning, only=Only.POSTGRES, ours=ours)


def _database(name: str, rule: Rule, default: str | None, meaning: str, *, ours: bool = False) -> Variable:
    return Variable(f"QL3_WORKER_INGRESS_POSTGRES_{name}", Group.POSTGRES, rule, default, meaning, only=Only.POSTGRES, ours=ours)


def _sidecar(name: str, rule: Rule, default: str, meaning: str) -> Variable:
    return Variable(f"QL3_SECRET_SIDECAR_{name}", Group.PROCESS, rule, default, meaning, ours=True)


VARIABLES: Final[tuple[Variable, ...]] = (
    _gate(PROFILE, OneOf(("edge", "standalone", "cluster-control", "worker")), "standalone", "The deployment's profile. Enabled, it must be `cluster-control`."),
    _gate(ENABLED, FLAG, "false", "`false`: nothing else is read, and the process says so and ends with 0."),
    _listener("HOST", HOST, "0.0.0.0", "Address of the worker listener."),  # noqa: S104 - the contract's default
    _listener("PORT", PORT, "5801", "Port of the worker listener. Beside a QL3 control container, which listens on 5801 already, choose another one."),
    _listener("MAX_BODY_BYTES", Whole(1024, 65_536), "65536", "Largest request body."),
    _listener("MAX_RESPONSE_BYTES", Whole(1024, 262_144), "262144", "Largest response body after escaping. Each schema's own limit holds besides.", ours=True),
    _listener("MAX_IN_FLIGHT", Whole(1, 256), "64", "Requests in flight at once."),
    _listener("AUTH_RATE_WINDOW_MS", Whole(1000, 3_600_000), "60000", "Window in which failed authentications are counted."),
    _listener("AUTH_RATE_PER_PEER", _RATE, "120", "Failed authentications of one peer in a window."),
    _listener("AUTH_RATE_GLOBAL", _RATE, "1200", "Failed authentications of all peers in a window."),
    _listener("AUTH_RATE_MAX_PEERS", Whole(1, 65_536), "4096", "Peers remembered; a full table drops its oldest."),
    _listener("REQUEST_TIMEOUT_MS", _TIMEOUT, "15000", "Deadline of a whole request."),
    _listener("DRAIN_TIMEOUT_MS", _TIMEOUT, "10000", "How long running requests may take to finish at shutdown, after the shutdown delay."),
    _listener("CERTIFICATE_BINDING", OneOf(("off", "san")), "off", "`san`: a name in the client certificate must be the worker's.", ours=True),
    _identity("PRIVATE_KEY", "Private key in PEM; not group-writable, nothing for others."),
    _identity("CERTIFICATE", "Certificate in PEM: the leaf, then its intermediates."),
    _identity("CLIENT_CA", "1 to 16 client CAs in PEM."),
    _identity("CLIENT_CRL", "One current CRL in PEM for each CA of the client CA file.", required=False),
    Variable("QL3_WORKER_CREDENTIAL_PEPPER", Group.CREDENTIALS, SECRET, None, "The pepper: 43 characters of base64url. Exactly one of this and `QL3_WORKER_CREDENTIAL_PEPPER_FILE`."),
    Variable("QL3_WORKER_CREDENTIAL_PEPPER_FILE", Group.CREDENTIALS, FILE, None, "File that holds the pepper.", ours=True),
    Variable("QL3_SECRET_SIDECAR_PREVIOUS_PEPPER_FILE", Group.CREDENTIALS, FILE, None, "File that holds the pepper before: while peppers rotate, a credential digested under it is accepted and counted.", ours=True),
    Variable("QL3_WORKER_SECRET_PROVIDER", Group.PROVIDER, OneOf(("disabled", "mounted-files")), "disabled", "Where secrets come from; `disabled` answers 503 to every command."),
    Variable("QL3_WORKER_SECRET_ROOT_DIRECTORY", Group.PROVIDER, ROOT, None, "Directory of the projected files.", required=True, only=Only.MOUNTED),
    Variable("QL3_WORKER_SECRET_AUTHORITY", Group.PROVIDER, OneOf(("sqlite", "postgres")), None, "Kind of the authority store; `sqlite` is for one replica.", required=True, ours=True),
    Variable("QL3_WORKER_SECRET_AUTHORITY_FILE", Group.PROVIDER, FILE, None, "The SQLite store, made by `secret-sidecar authority init`.", required=True, only=Only.SQLITE, ours=True),
    _login("URL", SECRET, None, "`postgresql://USER:PASSWORD@HOST[:PORT]/DATABASE`, parts percent-encoded, no parameters (`ssl*` least of all). Instead of the six below."),
    _login("HOST", HOST, None, "Address or name of the server."),
    _login("PORT", Whole(1, 65_535), "5432", "Port of the server."),
    _login("DATABASE", IDENTIFIER, None, "Database."),
    _login("USER", IDENTIFIER, None, "Role to log in as: `ql3_secret_sidecar` or one with exactly its rights. QL3's own role `ql3_worker_ingress` does not fit."),
    _login("PASSWORD", SECRET, None, "Password. Exactly one of this and `QL3_POSTGRES_WORKER_INGRESS_PASSWORD_FILE`."),
    _login("PASSWORD_FILE", FILE, None, "File that holds the password, read again for every new connection.", ours=True),
    _database("TLS_MODE", OneOf(("verify-full", "disable")), "verify-full", "`disable` only with `QL3_WORKER_INGRESS_POSTGRES_ALLOW_INSECURE=true`."),
    _database("ALLOW_INSECURE", FLAG, "false", "Leave to go without TLS."),
    _database("TLS_SERVERNAME", SERVER_NAME, None, "Name that the server's certificate must bear; required for `verify-full`."),
    _database("TLS_CA_FILE", FILE, None, "CAs that may have signed it; the system's when unset. With `disable` a fault."),
    _database("APPLICATION_NAME", APPLICATION, "qinglong-worker-ingress", "Name of the sessions in the server's views."),
    _database("MAX_CONNECTIONS", Whole(2, 16), "4", "Sessions of the pool.", ours=True),
    _database("CONNECTION_TIMEOUT_MS", Whole(100, 60_000), "5000", "How long one attempt to connect may take."),
    Variable("QL3_CLUSTER_REPLICA_ID", Group.PROCESS, REPLICA, None, "Name of this replica in events."),
    _sidecar("HEALTH_HOST", HOST, "0.0.0.0", "Address of the health listener: plain HTTP."),  # noqa: S104 - the contract's default
    _sidecar("HEALTH_PORT", PORT, "8080", "Port of the health listener."),
    _sidecar("METRICS_HOST", HOST, "0.0.0.0", "Address of the metrics listener: plain HTTP."),  # noqa: S104 - the contract's default
    _sidecar("METRICS_PORT", PORT, "9090", "Port of the metrics listener."),
    _sidecar("SHUTDOWN_DELAY_MS", Whole(0, 60_000), "5000", "How long admission stays open after SIGTERM, while endpoints lag."),
    _sidecar("MAX_IN_FLIGHT_PER_CREDENTIAL", Whole(1, 256), "8", "Requests of one credential in flight at once."),
    _sidecar("MAX_CONNECTIONS", Whole(16, 65_536), "1024", "Open connections."),
    _sidecar("MAX_CONNECTIONS_PER_ADDRESS", Whole(1, 65_536), "64", "Open connections of one address, IPv6 by /64."),
    _sidecar("RECEIPTS", OneOf(("off", "on")), "off", "`on`: a row for each ref released, in the authority's own transaction."),
)
BY_NAME: Final[dict[str, Variable]] = {variable.name: variable for variable in VARIABLES}
