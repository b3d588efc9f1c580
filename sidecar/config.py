"""Environment to frozen Config (contract 8). The only reader of the process's environment.

Order: the profile, then whether the ingress is enabled, then the profile must be cluster-control, then everything else.
All faults are reported at once, by variable name, never by value.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import combinations
from secrets import token_bytes
from typing import Final, TypeVar, cast

from provider.credential import SECRET_BYTES, Pepper, Peppers
from sidecar.postgres_config import Password, Postgres, PostgresTls, read_postgres
from sidecar.reading import ConfigFault, ConfigFaults, Reading
from sidecar.secret_file import SecretFileFault, read_secret_file
from sidecar.settings import Binding, Config, IdentityFilesConfig, Limits, Listen, Provider, ShieldLimits, Store
from sidecar.variable_rules import ANYWHERE
from sidecar.variables import (
    BY_NAME,
    CREDENTIAL,
    ENABLED,
    INGRESS,
    LOGIN,
    OWN_PREFIXES,
    PROFILE,
    PROVIDING,
    REPLICA_ID,
    SIDECAR,
    Only,
)

__all__ = [
    "Config",
    "ConfigFault",
    "ConfigFaults",
    "Gate",
    "IdentityFilesConfig",
    "Limits",
    "Listen",
    "Password",
    "Postgres",
    "PostgresTls",
    "Provider",
    "ShieldLimits",
    "Store",
    "Survey",
    "child_environment",
    "gate",
    "load",
    "named",
    "peppers_from_environment",
    "store_from_environment",
    "survey",
]

_PEPPER: Final = f"{CREDENTIAL}PEPPER"
_PEPPER_FILE: Final = f"{CREDENTIAL}PEPPER_FILE"
_PREVIOUS: Final = f"{SIDECAR}PREVIOUS_PEPPER_FILE"
Part = TypeVar("Part")
_ANYWHERE: Final = {ANYWHERE, "::"}


class Gate(Enum):
    """What the profile gate decided."""

    DISABLED = "disabled"
    ENABLED = "enabled"


@dataclass(frozen=True, slots=True)
class Survey:
    """What `check` looks at: every fault, and each part that none of them touches, else None."""

    faults: tuple[ConfigFault, ...]
    tls: IdentityFilesConfig | None
    provider: Provider | None
    store: Store | None
    receipts: bool


def gate(environ: Mapping[str, str] = os.environ) -> Gate:
    """Decide whether to serve at all, reading nothing but the profile and the switch.

    Raises ConfigFaults when one of them is faulty, and when the switch is on under any profile but cluster-control.
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
    config = _config(reading)
    reading.finish()
    return config


def survey(environ: Mapping[str, str] = os.environ) -> Survey:
    """Return every fault of an enabled ingress beside the parts that have none. Raises ConfigFaults as `gate` does."""
    gate(environ)
    whole = Reading(environ)
    _config(whole)
    return Survey(
        faults=whole.faults(),
        tls=_sound(environ, _identity),
        provider=_sound(environ, _provider),
        store=_sound(environ, _store),
        receipts=_sound(environ, _receipts) is True,
    )


def store_from_environment(environ: Mapping[str, str] = os.environ, *, admin_url: str | None = None) -> Store:
    """Return the authority store alone, for the commands that keep it; as this URL's login. Raises ConfigFaults."""
    if admin_url is not None:
        environ = {name: value for name, value in environ.items() if not name.startswith(LOGIN)}
        environ[f"{LOGIN}URL"] = admin_url
    reading = Reading(environ)
    store = _store(reading)
    reading.finish()
    return store


