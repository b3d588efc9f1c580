"""Environments of a valid deployment, each test changes one variable of them; and what `load` makes of one."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from sidecar.config import Config, ConfigFault, ConfigFaults, load

INGRESS: Final = "QL3_WORKER_INGRESS_"
SIDECAR: Final = "QL3_SECRET_SIDECAR_"
LOGIN: Final = "QL3_POSTGRES_WORKER_INGRESS_"
POOL: Final = "QL3_WORKER_INGRESS_POSTGRES_"
PEPPER_FILE: Final = "QL3_WORKER_CREDENTIAL_PEPPER_FILE"
PREVIOUS_FILE: Final = "QL3_SECRET_SIDECAR_PREVIOUS_PEPPER_FILE"
PASSWORD_FILE: Final = "QL3_POSTGRES_WORKER_INGRESS_PASSWORD_FILE"

PEPPER = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
GATE = {"QL_DEPLOYMENT_PROFILE": "cluster-control", "QL3_WORKER_INGRESS_ENABLED": "true"}
SQLITE = {
    **GATE,
    "QL3_WORKER_INGRESS_TLS_PRIVATE_KEY_FILE": "/identity/tls.key",
    "QL3_WORKER_INGRESS_TLS_CERTIFICATE_FILE": "/identity/tls.crt",
    "QL3_WORKER_INGRESS_TLS_CLIENT_CA_FILE": "/identity/ca.crt",
    "QL3_WORKER_CREDENTIAL_PEPPER": PEPPER,
    "QL3_WORKER_SECRET_PROVIDER": "mounted-files",
    "QL3_WORKER_SECRET_ROOT_DIRECTORY": "/secrets/values",
    "QL3_WORKER_SECRET_AUTHORITY": "sqlite",
    "QL3_WORKER_SECRET_AUTHORITY_FILE": "/store/authority.db",
}
"""Everything that is required with the embedded store, and nothing more."""
POSTGRES = {
    **{name: value for name, value in SQLITE.items() if name != "QL3_WORKER_SECRET_AUTHORITY_FILE"},
    "QL3_WORKER_SECRET_AUTHORITY": "postgres",
    "QL3_POSTGRES_WORKER_INGRESS_HOST": "postgres.database.svc",
    "QL3_POSTGRES_WORKER_INGRESS_DATABASE": "qinglong",
    "QL3_POSTGRES_WORKER_INGRESS_USER": "sidecar_login",
    "QL3_POSTGRES_WORKER_INGRESS_PASSWORD": "a password",
    "QL3_WORKER_INGRESS_POSTGRES_TLS_SERVERNAME": "postgres.database.svc",
}
"""Everything that is required with PostgreSQL named by its parts, and nothing more."""

URL: Final = {
    **{name: value for name, value in POSTGRES.items() if not name.startswith(LOGIN)},
    f"{LOGIN}URL": "postgresql://login:word@db.example:5433/qinglong",
}
"""The same, named by a URL."""


def changed(environ: Mapping[str, str], values: Mapping[str, str | None]) -> dict[str, str]:
    """The environment with these variables set, or unset where the value is None."""
    merged = {**environ, **values}
    return {name: value for name, value in merged.items() if value is not None}


def faults(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that `load` faults, each with what is wrong."""
    with pytest.raises(ConfigFaults) as caught:
        load(environ)
    return {fault.variable: fault.wrong for fault in caught.value.faults}


def faulted(environ: Mapping[str, str], **values: str | None) -> list[str]:
    """The names of the variables that are at fault once these values are in the environment."""
    return list(faults(changed(environ, values)))


def outcome(environ: Mapping[str, str]) -> Config | tuple[ConfigFault, ...]:
    """The configuration, or the faults."""
    try:
        return load(environ)
    except ConfigFaults as caught:
        return caught.faults


class Watched(dict[str, str]):
    """An environment that remembers which variables were looked at."""

    def __init__(self, values: Mapping[str, str]) -> None:
        """Begin with these values and nothing seen."""
        super().__init__(values)
        self.seen: set[object] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """As of a dict, and remember the name."""
        self.seen.add(key)
        return super().get(key, default)

    def __iter__(self) -> Iterator[str]:
        self.seen.add("everything")
        return super().__iter__()


def held(directory: Path, content: bytes, mode: int = 0o440) -> str:
    """The path of a file with this content and mode."""
    path = directory / "held"
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)
