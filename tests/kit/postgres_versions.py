"""Servers of other versions than the one that most tests use: the wheel's other one, and the system's."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sidecar.devpostgres import CannotRun, binaries
from tests.kit.postgres import Postgres


def system_programs() -> Path | None:
    """Return the directory of the system's server, the newest one."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("postgres")
    return found[-1].parent if found else None if on_path is None else Path(on_path).resolve().parent


@contextmanager
def another(version: str, **settings: str) -> Iterator[Postgres]:
    """A running server of `16` (the wheel's) or `system`; skips the test, and says why, where there is none."""
    try:
        programs = system_programs() if version == "system" else binaries(int(version))
        if programs is None:
            pytest.skip("the system has no PostgreSQL server")
        made = Postgres(programs, settings=settings)
    except CannotRun as why:
        pytest.skip(str(why))
    with made:
        yield made