def named(variable: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return a variable as it is, None where unset or empty, for commands that can do without it."""
    return environ.get(variable) or None


def peppers_from_environment(environ: Mapping[str, str] = os.environ) -> Peppers:
    """Return the peppers alone, for the commands that digest. Raises ConfigFaults."""
    reading = Reading(environ)
    peppers = _peppers(reading)
    reading.finish()
    return peppers


def child_environment(values: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a child process: this one without any variable of ours, and these values."""
    ours = (*OWN_PREFIXES, *BY_NAME)
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | dict(values)


def _config(reading: Reading) -> Config:
    """Read everything. What is returned may hold stand-ins until `reading` is found without fault."""
    reading.refuse_unknown()
    provider = _provider(reading)
    store = _store(reading)
    config = Config(
        replica_id=_replica_id(reading),
        listen=_listen(reading, INGRESS),
        tls=_identity(reading),
        limits=_limits(reading),
        shield=_shield(reading),
        health=_listen(reading, f"{SIDECAR}HEALTH_"),
        metrics=_listen(reading, f"{SIDECAR}METRICS_"),
        binding=cast(Binding, reading.text(f"{INGRESS}CERTIFICATE_BINDING")),
        peppers=_peppers(reading),
        provider=provider.provider,
        root_directory=provider.root_directory,
        authority=store.authority,
        authority_file=store.authority_file,
        postgres=store.postgres,
        receipts=_receipts(reading),
    )
    _refuse_port_clashes(reading, config)
    return config


def _sound(environ: Mapping[str, str], read: Callable[[Reading], Part]) -> Part | None:
    reading = Reading(environ)
    part = read(reading)
    return None if reading.faults() else part


def _listen(reading: Reading, prefix: str) -> Listen:
    return Listen(reading.text(f"{prefix}HOST"), reading.integer(f"{prefix}PORT"))


def _identity(reading: Reading) -> IdentityFilesConfig:
    return IdentityFilesConfig(
        private_key=reading.text(f"{INGRESS}TLS_PRIVATE_KEY_FILE"),
        certificate=reading.text(f"{INGRESS}TLS_CERTIFICATE_FILE"),
        client_ca=reading.text(f"{INGRESS}TLS_CLIENT_CA_FILE"),
        client_crl=reading.optional(f"{INGRESS}TLS_CLIENT_CRL_FILE"),
    )


def _limits(reading: Reading) -> Limits:
    return Limits(
        max_body_bytes=reading.integer(f"{INGRESS}MAX_BODY_BYTES"),
        max_response_bytes=reading.integer(f"{INGRESS}MAX_RESPONSE_BYTES"),
        max_in_flight=reading.integer(f"{INGRESS}MAX_IN_FLIGHT"),
        max_in_flight_per_credential=reading.integer(f"{SIDECAR}MAX_IN_FLIGHT_PER_CREDENTIAL"),
        request_timeout_ms=reading.integer(f"{INGRESS}REQUEST_TIMEOUT_MS"),
        drain_timeout_ms=reading.integer(f"{INGRESS}DRAIN_TIMEOUT_MS"),
        shutdown_delay_ms=reading.integer(f"{SIDECAR}SHUTDOWN_DELAY_MS"),
        max_connections=reading.integer(f"{SIDECAR}MAX_CONNECTIONS"),
        max_connections_per_address=reading.integer(f"{SIDECAR}MAX_CONNECTIONS_PER_ADDRESS"),
    )


def _shield(reading: Reading) -> ShieldLimits:
    return ShieldLimits(
        window_ms=reading.integer(f"{INGRESS}AUTH_RATE_WINDOW_MS"),
        per_peer=reading.integer(f"{INGRESS}AUTH_RATE_PER_PEER"),
        global_=reading.integer(f"{INGRESS}AUTH_RATE_GLOBAL"),
        max_peers=reading.integer(f"{INGRESS}AUTH_RATE_MAX_PEERS"),
    )


def _provider(reading: Reading) -> Provider:
    choice = reading.text(f"{PROVIDING}PROVIDER")
    if choice == "mounted-files":
        return Provider("mounted-files", reading.text(f"{PROVIDING}ROOT_DIRECTORY"))
    if choice == "disabled":
        reading.refuse_not_chosen(Only.MOUNTED)
    else:
        reading.judge_undecided(Only.MOUNTED)
    return Provider("disabled", None)


def _store(reading: Reading) -> Store:
    # Required whatever the provider is: credentials and audit rows live there.
    choice = reading.text(f"{PROVIDING}AUTHORITY")
    if choice == "sqlite":
        reading.refuse_not_chosen(Only.POSTGRES)
        return Store("sqlite", reading.text(f"{PROVIDING}AUTHORITY_FILE"), None)
    if choice == "postgres":
        reading.refuse_not_chosen(Only.SQLITE)
        return Store("postgres", None, read_postgres(reading))
    reading.judge_undecided(Only.SQLITE)
    reading.judge_undecided(Only.POSTGRES)
    return Store("sqlite", "", None)


def _receipts(reading: Reading) -> bool:
    return reading.text(f"{SIDECAR}RECEIPTS") == "on"


def _peppers(reading: Reading) -> Peppers:
    text, file = reading.optional(_PEPPER), reading.optional(_PEPPER_FILE)
    previous = reading.optional(_PREVIOUS)
    if text is not None and file is not None:
        reading.fault(_PEPPER_FILE, f"is set beside {_PEPPER}", "Keep one of the two.")
    elif text is None and file is None:
        reading.fault(_PEPPER, "is required", f"Set it or {_PEPPER_FILE}.")
    current = _pepper(reading, _PEPPER, text or "") if file is None else _pepper_of_file(reading, _PEPPER_FILE, file)
    return Peppers(current, None if previous is None else _pepper_of_file(reading, _PREVIOUS, previous))


def _pepper_of_file(reading: Reading, name: str, path: str) -> Pepper:
    try:
        return _pepper(reading, name, read_secret_file(path).decode("ascii", "replace"))
    except SecretFileFault as fault:
        reading.fault(name, fault.wrong, fault.mend)
        return _nobodys_pepper()


def _pepper(reading: Reading, name: str, text: str) -> Pepper:
    try:
        return Pepper.parse(text)
    except ValueError as error:  # its text is fixed
        reading.fault(name, f"holds none: {error}", "Make one of 32 random bytes.")
        return _nobodys_pepper()


def _nobodys_pepper() -> Pepper:
    """A stand-in under which no credential would be good."""
    return Pepper(token_bytes(SECRET_BYTES))


def _replica_id(reading: Reading) -> str:
    host_name, rule = os.uname().nodename, BY_NAME[REPLICA_ID].rule
    given = reading.optional(REPLICA_ID)
    if given is None and rule.read(host_name) is None:
        reading.fault(REPLICA_ID, "is unset, and the host name cannot stand in", f"Set it to {rule.wants}.")
    return given or host_name


def _refuse_port_clashes(reading: Reading, config: Config) -> None:
    listeners = (
        (f"{INGRESS}PORT", config.listen),
        (f"{SIDECAR}HEALTH_PORT", config.health),
        (f"{SIDECAR}METRICS_PORT", config.metrics),
    )
    for (first, one), (second, other) in combinations(listeners, 2):
        hosts = {one.host, other.host}
        if one.port == other.port != 0 and (len(hosts) == 1 or hosts & _ANYWHERE):
            reading.fault(second, f"is the port of {first} too", "Give each listener a port of its own.")
