"""`docs/postgresql.md` and what it promises: every command in it is run here, in its order, on a real server."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from sidecar.stores.postgres_schema import MIGRATIONS, ROLE
from sidecar.variables import BY_NAME
from tests.kit.postgres import OWNER, Database, Postgres, make_postgres_stand
from tests.kit.stand import Stand
from tests.kit.world import PEPPER_TEXT

ROOT: Final = Path(__file__).resolve().parents[1]
DOCUMENT: Final = ROOT / "docs" / "postgresql.md"
_BLOCK: Final = re.compile(r"(?:^    .*\n)+", re.MULTILINE)


def sections() -> dict[str, list[str]]:
    """Return the blocks of commands and of variables below each heading."""
    found = {}
    for part in re.split(r"^## ", DOCUMENT.read_text("utf-8"), flags=re.MULTILINE)[1:]:
        heading, _, text = part.partition("\n")
        found[heading] = [re.sub("^    ", "", block, flags=re.MULTILINE) for block in _BLOCK.findall(text)]
    return found


SECTIONS: Final = sections()
NAMING: Final = re.compile(r"(?:[A-Z0-9_]+=\S+\n)+")


@dataclass
class Operator:
    """Somebody with a shell, in a folder, who follows the document."""

    folder: Path
    environment: dict[str, str]

    def follow(self, section: str, *numbers: int) -> str:
        """Run blocks of a section, all of its commands unless told which, and return what they print."""
        said = ""
        for number, block in enumerate(SECTIONS[section]):
            if NAMING.fullmatch(block) or (numbers and number not in numbers):
                continue
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block.replace("secret-sidecar serve\n", "")],
                env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            assert done.returncode == 0, (block, done.stdout, done.stderr)
            said += done.stdout
        return said


def operator_of(stand: Stand, database: Database) -> Operator:
    """Return an operator of a stand: psql of the wheel as the superuser, and the variables of `serve`."""
    folder = stand.directory
    programs = folder / "bin"
    programs.mkdir()
    (programs / "secret-sidecar").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sidecar "$@"\n')
    (programs / "psql").symlink_to(database.server.programs / "psql")
    (programs / "python3").symlink_to(sys.executable)
    (programs / "secret-sidecar").chmod(0o755)
    (folder / "admin.url").write_text(database.admin_url + "\n")
    (folder / "admin.url").chmod(0o600)
    (folder / "pepper").write_text(PEPPER_TEXT)
    (folder / "pepper").chmod(0o600)
    stand.environment.pop("QL3_POSTGRES_WORKER_INGRESS_PASSWORD")
    stand.environment.pop("QL3_WORKER_CREDENTIAL_PEPPER")
    stand.environment |= {
        "QL3_POSTGRES_WORKER_INGRESS_PASSWORD_FILE": str(folder / "login.password"),
        "QL3_WORKER_CREDENTIAL_PEPPER_FILE": str(folder / "pepper"),
    }
    environment = stand.environment | {
        "PATH": f"{programs}:{os.defpath}",
        "PYTHONPATH": str(ROOT),
        "PGHOST": "127.0.0.1",
        "PGPORT": str(database.server.port),
        "PGDATABASE": database.name,
        "PGUSER": "postgres",
        "PGPASSWORD": database.server.password,
    }
    return Operator(folder, environment)


@pytest.fixture
def password_kept(server: Postgres) -> Iterator[None]:
    """Give the role its tests' password back."""
    yield
    from tests.kit.postgres import ROLE_PASSWORD

    server.psql(f"ALTER ROLE {ROLE} PASSWORD '{ROLE_PASSWORD}'")


pytestmark = pytest.mark.usefixtures("password_kept")


