"""Where the demo keeps its workers and runs: a SQLite file, or a PostgreSQL server started for it alone."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sidecar.cli.common import Exit, Fault
from sidecar.devcerts import write

_OWNER: Final = "demo_owner"
_DATABASE: Final = "demo"


@dataclass(frozen=True, slots=True)
class DemoStore:
    """A store that `authority init` is about to make."""

    options: tuple[str, ...]
    """What names it to the `authority` commands."""
    variables: dict[str, str] = field(repr=False)
    """What names it to `serve`, and to those commands."""
    finish: Callable[[], None]
    """To be called once it is made."""


@contextmanager
def sqlite_store(directory: Path) -> Iterator[DemoStore]:
    """A file in the directory."""
    path = str(directory / "store.sqlite3")
    variables = {"QL3_WORKER_SECRET_AUTHORITY": "sqlite", "QL3_WORKER_SECRET_AUTHORITY_FILE": path}
    yield DemoStore(("--file", path), variables, lambda: None)


@contextmanager
def postgres_store(directory: Path) -> Iterator[DemoStore]:
    """A database of a throw-away server, which `serve` reaches as the role of the contract and nobody else.

    Raises Fault(CONFIGURATION) where no server can run.
    """
    # Only here: nobody needs the server's programs who does not ask for them.
    from sidecar.devpostgres import CannotRun, Server
    from sidecar.stores.postgres_schema import ROLE, role_script

    try:
        server = Server().__enter__()
    except CannotRun as why:
        raise Fault(Exit.CONFIGURATION, str(why), "Or play the demo with --store sqlite.") from None
    owner, role = secrets.token_urlsafe(16), secrets.token_urlsafe(16)
    admin_url, password = directory / "admin.url", directory / "role.password"

    def finish() -> None:
        server.psql(role_script(receipts=False), _DATABASE)
        server.psql(f"ALTER ROLE {ROLE} PASSWORD '{role}'", _DATABASE)

    try:
        server.psql(f"CREATE ROLE {_OWNER} LOGIN PASSWORD '{owner}'; CREATE DATABASE {_DATABASE} OWNER {_OWNER}")
        write(admin_url, server.url(_OWNER, owner, _DATABASE).encode() + b"\n")
        write(password, role.encode() + b"\n")
        variables = {
            "QL3_WORKER_SECRET_AUTHORITY": "postgres",
            "QL3_POSTGRES_WORKER_INGRESS_HOST": "127.0.0.1",
            "QL3_POSTGRES_WORKER_INGRESS_PORT": str(server.port),
            "QL3_POSTGRES_WORKER_INGRESS_DATABASE": _DATABASE,
            "QL3_POSTGRES_WORKER_INGRESS_USER": ROLE,
            "QL3_POSTGRES_WORKER_INGRESS_PASSWORD_FILE": str(password),
            # The wheel's programs are built without TLS; nothing leaves this machine.
            "QL3_WORKER_INGRESS_POSTGRES_TLS_MODE": "disable",
            "QL3_WORKER_INGRESS_POSTGRES_ALLOW_INSECURE": "true",
        }
        yield DemoStore(("--admin-url-file", str(admin_url)), variables, finish)
    finally:
        server.remove()


STORES: Final = {"sqlite": sqlite_store, "postgres": postgres_store}
"""The demo's stores, by the name of `--store`."""
