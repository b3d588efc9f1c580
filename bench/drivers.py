"""`python -m bench.drivers`: the statements of a delivery, sent by asyncpg as it is, by our session, and by psycopg 3.

The same server, role, statements and limits for each; each in a process of its own. Told are processor time and wall
time a delivery for 1, 4 and 8 sessions, the instructions of one (callgrind, where valgrind is installed), which do not
depend on who else uses the machine. This is what ADR 9 decides by.
"""

import argparse
import dataclasses
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.bed import CHECKOUT, DURABLE, RESULTS, Settings, result_of
from bench.driver import DRIVERS, Told
from sidecar.devpostgres import CannotRun
from sidecar.stores.postgres_schema import ROLE
from tests.kit.postgres import ROLE_PASSWORD, Database, Postgres
from tests.kit.world import ATTEMPT_ID, CREDENTIAL_ID

SESSIONS: Final = (1, 4, 8)
INSTRUCTIONS: Final = (50, 150)
"""Deliveries of the two runs whose difference is taken, so that start and logins do not count."""


def started(database: Database, driver: str, sessions: int, deliveries: int, *under: str) -> tuple[Any, str]:
    """Run a child; return what it wrote, and its standard error."""
    told = Told(
        driver,
        database.server.port,
        database.name,
        ROLE,
        ROLE_PASSWORD,
        ATTEMPT_ID,
        CREDENTIAL_ID,
        sessions,
        deliveries,
    )
    done = subprocess.run(
        [*under, sys.executable, "-m", "bench.driver"],
        input=json.dumps(dataclasses.asdict(told)), capture_output=True, text=True, cwd=CHECKOUT, check=False,
        env=os.environ | {"PYTHONHASHSEED": "0"},
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{driver}: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout), done.stderr


def instructions(database: Database, driver: str) -> int | None:
    """Return the instructions of one delivery in user mode; None without valgrind."""
    if shutil.which("valgrind") is None:
        return None
    counted = []
    for deliveries in INSTRUCTIONS:
        said = started(
            database, driver, 1, deliveries, "valgrind", "--tool=callgrind", f"--callgrind-out-file={os.devnull}"
        )[1]
        found = re.search(r"Collected : ([0-9]+)", said)
        assert found is not None
        counted.append(int(found[1]))
    return (counted[1] - counted[0]) // (INSTRUCTIONS[1] - INSTRUCTIONS[0])


def measure(server: Postgres, deliveries: int, rounds: int, *, counted: bool) -> dict[str, Any]:
    """Measure every driver in turns."""
    runs: list[dict[str, Any]] = []
    with server.database() as database:
        database.build_world()
        for number in range(rounds):
            for sessions in SESSIONS:
                for driver in DRIVERS if number % 2 == 0 else reversed(DRIVERS):
                    seen = started(database, driver, sessions, deliveries)[0]
                    runs.append({"driver": driver, "sessions": sessions, "round": number} | seen)
        return {
            driver: {
                "instructions": instructions(database, driver) if counted else None,
            }
            | {
                key: {
                    str(sessions): round(
                        statistics.median(
                            run[key] for run in runs if (run["driver"], run["sessions"]) == (driver, sessions)
                        ),
                        1,
                    )
                    for sessions in SESSIONS
                }
                for key in ("cpu_us", "wall_us")
            }
            for driver in DRIVERS
        }


def show(drivers: dict[str, Any]) -> str:
    """Return the results as a table for people."""
    head = "".join(f"{f'{key} {sessions}':>13}" for key in ("cpu us", "wall us") for sessions in SESSIONS)
    lines = [f"{'driver':10}{head}{'instructions':>14}"]
    for name, one in drivers.items():
        figures = "".join(f"{one[key][str(sessions)]:13.0f}" for key in ("cpu_us", "wall_us") for sessions in SESSIONS)
        lines.append(f"{name:10}{figures}{one['instructions'] or '-':>14}")
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> int:
    """Measure, write the results, show them. Returns 69 where no PostgreSQL can run."""
    parser = argparse.ArgumentParser(prog="python -m bench.drivers", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--deliveries", type=int, default=2000, help="deliveries of one run (default 2000)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each driver (default 3)")
    parser.add_argument("--no-instructions", action="store_true", help="leave out what valgrind counts")
    parser.add_argument("--directory", default="/var/tmp", help="where the server writes; a disk (default /var/tmp)")
    parser.add_argument("--output", type=Path, default=RESULTS / "drivers.json", help="the results' file")
    asked = parser.parse_args(given)
    before, tempfile.tempdir = tempfile.tempdir, asked.directory
    try:
        with tempfile.TemporaryDirectory(prefix="bench-") as name, Postgres(settings=DURABLE) as server:
            about = result_of(Path(name), Settings(0.0, 0.0, asked.rounds, None, None, False))
            found = measure(server, asked.deliveries, asked.rounds, counted=not asked.no_instructions)
    except CannotRun as why:
        print(f"bench.drivers: {why}", file=sys.stderr)
        return 69
    finally:
        tempfile.tempdir = before
    asked.output.write_text(json.dumps(about | {"deliveries": asked.deliveries, "drivers": found}, indent=1) + "\n")
    print(show(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
