"""Environment to frozen Config (contract 8). The only reader of the environment.

Order: the profile, then whether the ingress is enabled, then the profile must be cluster-control, then everything else.
All faults are reported at once, by variable name, never by value.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import combinations
from typing import Final, Literal, cast

from provider.credential import Pepper, Peppers
from sidecar.environment import ConfigFault, ConfigFaults, Reading
from sidecar.postgres_config import Password, Postgres, PostgresTls, read_postgres
from sidecar.secret_file import SecretFileFault, read_secret_file
from sidecar.variables import BY_NAME, ENABLED, PROFILE, VARIABLES, Only

__all__ = (
    "Config", "ConfigFault", "ConfigFaults", "Gate", "IdentityFilesConfig", "Limits", "Listen", "Password", "Postgres",
    "PostgresTls", "ShieldLimits", "Store", "gate", "load", "peppers_from_environment", "store_from_environment",
)  # fmt: skip

_INGRESS: Final = "QL3_WORKER_INGRESS_"
_SIDECAR: Final = "QL3_SECRET_SIDECAR_"
_SECRET: Final = "QL3_WORKER_SECRET_"
_PEPPER: Final = "QL3_WORKER_CREDENTIAL_PEPPER"
_REPLICA: Final = "QL3_CLUSTER_REPLICA_ID"


class Gate(Enum):
    """What the profile gate decided."""

    DISABLED = "disabled"
    ENABLED = "enabled"


@dataclass(frozen=True, slots=True)
class Listen:
    """Address and port of a listener. Port 0 asks the kernel for a free one."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class IdentityFilesConfig:
    """Absolute paths of the TLS identity; without a CRL file revocation is not checked."""

    private_key: str
    certificate: str
    client_ca: str
    client_crl: str | None


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the worker listener, in the units of their names; the others are counts."""

    max_body_bytes: int
    max_response_bytes: int
    max_in_flight: int
    max_in_flight_per_credential: int
    request_timeout_ms: int
    drain_timeout_ms: int
    shutdown_delay_ms: int
    max_connections: int
    max_connections_per_address: int


@dataclass(frozen=True, slots=True)
class ShieldLimits:
    """Budget of failed authentications in a window: for one peer, for all, and how many peers are remembered."""

    window_ms: int
    per_peer: int
    global_: int
    max_peers: int


@dataclass(frozen=True, slots=True)
class Store:
    """The authority store: `file` for sqlite, `postgres` for postgres, the other one None."""

    authority: Literal["sqlite", "postgres"]
    file: str | None
    postgres: Postgres | None


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that a deployment chooses. `root_directory` is None exactly when the provider is disabled."""

    replica_id: str
    listen: Listen
    tls: IdentityFilesConfig
    limits: Limits
    shield: ShieldLimits
    health: Listen
    metrics: Listen
    binding: Literal["off", "san"]
    peppers: Peppers
    provider: Literal["disabled", "mounted-files"]
    root_directory: str | None
    authority: Literal["sqlite", "postgres"]
    authority_file: str | None
    postgres: Postgres | None
    receipts: bool


def gate(environ: Mapping[str, str] = os.environ) -> Gate:
    """Decide whether to serve at all, reading nothing but the profile and the switch.

    Raises ConfigFaults when one of them is faulty, and when the switch is on under a profile other than cluster-control.
    """
    reading = Reading(environ)
    profile, enabled = reading.text(PROFILE), reading.flag(ENABLED)
    if enabled and profile != "cluster-control":
        reading.fault(PROFILE, f"must be cluster-control where {ENABLED} is true", "Set it so, or disable the ingress.")
    reading.finish()
    return Gate.ENABLED if enabled else Gate.DISABLED


def load(environ: Mapping[str, str] = os.environ) -> Config:
    """Return the configuration of an enabled ingress. Files of pepper and password are read here, no others.

    Raises ConfigFaults: with the gate's faults alone, with the switch where it is off, otherwise with all faults.
    """
    if gate(environ) is Gate.DISABLED:
        raise ConfigFaults([ConfigFault(ENABLED, "is not true", "Set it to true to serve.")])
    reading = Reading(environ)
    reading.refuse_unknown()
    for variable in VARIABLES:
        reading.given(variable.name)  # notes the empty ones, of choices not taken too
    provider, root = _provider(reading)
    store = _store(reading)
    config = Config(
        replica_id=_replica_id(reading),
        listen=_listen(reading, _INGRESS),
        tls=_identity(reading),
        limits=_limits(reading),
        shield=ShieldLimits(*(reading.integer(f"{_INGRESS}AUTH_RATE_{name}") for name in ("WINDOW_MS", "PER_PEER", "GLOBAL", "MAX_PEERS"))),
        health=_listen(reading, f"{_SIDECAR}HEALTH_"),
        metrics=_listen(reading, f"{_SIDECAR}METRICS_"),
        binding=cast(Literal["off", "san"], reading.text(f"{_INGRESS}CERTIFICATE_BINDING")),
        peppers=_peppers(reading),
        provider=provider,
        root_directory=root,
        authority=store.authority,
        authority_file=store.file,
        postgres=store.postgres,
        receipts=reading.text(f"{_SIDECAR}RECEIPTS") == "on",
    )
    _refuse_port_clashes(reading, config)
    reading.finish()
    return config


def store_from_environment(environ: Mapping[str, str] = os.environ) -> Store:
    """Return the authority store alone, for the commands that keep it. Raises ConfigFaults with the faults of its variables."""
    reading = Reading(environ)
    store = _store(reading)
    reading.finish()
    return store


