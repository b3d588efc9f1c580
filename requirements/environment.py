"""Build the checkout's virtual environment, or do nothing when it is current.

Usage: python requirements/environment.py DIRECTORY runtime|dev|tools

Installs by plain pip from the lock files beside this script, by version and hash. The environment is made anew when
the interpreter, `pyproject.toml`, a lock file of its level or the place of the checkout has changed. A lock file keeps
two runs from building at once. Only the standard library is used.
"""

import fcntl
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final, NoReturn

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent
# Level -> its lock files in the order of installing. dev.txt holds all of runtime.txt, at the same versions.
LEVELS: Final = {"runtime": ("build.txt", "runtime.txt"), "dev": ("build.txt", "dev.txt"), "tools": ("tools.txt",)}
# A person's pip settings that would put the packages elsewhere than into the environment.
MISLEADING: Final = ("PIP_PREFIX", "PIP_REQUIRE_VIRTUALENV", "PIP_ROOT", "PIP_TARGET", "PIP_USER")
# The interpreter beneath any environment that is active here: this script may be about to replace that environment.
BASE_PYTHON: Final = os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def main(arguments: list[str]) -> int:
    """Bring the environment DIRECTORY to the named level. Returns the process's exit code."""
    if len(arguments) != 2 or arguments[1] not in LEVELS:
        fail(f"usage: environment.py DIRECTORY {'|'.join(LEVELS)}")
    directory, level = Path(arguments[0]).absolute(), arguments[1]
    stamp = directory / "stamp.json"
    wanted = {name: fingerprint(directory, files) for name, files in LEVELS.items()}
    if read(stamp).get(level) == wanted[level]:
        return 0
    if missing := [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]:
        fail(f"{BASE_PYTHON} has no {' and no '.join(missing)}; install python3-venv (Debian) or name another PYTHON=")
    try:
        with open(f"{directory}.lock", "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            build(directory, level, stamp, wanted)
    except PermissionError as error:
        fail(f"{error.filename} is not writable for this user; work in a checkout of your own or correct its owner")
    return 0


def build(directory: Path, level: str, stamp: Path, wanted: dict[str, str]) -> None:
    """Install what `level` lacks; begin from nothing when any level that is installed has gone stale."""
    installed = read(stamp)
    if installed.get(level) == wanted[level]:
        return  # another run built it while this one waited for the lock
    stale = any(wanted.get(name) != mark for name, mark in installed.items())
    # Until the last step has succeeded nothing is claimed, so that a run cut short is repeated from nothing.
    stamp.unlink(missing_ok=True)
    if stale or not installed:
        installed = {}
        say(f"creating {directory.name} with Python {sys.version.split()[0]}")
        run([BASE_PYTHON, "-I", "-m", "venv", "--clear", str(directory)])
    say(f"installing the {level} lock")
    install = [str(directory / "bin/python"), "-I", "-m", "pip", "install", "--quiet", "--no-input"]
    for name in LEVELS[level]:
        run([*install, "--require-hashes", "--only-binary=:all:", "-r", str(HERE / name)])
    if level != "tools" and not installed:
        # Editable: what is tested is the checkout itself. Without isolation: setuptools is the locked one.
        run([*install, "--no-deps", "--no-index", "--no-build-isolation", "--editable", str(ROOT)])
    part = stamp.with_suffix(".part")
    done = ("runtime", "dev") if level == "dev" else (level,)
    part.write_text(json.dumps({**installed, **{name: wanted[name] for name in done}}), encoding="ascii")
    part.replace(stamp)


def fingerprint(directory: Path, files: tuple[str, ...]) -> str:
    """Everything on which an environment depends, as one digest: a change in any of it makes another environment."""
    digest = hashlib.sha256(json.dumps([BASE_PYTHON, sys.version, str(directory)]).encode())
    for path in (ROOT / "pyproject.toml", Path(__file__), *(HERE / name for name in files)):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def read(stamp: Path) -> dict[str, str]:
    """The levels installed and their fingerprints; empty when there is no whole environment."""
    try:
        found = json.loads(stamp.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def run(command: list[str]) -> None:
    """Run one step silently; when it fails, show all that it printed and end."""
    settings = {name: value for name, value in os.environ.items() if name not in MISLEADING}
    settings |= {"PIP_ROOT_USER_ACTION": "ignore", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(command, env=settings, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.stderr.write(done.stdout + done.stderr)
        fail(f"the step above failed: {' '.join(command[1:5])} ...")


def say(line: str) -> None:
    """One line for each step that takes seconds."""
    print(f"venv: {line}", flush=True)


def fail(message: str) -> NoReturn:
    """End with one line that says what is wrong and how to mend it."""
    sys.stderr.write(f"venv: {message}\n")
    raise SystemExit(1)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