def test_a_database_of_ql3_is_served_by_following_the_document(server: Postgres, tmp_path: Path) -> None:
    """On a schema that QL3 made, with no role's rights yet, the document leads to a delivery, and then to receipts."""
    with server.database("empty") as database:
        database.psql(f"SET ROLE {OWNER}; CREATE SCHEMA ql3; {MIGRATIONS[0]}")
        stand = make_postgres_stand(tmp_path / "stand", database)
        operator = operator_of(stand, database)
        assert "serve would start" in operator.follow("Point the sidecar at a database of QL3")
        with stand.start():
            assert stand.ask().code == "delivered"
            stand.stop()
        operator.environment["QL3_SECRET_SIDECAR_RECEIPTS"] = "on"
        assert "serve would start" in operator.follow("Receipts")
        with stand.start(QL3_SECRET_SIDECAR_RECEIPTS="on"):
            assert stand.ask().code == "delivered"
            stand.stop()
        assert int(database.psql("SELECT count(*) FROM secret_sidecar.receipts WHERE kind = 'released'")) == 2


def test_a_database_without_ql3_is_kept_by_following_the_document(server: Postgres, tmp_path: Path) -> None:
    """From an empty database to an enrolled worker with a session, pruned and migrated."""
    with server.database("empty") as database:
        stand = make_stand_without_world(tmp_path / "stand", database)
        operator = operator_of(stand, database)
        operator.follow("Without QL3", 0)
        operator.follow("Point the sidecar at a database of QL3", 1)
        said = operator.follow("Without QL3", 1, 2)
        assert "worker-1" in said
        assert "deleted 0 audit rows" in said
        assert "nothing was changed" in said
        assert (operator.folder / "worker-1.token").read_text().startswith("ql3w_worker-1_")


def make_stand_without_world(directory: Path, database: Database) -> Stand:
    """Return a stand whose database is empty."""
    from tests.kit.stand import make_stand

    stand = make_stand(directory)
    del stand.environment["QL3_WORKER_SECRET_AUTHORITY_FILE"]
    stand.environment |= database.environment()
    return stand


def test_a_login_is_rotated_by_following_the_document(database: Database, tmp_path: Path) -> None:
    """While the sidecar serves, the login gets a new password and old sessions end; it goes on without a restart."""
    stand = make_postgres_stand(tmp_path / "stand", database)
    operator = operator_of(stand, database)
    operator.follow("Point the sidecar at a database of QL3", 1)
    before = (operator.folder / "login.password").read_text()
    with stand.start():
        assert stand.ask().code == "delivered"
        operator.follow("A rotated login", 0)
        assert (operator.folder / "login.password").read_text() != before
        # Sessions that are open stay open.
        assert stand.ask().code == "delivered"
        operator.follow("A rotated login", 1)
        wait_for_delivery(stand)
        assert stand.process is not None
        assert stand.process.poll() is None


def wait_for_delivery(stand: Stand) -> None:
    """Ask until it is delivered: what met an ended session is a 503."""
    from tests.kit.waiting import wait_for

    wait_for(lambda: stand.ask().code == "delivered")


def test_a_pepper_is_rotated_by_following_the_document(database: Database, tmp_path: Path) -> None:
    """Old and new credentials are good while both peppers are named, the old one counted; then only the new one is."""
    stand = make_postgres_stand(tmp_path / "stand", database)
    operator = operator_of(stand, database)
    operator.follow("Point the sidecar at a database of QL3", 1)
    operator.follow("A rotated pepper", 0)
    previous = {"QL3_SECRET_SIDECAR_PREVIOUS_PEPPER_FILE": str(operator.folder / "pepper.previous")}
    with stand.start(**previous):
        assert stand.ask().code == "delivered"
        assert stand.metric("previous_pepper_total") == 1
        operator.follow("A rotated pepper", 2)
        token = (operator.folder / "worker-1.token.new").read_text().strip()
        assert stand.ask(token=token).code == "delivered"
        assert stand.metric("previous_pepper_total") == 1
        stand.stop()
    with stand.start():
        assert stand.ask().code == "worker_authentication_required"
        assert stand.ask(token=token).code == "delivered"
        stand.stop()


def test_the_document_names_variables_as_they_are() -> None:
    """Every variable in a block of the document is one of the table, and its value is one that the table takes."""
    blocks = [block for section in SECTIONS.values() for block in section if NAMING.fullmatch(block)]
    named = [line.partition("=") for block in blocks for line in block.splitlines()]
    assert len(named) == 10
    for name, _, value in named:
        assert BY_NAME[name].rule.read(value) is not None, name
