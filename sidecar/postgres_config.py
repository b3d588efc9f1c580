"""Where the PostgreSQL authority is and how it is reached (contract 8): a URL or its parts, TLS, and the pool."""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from sidecar.reading import Reading
from sidecar.secret_file import SecretFileFault, read_secret_file
from sidecar.variable_rules import URL
from sidecar.variables import BY_NAME, LOGIN, POOL

_PARTS: Final = ("HOST", "PORT", "DATABASE", "USER", "PASSWORD", "PASSWORD_FILE")
# What separates parts stands inside a part only as an escape: then no driver can read another host out of it.
_CHARACTER: Final = r"(?:%[0-9A-Fa-f]{2}|[A-Za-z0-9._~!$&'()*+,;=-])"
_SHAPE: Final = re.compile(
    rf"postgres(?:ql)?://(?P<user>{_CHARACTER}+):(?P<password>(?:{_CHARACTER}|:)+)"
    r"@(?:\[(?P<address>[0-9A-Fa-f]*:[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]+))?"
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
        password = _decoded(read_secret_file(self.file))
        if not password or "\0" in password:
            raise SecretFileFault("names a file that holds no password in UTF-8", "Write the password alone into it.")
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


_Login = tuple[str, int, str, str, Password]
_NOBODY: Final[_Login] = ("", 0, "", "", Password("", None))


def read_postgres(reading: Reading) -> Postgres:
    """Read every variable of the PostgreSQL store; faults are noted in `reading`."""
    url = reading.given(f"{LOGIN}URL")
    host, port, database, user, password = _from_parts(reading) if url is None else _from_url(reading, url)
    return Postgres(
        host=host,
        port=port,
        database=database,
        user=user,
        password=password,
        tls=_tls(reading),
        application_name=reading.text(f"{POOL}APPLICATION_NAME"),
        max_connections=reading.integer(f"{POOL}MAX_CONNECTIONS"),
        connection_timeout_ms=reading.integer(f"{POOL}CONNECTION_TIMEOUT_MS"),
    )


def _from_parts(reading: Reading) -> _Login:
    host, database, user = (reading.text(f"{LOGIN}{part}") for part in ("HOST", "DATABASE", "USER"))
    return host, reading.integer(f"{LOGIN}PORT"), database, user, _password(reading)


def _password(reading: Reading) -> Password:
    text, file = reading.optional(f"{LOGIN}PASSWORD"), reading.optional(f"{LOGIN}PASSWORD_FILE")
    if text is not None and file is not None:
        reading.fault(f"{LOGIN}PASSWORD_FILE", f"is set beside {LOGIN}PASSWORD", "Keep one of the two.")
    elif text is None and file is None:
        reading.fault(f"{LOGIN}PASSWORD", "is required", f"Set it or {LOGIN}PASSWORD_FILE.")
    password = Password(text, None) if file is None else Password(None, file)
    try:
        password.read()
    except SecretFileFault as fault:
        reading.fault(f"{LOGIN}PASSWORD_FILE", fault.wrong, fault.mend)
    return password


def _from_url(reading: Reading, url: str) -> _Login:
    for part in _PARTS:
        if reading.given(f"{LOGIN}{part}") is not None:
            reading.fault(f"{LOGIN}{part}", f"is set beside {LOGIN}URL", "Keep the URL or its parts, not both.")
    if "?" in url:
        reading.fault(f"{LOGIN}URL", "has parameters", f"Remove them; TLS is set by {POOL}TLS_MODE and its neighbours.")
    shape = _SHAPE.fullmatch(url)
    parts = {} if shape is None else {name: _unquoted(text) for name, text in shape.groupdict().items()}
    named = {
        "HOST": parts.get("address") or parts.get("host", ""),
        "PORT": parts.get("port") or "5432",
        "DATABASE": parts.get("database", ""),
        "USER": parts.get("user", ""),
        "PASSWORD": parts.get("password", ""),
    }
    if not all(text and BY_NAME[LOGIN + part].rule.read(text) is not None for part, text in named.items()):
        reading.fault(
            f"{LOGIN}URL", f"is not {URL.wants}", "Correct it, and percent-encode what is special inside a part."
        )
        return _NOBODY
    password = Password(named["PASSWORD"], None)
    return named["HOST"], int(named["PORT"]), named["DATABASE"], named["USER"], password


def _decoded(content: bytes) -> str | None:
    try:
        return content.decode()
    except UnicodeDecodeError:  # it holds the content, so nothing is raised out of here
        return None


def _unquoted(text: str | None) -> str:
    try:
        return unquote(text or "", errors="strict")
    except UnicodeDecodeError:
        return ""  # no part may be empty


def _tls(reading: Reading) -> PostgresTls | None:
    mode, insecure = reading.text(f"{POOL}TLS_MODE"), reading.flag(f"{POOL}ALLOW_INSECURE")
    ca_file = reading.optional(f"{POOL}TLS_CA_FILE")
    if mode == "verify-full":
        return PostgresTls(reading.text(f"{POOL}TLS_SERVERNAME"), ca_file)
    reading.optional(f"{POOL}TLS_SERVERNAME")
    if mode == "disable" and not insecure:
        reading.fault(f"{POOL}TLS_MODE", f"is disable without {POOL}ALLOW_INSECURE=true", "Set both, or neither.")
    if mode == "disable" and ca_file is not None:
        reading.fault(f"{POOL}TLS_CA_FILE", "is set, but TLS is disabled", "Remove it, or use verify-full.")
    return None
