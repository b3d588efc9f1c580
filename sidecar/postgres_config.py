"""Where the PostgreSQL authority is and how it is reached (contract 8): a URL or its parts, and TLS."""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from sidecar.environment import Reading
from sidecar.secret_file import SecretFileFault, read_secret_file
from sidecar.variables import BY_NAME

_LOGIN: Final = "QL3_POSTGRES_WORKER_INGRESS_"
_URL: Final = f"{_LOGIN}URL"
_PARTS: Final = ("HOST", "PORT", "DATABASE", "USER", "PASSWORD", "PASSWORD_FILE")
_POOL: Final = "QL3_WORKER_INGRESS_POSTGRES_"
# Percent signs only as escapes; `@`, `/`, `?` and `#` inside a part must be escaped, so that no two readers disagree.
_CHARACTER: Final = r"(?:%[0-9A-Fa-f]{2}|[!$&-.0-;=A-Z_a-z~])"
_SHAPE: Final = re.compile(
    rf"postgres(?:ql)?://(?P<user>(?:(?!:){_CHARACTER})+):(?P<password>{_CHARACTER}+)"
    r"@(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?"
    rf"/(?P<database>{_CHARACTER}+)"
)


@dataclass(frozen=True, slots=True, repr=False)
class Password:
    """A password as text, or the file that holds it; exactly one is not None. Shows nothing of itself."""

    text: str | None
    file: str | None

    def read(self) -> str:
        """Return the password, from a file anew each time. Raises SecretFileFault when the file cannot be used."""
        if self.file is None:
            return self.text or ""
        try:
            password = read_secret_file(self.file).decode()
        except UnicodeDecodeError:
            raise SecretFileFault("names a file that is not UTF-8", "Write the password alone into it.") from None
        if not password or "\0" in password:
            raise SecretFileFault("names a file that holds no password", "Write the password alone into it.")
        return password

    def __repr__(self) -> str:
        """Show nothing: a repr may reach a log."""
        return "Password(redacted)"


@dataclass(frozen=True, slots=True)
class PostgresTls:
    """`verify-full`: the name that the certificate must bear, and the CAs to trust (None: the system's)."""

    server_name: str
    ca_file: str | None


@dataclass(frozen=True, slots=True)
class Postgres:
    """One server, one login, one pool. `tls` is None where TLS was disabled explicitly."""

    host: str
    port: int
    database: str
    user: str
    password: Password
    tls: PostgresTls | None
    application_name: str
    max_connections: int
    connection_timeout_ms: int


def read_postgres(reading: Reading) -> Postgres:
    """Read every variable of the PostgreSQL store; faults are noted in `reading`."""
    host, port, database, user, password = _from_url(reading) if reading.given(_URL) else _from_parts(reading)
    return Postgres(
        host=host,
        port=port,
        database=database,
        user=user,
        password=password,
        tls=_tls(reading),
        application_name=reading.text(f"{_POOL}APPLICATION_NAME"),
        max_connections=reading.integer(f"{_POOL}MAX_CONNECTIONS"),
        connection_timeout_ms=reading.integer(f"{_POOL}CONNECTION_TIMEOUT_MS"),
    )


def _from_parts(reading: Reading) -> tuple[str, int, str, str, Password]:
    text, file = reading.optional(f"{_LOGIN}PASSWORD"), reading.optional(f"{_LOGIN}PASSWORD_FILE")
    password = Password(None if file else text, file)
    if text and file:
        reading.fault(f"{_LOGIN}PASSWORD_FILE", f"is set beside {_LOGIN}PASSWORD", "Keep one of the two.")
    elif file:
        try:
            password.read()
        except SecretFileFault as fault:
            reading.fault(f"{_LOGIN}PASSWORD_FILE", fault.wrong, fault.mend)
    elif text is None:
        reading.fault(f"{_LOGIN}PASSWORD", "is required", f"Set it or {_LOGIN}PASSWORD_FILE.")
    host, database, user = (reading.text(f"{_LOGIN}{part}") for part in ("HOST", "DATABASE", "USER"))
    return host, reading.integer(f"{_LOGIN}PORT"), database, user, password


def _from_url(reading: Reading) -> tuple[str, int, str, str, Password]:
    for part in _PARTS:
        if reading.given(f"{_LOGIN}{part}") is not None:
            reading.fault(f"{_LOGIN}{part}", f"is set beside {_URL}", "Keep the URL or its parts, not both.")
    url = reading.text(_URL)
    if "?" in url:
        reading.fault(_URL, "has parameters", f"Remove them; TLS is set by {_POOL}TLS_MODE and its neighbours.")
    shape = _SHAPE.fullmatch(url)
    parts = {} if shape is None else {name: _unquoted(text) for name, text in shape.groupdict().items() if text}
    host, port = parts.get("address") or parts.get("host"), parts.get("port", "5432")
    named = (("HOST", host), ("PORT", port), ("DATABASE", parts.get("database")), ("USER", parts.get("user")))
    password = parts.get("password")
    valid = all(text is not None and BY_NAME[f"{_LOGIN}{part}"].rule.read(text) is not None for part, text in named)
    if not valid or not password or "\0" in password:
        reading.fault(_URL, "is not postgresql://USER:PASSWORD@HOST[:PORT]/DATABASE", "Correct it; percent-encode what is special in a part.")
        return "", 0, "", "", Password("", None)
    return host or "", int(port or 0), parts["database"] or "", parts["user"] or "", Password(password, None)


def _unquoted(text: str) -> str | None:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        return None


def _tls(reading: Reading) -> PostgresTls | None:
    mode, insecure = reading.optional(f"{_POOL}TLS_MODE"), reading.flag(f"{_POOL}ALLOW_INSECURE")
    ca_file = reading.optional(f"{_POOL}TLS_CA_FILE")
    if mode != "disable":
        return PostgresTls(reading.text(f"{_POOL}TLS_SERVERNAME"), ca_file)
    reading.optional(f"{_POOL}TLS_SERVERNAME")
    if not insecure:
        reading.fault(f"{_POOL}TLS_MODE", f"is disable without {_POOL}ALLOW_INSECURE=true", "Set that too, or use verify-full.")
    if ca_file is not None:
        reading.fault(f"{_POOL}TLS_CA_FILE", "is set, but TLS is disabled", "Remove it, or use verify-full.")
    return None