def peppers_from_environment(environ: Mapping[str, str] = os.environ) -> Peppers:
    """Return the peppers alone, for the commands that digest. Raises ConfigFaults with the faults of their variables."""
    reading = Reading(environ)
    peppers = _peppers(reading)
    reading.finish()
    return peppers


def _listen(reading: Reading, prefix: str) -> Listen:
    return Listen(reading.text(f"{prefix}HOST"), reading.integer(f"{prefix}PORT"))


def _identity(reading: Reading) -> IdentityFilesConfig:
    key, certificate, client_ca = (reading.text(f"{_INGRESS}TLS_{name}_FILE") for name in ("PRIVATE_KEY", "CERTIFICATE", "CLIENT_CA"))
    return IdentityFilesConfig(key, certificate, client_ca, reading.optional(f"{_INGRESS}TLS_CLIENT_CRL_FILE"))


def _limits(reading: Reading) -> Limits:
    return Limits(
        max_body_bytes=reading.integer(f"{_INGRESS}MAX_BODY_BYTES"),
        max_response_bytes=reading.integer(f"{_INGRESS}MAX_RESPONSE_BYTES"),
        max_in_flight=reading.integer(f"{_INGRESS}MAX_IN_FLIGHT"),
        max_in_flight_per_credential=reading.integer(f"{_SIDECAR}MAX_IN_FLIGHT_PER_CREDENTIAL"),
        request_timeout_ms=reading.integer(f"{_INGRESS}REQUEST_TIMEOUT_MS"),
        drain_timeout_ms=reading.integer(f"{_INGRESS}DRAIN_TIMEOUT_MS"),
        shutdown_delay_ms=reading.integer(f"{_SIDECAR}SHUTDOWN_DELAY_MS"),
        max_connections=reading.integer(f"{_SIDECAR}MAX_CONNECTIONS"),
        max_connections_per_address=reading.integer(f"{_SIDECAR}MAX_CONNECTIONS_PER_ADDRESS"),
    )


def _provider(reading: Reading) -> tuple[Literal["disabled", "mounted-files"], str | None]:
    choice = reading.text(f"{_SECRET}PROVIDER")
    if choice == "mounted-files":
        return "mounted-files", reading.text(f"{_SECRET}ROOT_DIRECTORY")
    (reading.refuse if choice else reading.judge)(Only.MOUNTED)
    return "disabled", None


def _store(reading: Reading) -> Store:
    # Required whatever the provider is: credentials and audit rows live there.
    choice = reading.text(f"{_SECRET}AUTHORITY")
    if choice == "sqlite":
        reading.refuse(Only.POSTGRES)
        return Store("sqlite", reading.text(f"{_SECRET}AUTHORITY_FILE"), None)
    if choice == "postgres":
        reading.refuse(Only.SQLITE)
        return Store("postgres", None, read_postgres(reading))
    reading.judge(Only.SQLITE)
    reading.judge(Only.POSTGRES)
    return Store("sqlite", "", None)


def _peppers(reading: Reading) -> Peppers:
    text, file = reading.optional(_PEPPER), reading.optional(f"{_PEPPER}_FILE")
    previous = reading.optional(f"{_SIDECAR}PREVIOUS_PEPPER_FILE")
    if text is not None and file is not None:
        reading.fault(f"{_PEPPER}_FILE", f"is set beside {_PEPPER}", "Keep one of the two.")
    elif text is None and file is None:
        reading.fault(_PEPPER, "is required", f"Set it or {_PEPPER}_FILE.")
    current = _pepper_file(reading, f"{_PEPPER}_FILE", file) if file is not None else _pepper(reading, _PEPPER, text or "")
    before = None if previous is None else _pepper_file(reading, f"{_SIDECAR}PREVIOUS_PEPPER_FILE", previous)
    return Peppers(current, before)


def _pepper_file(reading: Reading, name: str, path: str) -> Pepper:
    try:
        text = read_secret_file(path).decode("ascii", "replace")
    except SecretFileFault as fault:
        reading.fault(name, fault.wrong, fault.mend)
        text = ""
    return _pepper(reading, name, text)


def _pepper(reading: Reading, name: str, text: str) -> Pepper:
    try:
        return Pepper.parse(text)
    except ValueError as error:
        reading.fault(name, f"does not hold a pepper: {error}", "Make one of 32 random bytes.")
        return Pepper(bytes(range(32)))  # a stand-in: `finish` raises before anybody has it


def _replica_id(reading: Reading) -> str:
    given = reading.optional(_REPLICA)
    if given is None and BY_NAME[_REPLICA].rule.read(os.uname().nodename) is None:
        reading.fault(_REPLICA, "is unset, and the host name cannot stand in", f"Set it to {BY_NAME[_REPLICA].rule.wants}.")
    return given or os.uname().nodename


def _refuse_port_clashes(reading: Reading, config: Config) -> None:
    named = ((f"{_INGRESS}PORT", config.listen), (f"{_SIDECAR}HEALTH_PORT", config.health), (f"{_SIDECAR}METRICS_PORT", config.metrics))
    for (first, one), (second, other) in combinations(named, 2):
        if one.port == other.port != 0 and (one.host == other.host or {one.host, other.host} & {"0.0.0.0", "::"}):  # noqa: S104 - compared, not bound
            reading.fault(second, f"is the port of {first} too", "Give each listener a port of its own.")
