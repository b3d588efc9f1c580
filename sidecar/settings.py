"""The configuration as frozen values (contract 8). `config.py` makes them; `variables.py` has bounds and defaults."""

from dataclasses import dataclass
from typing import Literal

from provider.credential import Peppers
from sidecar.postgres_config import Postgres

Binding = Literal["off", "san"]
ProviderKind = Literal["disabled", "mounted-files"]
StoreKind = Literal["sqlite", "postgres"]


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
class Provider:
    """Where secrets come from. `root_directory` is None exactly when the provider is disabled."""

    provider: ProviderKind
    root_directory: str | None


@dataclass(frozen=True, slots=True)
class Store:
    """The authority store: `authority_file` is None unless it is sqlite, `postgres` unless it is postgres."""

    authority: StoreKind
    authority_file: str | None
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
    binding: Binding
    peppers: Peppers
    provider: ProviderKind
    root_directory: str | None
    authority: StoreKind
    authority_file: str | None
    postgres: Postgres | None
    receipts: bool
