"""A real PostgreSQL for tests: one server for each test process, and a new database with the seven tables for a test.

`server` of `tests/conftest.py` is the server, `database` a new database; both come from here.
"""

import asyncio
import itertools
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import pytest

from provider.refs import SecretRef
from sidecar.devpostgres import CannotRun, Server, binaries
from sidecar.stores.postgres_schema import RECEIPTS, ROLE, SCHEMA, migration_script, role_script
from tests.kit.environments import LOGIN, POOL
from tests.kit.stand import Stand, make_stand
from tests.kit.world import World, default_refs, facts, offer

T = TypeVar("T")
OWNER = "ql3_owner"
"""Owns the databases and the schemas in them, and is no superuser: whoever has the admin URL."""
OWNER_PASSWORD = "owner-pw-Zq8T"
ROLE_PASSWORD = "role-pw-Kd3X"


class Postgres(Server):
    """A server whose role and owner are there, and a template with the seven tables, receipts and the role's rights."""

    def __init__(self, programs: Path | None = None, *, settings: Mapping[str, str] = {}) -> None:
        """Make the cluster; few rounds of password hashing, since tests log in hundreds of times."""
        super().__init__(programs, settings={"jit": "off", **settings})
        self._numbers = itertools.count(1)

    def start(self) -> "Postgres":
        """Start; the first time the roles and templates are made."""
        first = not self.log
        super().start()
        if first:
            self.psql(f"CREATE ROLE {OWNER} LOGIN PASSWORD '{OWNER_PASSWORD}'")
            self.psql(f"CREATE DATABASE empty OWNER {OWNER}")
            self.psql(f"CREATE DATABASE made OWNER {OWNER} TEMPLATE empty")
            self.psql(f"BEGIN; SET ROLE {OWNER}; {migration_script(0)} {RECEIPTS} COMMIT;", "made")
            self.psql(role_script(receipts=True), "made")
            self.psql(f"ALTER ROLE {ROLE} PASSWORD '{ROLE_PASSWORD}'")
        return self

    @contextmanager
    def database(self, template: str = "made") -> Iterator["Database"]:
        """Make a new database: `made` has the tables and the role's rights, `empty` has nothing. Dropped at the end."""
        name = f"db{next(self._numbers)}"
        # Rights on the database itself are not copied from a template.
        grant = f"GRANT CONNECT ON DATABASE {name} TO {ROLE};" if template == "made" else ""
        self.psql(f"CREATE DATABASE {name} OWNER {OWNER} TEMPLATE {template} STRATEGY file_copy; {grant}")
        try:
            yield Database(self, name)
        finally:
            self.psql(f"DROP DATABASE {name} WITH (FORCE)")


@dataclass(frozen=True)
class Database:
    """A database of the server, and how each of its users reaches it."""

    server: Server
    name: str

    @property
    def url(self) -> str:
        """The superuser's URL."""
        return self.server.url(database=self.name)

    @property
    def admin_url(self) -> str:
        """The owner's URL, for `--admin-url-file`."""
        return self.server.url(OWNER, OWNER_PASSWORD, self.name)

    @property
    def role_url(self) -> str:
        """The URL of the role that serves."""
        return self.server.url(ROLE, ROLE_PASSWORD, self.name)

    def environment(self) -> dict[str, str]:
        """Return the variables with which `serve` uses this database."""
        return {
            "QL3_WORKER_SECRET_AUTHORITY": "postgres",
            f"{LOGIN}HOST": "127.0.0.1",
            f"{LOGIN}PORT": str(self.server.port),
            f"{LOGIN}DATABASE": self.name,
            f"{LOGIN}USER": ROLE,
            f"{LOGIN}PASSWORD": ROLE_PASSWORD,
            f"{POOL}TLS_MODE": "disable",
            f"{POOL}ALLOW_INSECURE": "true",
        }

    def psql(self, script: str) -> str:
        """Run a script as the superuser and return what it prints."""
        return self.server.psql(script, self.name)

    def execute(self, statement: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        """Run one statement as the superuser, `?` for values and no schema before tables; return its rows."""

        async def main(connection: Any) -> list[tuple[object, ...]]:
            return [tuple(row) for row in await connection.fetch(numbered(statement), *values)]

        return self.run(main)

    def run(self, act: Callable[[Any], Awaitable[T]], url: str | None = None) -> T:
        """Do something on a connection of its own, the superuser's unless told otherwise; a loop may run here."""
        result: list[T] = []
        failed: list[BaseException] = []

        async def main() -> None:
            settings = {"search_path": SCHEMA}
            connection = await asyncpg.connect(url or self.url, server_settings=settings, timeout=20)
            try:
                result.append(await act(connection))
            finally:
                await connection.close()

        def thread() -> None:
            try:
                asyncio.run(main())
            except BaseException as error:  # noqa: BLE001 - raised again where it belongs
                failed.append(error)

        runner = threading.Thread(target=thread)
        runner.start()
        runner.join()
        if failed:
            raise failed[0]
        return result[0]

    def build_world(self, *, refs: int | Sequence[SecretRef] = 1, bundle: SecretRef | None = None) -> "PostgresWorld":
        """Write a valid world, good for an hour from now on the server's clock."""
        chosen = default_refs(refs) if isinstance(refs, int) else tuple(refs)
        now_ms = time.time_ns() // 1_000_000
        rows = facts(now_ms, chosen, bundle)

        async def main(connection: Any) -> None:
            async with connection.transaction():
                for table, row in rows.items():
                    marks = ", ".join(f"${number}" for number in range(1, len(row) + 1))
                    await connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", *row.values())

        self.run(main)
        return PostgresWorld(Path(self.name), now_ms, chosen, bundle, rows, offer(rows, chosen, bundle), database=self)


@dataclass(frozen=True)
class PostgresWorld(World):
    """A valid world in a database; `path` is its name."""

    database: Database | None = None

    def execute(self, statement: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        """Run one statement on the database, as an outside program would, and return its rows."""
        assert self.database is not None
        return self.database.execute(statement, values)

    def audit(self) -> list[dict[str, object]]:
        """Return every audit row, oldest first."""
        rows = self.execute("SELECT * FROM security_audit_events ORDER BY occurred_at_ms")
        names = ["event_id", "request_id", "operation_id", "outcome", "subject_type", "subject_id"]
        names += ["authentication_id", "reasons", "occurred_at_ms"]
        return [dict(zip(names, row, strict=True)) for row in rows]


def numbered(statement: str) -> str:
    """Return a statement with `$1`, `$2`, ... in place of each `?`."""
    first, *rest = statement.split("?")
    return first + "".join(f"${number}{part}" for number, part in enumerate(rest, start=1))


def make_postgres_stand(directory: Path, database: Database, *, refs: int = 2) -> Stand:
    """As `make_stand`, with the world in a database."""
    stand = make_stand(directory, refs=refs)
    environment = {
        name: value for name, value in stand.environment.items() if name != "QL3_WORKER_SECRET_AUTHORITY_FILE"
    }
    return replace(stand, world=database.build_world(refs=refs), environment=environment | database.environment())


@contextmanager
def running(version: int = 18, **settings: str) -> Iterator[Postgres]:
    """A server of the wheel's, 18 or 16; skips the test, and says why, where no server can run."""
    try:
        made = Postgres(binaries(version), settings=settings)
    except CannotRun as why:
        pytest.skip(str(why))
    with made:
        yield made
