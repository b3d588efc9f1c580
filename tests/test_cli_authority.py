"""`secret-sidecar authority`: every action from the command line, its exit codes, and what it leaves behind."""

import asyncio
import json
import multiprocessing
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from provider import base64url
from provider.authority import verify
from provider.credential import Pepper, Peppers, authenticate, present
from provider.outcomes import Reason, Refused
from provider.refs import SecretRef
from sidecar.__main__ import main
from sidecar.cli.authority_store import moment
from sidecar.client_offer import Offer
from sidecar.stores import sqlite_schema
from sidecar.stores.faults import StoreFault, StoreFaultKind
from sidecar.stores.sqlite import SqliteStore
from sidecar.stores.sqlite_control import SqliteControl, SqliteTx
from sidecar.stores.sqlite_file import connect
from sidecar.stores.sqlite_make import create
from sidecar.stores.sqlite_schema import MIGRATIONS, VERSION
from tests.kit.folders import quick_path
from tests.kit.world import PEPPER_TEXT

PEPPER = "QL3_WORKER_CREDENTIAL_PEPPER"
KIND = "QL3_WORKER_SECRET_AUTHORITY"
FILE = "QL3_WORKER_SECRET_AUTHORITY_FILE"
REF = SecretRef.of("project", "token").text
BUNDLE = SecretRef.of("project", "bundle", 1).text

__all__ = ["quick_path"]  # a fixture, found by its name


@dataclass
class Shell:
    """A folder with a store, and commands run on it."""

    folder: Path
    capture: pytest.CaptureFixture[str]
    out: str = ""
    err: str = ""

    @property
    def store(self) -> Path:
        """The store file."""
        return self.folder / "store.db"

    def run(self, *arguments: str) -> int:
        """Run `authority ...` on the store and return its exit code."""
        return self.plain(*arguments, "--file", str(self.store))

    def plain(self, *arguments: str) -> int:
        """Run `authority ...` as written and return its exit code."""
        try:
            code = main(["authority", *arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
        self.out, self.err = self.capture.readouterr()
        return code

    def done(self, *arguments: str) -> str:
        """Run an action that succeeds in silence but for its result, and return that."""
        assert self.run(*arguments) == 0, self.err
        assert self.err == ""
        return self.out

    def dispatch(self, *more: str, name: str = "offer") -> dict[str, object]:
        """Dispatch one secret to the worker and return what the offer file holds."""
        path = self.folder / name
        secret = () if "--secret" in more else ("--secret", f"TOKEN={REF}")
        offer_file = ("--offer-file", str(path))
        self.done(
            "dispatch", "--worker", "worker", "--project", "project", "--task", "task", *secret, *offer_file, *more
        )
        return self.offer(name)

    def offer(self, name: str = "offer") -> dict[str, object]:
        """Return what an offer file holds."""
        document = json.loads((self.folder / name).read_bytes())
        assert isinstance(document, dict)
        return document

    def rows(self, statement: str) -> list[tuple[object, ...]]:
        """Look into the store as an outside program would."""
        with closing(sqlite3.connect(self.store)) as connection:
            return connection.execute(statement).fetchall()


@pytest.fixture
def shell(quick_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell without a store, in whose environment there is a pepper and nothing else of ours."""
    for name in [name for name in os.environ if name.startswith(("QL3_", "QL_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(PEPPER, PEPPER_TEXT)
    return Shell(quick_path, capsys)


@pytest.fixture
def ready(shell: Shell) -> Shell:
    """A shell with a store, an enrolled worker and its session."""
    shell.done("init")
    shell.done("enroll", "worker", "--token-file", str(shell.folder / "token"))
    shell.done("open-session", "worker")
    return shell


def private(path: Path) -> bool:
    """Whether a file is for its owner alone."""
    return stat.S_IMODE(path.stat().st_mode) == 0o600


def test_init_makes_a_store_once(shell: Shell) -> None:
    """The first `init` makes the store, the second says that it is there; `--receipts` adds the table to it."""
    assert "made a store" in shell.done("init")
    assert private(shell.store)
    before = shell.store.read_bytes()
    assert "nothing was changed" in shell.done("init")
    assert shell.store.read_bytes() == before
    assert "made the table of receipts" in shell.done("init", "--receipts")
    assert "nothing was changed" in shell.done("init", "--receipts")
    assert shell.rows("SELECT count(*) FROM receipts") == [(0,)]
    store = SqliteStore(str(shell.store), receipts=True)
    store.open()
    store.close()


def test_init_with_receipts_makes_both(shell: Shell) -> None:
    """A new store may have its table of receipts from the beginning."""
    shell.done("init", "--receipts")
    assert shell.rows("SELECT count(*) FROM receipts") == [(0,)]


def test_init_replaces_no_other_file(shell: Shell) -> None:
    """A file that is no store stays as it is, with exit code 78."""
    shell.store.write_bytes(b"mine")
    shell.store.chmod(0o600)
    assert shell.run("init") == 78
    assert shell.store.read_bytes() == b"mine"


def test_migrate_goes_forward_after_a_copy(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older store is refused by every action but `migrate`, which names the copy it has made."""
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_schema, "MIGRATIONS", MIGRATIONS[:1])
        create(str(shell.store))
    assert shell.run("show") == 78
    assert "authority migrate" in shell.err
    told = shell.done("migrate")
    (copy,) = shell.folder.glob("store.db.v1-*.backup")
    assert told == f"migrated from version 1 to {VERSION}; the store as it was: {copy}\n"
    assert private(copy)
    assert "nothing was changed" in shell.done("migrate")
    shell.done("show")


def test_enroll_writes_the_token_once(shell: Shell) -> None:
    """The token and one LF stand in a new private file, fit the stored digest, and are shown nowhere."""
    shell.done("init")
    shell.done("enroll", "worker", "--token-file", str(shell.folder / "token"))
    content = (shell.folder / "token").read_text()
    assert private(shell.folder / "token")
    assert content.startswith("ql3w_worker_")
    assert content.endswith("\n")
    token = content.removesuffix("\n")
    assert token.isprintable()
    secret = base64url.decode(token[-43:].encode())
    digest = Pepper.parse(PEPPER_TEXT).digest("worker", secret)
    assert shell.rows("SELECT credential_id, version, worker_id, secret_digest, state FROM worker_credentials") == [
        ("worker", 1, "worker", digest, "active")
    ]
    assert token[-43:] not in shell.out + shell.err
    assert shell.run("enroll", "worker", "--token-file", str(shell.folder / "token")) == 65
    assert (shell.folder / "token").read_text() == content
    assert shell.rows("SELECT count(*) FROM worker_credentials") == [(1,)]


def test_the_same_credential_again_is_its_next_version(shell: Shell) -> None:
    """`enroll` with the same id adds a version; another id is another credential; another worker's is refused."""
    shell.done("init")
    for number, more in enumerate([(), (), ("--credential-id", "second")]):
        shell.done("enroll", "worker", "--token-file", str(shell.folder / str(number)), *more)
    shell_rows = shell.rows("SELECT credential_id, version, state FROM worker_credentials ORDER BY 1, 2")
    assert shell_rows == [("second", 1, "active"), ("worker", 1, "superseded"), ("worker", 2, "active")]
    refused = ("enroll", "other", "--credential-id", "second", "--token-file", str(shell.folder / "no"))
    assert shell.run(*refused) == 65
    assert not (shell.folder / "no").exists()


def test_a_long_worker_id_gets_a_credential_id_that_fits(shell: Shell) -> None:
    """Where the worker's id is too long for a credential's, a digest keeps two of them apart."""
    shell.done("init")
    for number in range(2):
        shell.done("enroll", "w" * 127 + str(number), "--token-file", str(shell.folder / str(number)))
    ids = [str(row[0]) for row in shell.rows("SELECT credential_id FROM worker_credentials")]
    assert len(set(ids)) == 2
    assert {len(one) for one in ids} == {64}


@pytest.mark.parametrize("arguments", [("bad/worker",), ("",), ("worker", "--credential-id", "_bad")])
def test_enroll_refuses_bad_ids(shell: Shell, arguments: tuple[str, ...]) -> None:
    """An id that the contract does not allow is bad input, and nothing is written."""
    shell.done("init")
    assert shell.run("enroll", *arguments, "--token-file", str(shell.folder / "token")) == 65
    assert not (shell.folder / "token").exists()


@pytest.mark.parametrize("pepper", [None, "", "short", "A" * 43])
def test_enroll_needs_the_pepper(shell: Shell, monkeypatch: pytest.MonkeyPatch, pepper: str | None) -> None:
    """Without a good pepper nothing can be enrolled: 78, named by its variable, never by its value."""
    shell.done("init")
    monkeypatch.delenv(PEPPER)
    if pepper is not None:
        monkeypatch.setenv(PEPPER, pepper)
    assert shell.run("enroll", "worker", "--token-file", str(shell.folder / "token")) == 78
    assert PEPPER in shell.err
    assert not (shell.folder / "token").exists()
    assert shell.rows("SELECT * FROM worker_credentials") == []


def test_enroll_reads_the_peppers_file(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pepper may stand in a file, as for `serve`."""
    shell.done("init")
    monkeypatch.delenv(PEPPER)
    pepper = shell.folder / "pepper"
    pepper.write_text(PEPPER_TEXT + "\n")
    pepper.chmod(0o400)
    monkeypatch.setenv(f"{PEPPER}_FILE", str(pepper))
    shell.done("enroll", "worker", "--token-file", str(shell.folder / "token"))


def test_a_commit_that_fails_takes_its_file_back(ready: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Token and offer are written before COMMIT; when that fails they are removed, since they mean nothing."""
    monkeypatch.setattr(SqliteControl, "transaction", without_commit)
    offered = ("--worker", "worker", "--project", "project", "--task", "task", "--secret", f"A={REF}")
    new = str(ready.folder / "new")
    for arguments in (("enroll", "worker", "--token-file", new), ("dispatch", *offered, "--offer-file", new)):
        assert ready.run(*arguments) == 1
        assert "full" in ready.err
        assert not (ready.folder / "new").exists()
    assert ready.rows("SELECT count(*) FROM worker_credentials") == [(1,)]
    assert ready.rows("SELECT count(*) FROM runs") == [(0,)]


@asynccontextmanager
async def without_commit(self: SqliteControl, *, write: bool = True) -> AsyncIterator[SqliteTx]:
    """A transaction whose COMMIT finds the disk full."""
    self._connection.execute("BEGIN IMMEDIATE")
    yield SqliteTx(self._connection, self._clock)
    self._connection.execute("ROLLBACK")
    raise StoreFault(StoreFaultKind.FULL, "The file system is full.", "Make room.")


def test_an_offer_is_what_a_worker_reads(ready: Shell) -> None:
    """The offer has exactly the body's keys and four more, is private, and is read by the worker's half."""
    document = ready.dispatch("--secret", f"TOKEN={REF}", "--secret", f"AGAIN={REF}", "--lease-ttl", "1h")
    body = (
        "schema runId attemptId offerId projectId taskId taskRevision executionDigest workerGeneration leaseGeneration"
    )
    keys = [*body.split(), "expectedLeaseVersion", "leaseToken", "secretRefs"]
    assert list(document) == [*keys, "workerId", "sessionId", "leaseExpiresAtMs", "environment"]
    assert document["schema"] == "qinglong/remote-secret-delivery@v1"
    assert document["secretRefs"] == [REF]
    assert document["environment"] == [{"name": "TOKEN", "secretRef": REF}, {"name": "AGAIN", "secretRef": REF}]
    assert private(ready.folder / "offer")
    offer = Offer.read(str(ready.folder / "offer"))
    assert offer.worker_id == "worker"
    assert str(document["leaseToken"]) not in ready.out
    second = ready.dispatch("--bundle", BUNDLE, name="second")
    assert list(second) == [*keys, "environmentBundleRefs", *list(document)[len(keys) :]]
    assert second["schema"] == "qinglong/remote-secret-delivery@v2"


async def test_the_life_of_an_offer(ready: Shell) -> None:
    """Dispatched it is granted, renewed too, started and cancelled no more: from the files alone."""
    store = SqliteStore(str(ready.store))
    store.open()
    try:
        token = (ready.folder / "token").read_text().removesuffix("\n")
        row, now_ms = await store.newest("worker")
        peppers = Peppers(Pepper.parse(PEPPER_TEXT), None)
        principal = authenticate(present(f"Worker {token}".encode()), "worker", row, now_ms, peppers)

        async def ask() -> Reason | None:
            offer = Offer.read(str(ready.folder / "offer"))
            deadline = asyncio.get_running_loop().time() + 15
            async with store.hold(principal, offer.command, deadline, slow_material=False) as hold:
                try:
                    verify(principal, offer.session_id, offer.command, hold)
                except Refused as refused:
                    return refused.reason
            return None

        def act(*arguments: str) -> None:
            # In a thread of its own, as the command has a loop of its own.
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(ready.run, *arguments).result() == 0

        offer_file = ("--offer-file", str(ready.folder / "offer"))
        act(
            "dispatch",
            "--worker",
            "worker",
            "--project",
            "project",
            "--task",
            "task",
            "--secret",
            f"A={REF}",
            *offer_file,
        )
        assert await ask() is None
        before = ready.offer()
        act("renew", *offer_file, "--lease-ttl", "1h")
        after = ready.offer()
        assert private(ready.folder / "offer")
        assert {key for key in after if after[key] != before[key]} == {"expectedLeaseVersion", "leaseExpiresAtMs"}
        assert after["expectedLeaseVersion"] == 2
        assert await ask() is None
        act("start", *offer_file)
        assert await ask() is Reason.AUTHORITY_MISMATCH
        act("cancel", str(after["runId"]))
        act("release", str(after["attemptId"]))
        assert ready.rows("SELECT status FROM runs") == [("cancelled",)]
    finally:
        store.close()


def test_an_old_offer_can_be_renewed(ready: Shell) -> None:
    """An offer file that a failed `renew` left behind is good for another one: the lease token counts."""
    ready.dispatch()
    old = (ready.folder / "offer").read_bytes()
    ready.done("renew", "--offer-file", str(ready.folder / "offer"))
    (ready.folder / "offer").write_bytes(old)
    ready.done("renew", "--offer-file", str(ready.folder / "offer"))
    assert ready.offer()["expectedLeaseVersion"] == 3


def test_states_refuse_with_one(ready: Shell) -> None:
    """What cannot be done as things stand ends with 1, says why and how to go on."""
    document = ready.dispatch()
    offer_file = ("--offer-file", str(ready.folder / "offer"))
    ready.done("start", *offer_file)
    assert ready.run("start", *offer_file) == 1
    assert "running already" in ready.err
    ready.done("cancel", str(document["runId"]))
    assert "nothing was changed" in ready.done("cancel", str(document["runId"]))
    ready.done("release", str(document["attemptId"]))
    assert "nothing was changed" in ready.done("release", str(document["attemptId"]))
    assert ready.run("renew", *offer_file) == 1
    ready.done("drain", "worker")
    assert "nothing was changed" in ready.done("drain", "worker")
    more = ("--project", "project", "--task", "task", "--secret", f"A={REF}", "--offer-file", str(ready.folder / "no"))
    assert ready.run("dispatch", "--worker", "worker", *more) == 1
    assert "open-session" in ready.err
    ready.done("revoke-credential", "worker")
    assert "nothing was changed" in ready.done("revoke-credential", "worker")
    assert ready.run("open-session", "worker") == 65
    assert not (ready.folder / "no").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("open-session", "nobody"), ("drain", "nobody"), ("revoke-credential", "nothing"), ("cancel", "nothing"),
        ("release", "nothing"), ("show", "nothing"), ("open-session", "worker", "--ttl", "9999d"),
    ],
)  # fmt: skip
def test_what_is_unknown_is_bad_input(ready: Shell, arguments: tuple[str, ...]) -> None:
    """An id that the store does not have, or a time beyond its bound, ends with 65."""
    assert ready.run(*arguments) == 65
    assert ready.out == ""
    assert ready.err.count("\n") == 1


def test_bad_refs_are_listed_at_once(ready: Shell) -> None:
    """A dispatch with several faults names each on a line, shows no value, and writes nothing."""
    arguments = ["dispatch", "--worker", "worker", "--project", "project", "--task", "task"]
    for item in (f"A={REF}", f"A={REF}", "B=hunter2", "hunter2", f"C={SecretRef.of('other', 'x').text}"):
        arguments += ["--secret", item]
    assert ready.run(*arguments, "--offer-file", str(ready.folder / "offer")) == 65
    assert len(ready.err.splitlines()) == 5
    assert "hunter2" not in ready.err
    assert not (ready.folder / "offer").exists()
    assert ready.rows("SELECT count(*) FROM task_execution_revisions") == [(0,)]


def test_an_offer_is_never_overwritten_by_dispatch(ready: Shell) -> None:
    """The offer file is new; where one stands nothing is dispatched."""
    ready.dispatch()
    before = (ready.folder / "offer").read_bytes()
    arguments = ("--worker", "worker", "--project", "project", "--task", "task", "--secret", f"A={REF}")
    assert ready.run("dispatch", *arguments, "--offer-file", str(ready.folder / "offer")) == 65
    assert (ready.folder / "offer").read_bytes() == before
    assert ready.rows("SELECT count(*) FROM runs") == [(1,)]


@pytest.mark.parametrize(
    ("content", "mode", "code"), [(None, 0, 66), (b"{}", 0o600, 65), (b"\xff", 0o600, 65), (b"{}", 0o644, 66)]
)
def test_what_is_no_offer_is_refused(ready: Shell, content: bytes | None, mode: int, code: int) -> None:
    """`renew` and `start` take only the private file of an offer."""
    path = ready.folder / "offer"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    for action in ("renew", "start"):
        assert ready.run(action, "--offer-file", str(path)) == code


def test_show_is_for_persons_and_machines(ready: Shell) -> None:
    """Lines are aligned and without a header in a pipe; `--json` is one document; neither holds a digest or token."""
    document = ready.dispatch()
    ready.done("cancel", str(document["runId"]))
    lines = ready.done("show").splitlines()
    assert [line.split()[0] for line in lines] == ["credential", "session", "run", "attempt"]
    assert len({line.index(" 2") if " 2" in line else -1 for line in lines[:2]}) == 1
    assert "cancel asked" in lines[2]
    shown = json.loads(ready.done("show", "--json"))
    assert [worker["workerId"] for worker in shown["workers"]] == ["worker"]
    assert shown["runs"][0]["attempts"][0]["lease"]["status"] == "leased"
    for row in ready.rows(
        "SELECT secret_digest FROM worker_credentials UNION SELECT lease_token_digest FROM run_attempts"
    ):
        assert str(row[0]) not in json.dumps(shown)
    assert str(document["leaseToken"]) not in json.dumps(shown)
    assert ready.done("show", str(document["attemptId"])).splitlines()[0].startswith("run")


def test_show_of_an_empty_store_is_quiet(shell: Shell) -> None:
    """Where there is nothing to show nothing is printed."""
    shell.done("init")
    assert shell.done("show") == ""
    assert json.loads(shell.done("show", "--json"))["runs"] == []


def test_show_bears_odd_rows(ready: Shell) -> None:
    """An attempt without a lease, and times that are none, are shown as they are."""
    document = ready.dispatch()
    with closing(sqlite3.connect(ready.store)) as connection, connection:
        connection.execute("DELETE FROM run_dispatch_leases")
        connection.execute("UPDATE worker_sessions SET lease_expires_at_ms = 'soon'")
    assert "soon" in ready.done("show")
    assert "lease none" in ready.done("show", str(document["runId"]))
    assert [moment(at_ms) for at_ms in (None, 0, 10**30)] == ["-", "1970-01-01T00:00:00Z", "1" + "0" * 30]


def test_results_are_there_for_machines(ready: Shell) -> None:
    """What enroll, open-session, dispatch and renew made can be had as JSON."""
    enrolled = json.loads(ready.done("enroll", "other", "--token-file", str(ready.folder / "other"), "--json"))
    assert enrolled["credentialId"] == "other"
    session = json.loads(ready.done("open-session", "other", "--json"))
    assert session["generation"] == 1
    arguments = (
        "--project",
        "project",
        "--task",
        "task",
        "--secret",
        f"A={REF}",
        "--offer-file",
        str(ready.folder / "o"),
    )
    made = json.loads(ready.done("dispatch", "--worker", "other", *arguments, "--json"))
    assert made["runId"] == ready.offer("o")["runId"]
    renewed = json.loads(ready.done("renew", "--offer-file", str(ready.folder / "o"), "--json"))
    assert renewed["leaseVersion"] == 2


def test_prune_says_what_it_did(ready: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old audit rows go; a person at a terminal sees progress, a pipe only the result."""
    with closing(sqlite3.connect(ready.store)) as connection, connection:
        rows = [(1,)] * 1500 + [(9_000_000_000_000,)]
        connection.executemany("INSERT INTO security_audit_events (occurred_at_ms) VALUES (?)", rows)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert ready.run("audit", "prune", "--older-than", "90d") == 0
    assert ready.out.startswith("deleted 1500 audit rows")
    assert ready.err.count("\r") == 3
    assert "#" * 40 in ready.err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    assert ready.done("audit", "prune", "--older-than", "90d").startswith("deleted 0 audit rows")


def test_the_environment_names_the_store(ready: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --file the variables of `serve` count; where they name none the action ends with 78."""
    assert ready.plain("show") == 78
    assert KIND in ready.err
    monkeypatch.setenv(KIND, "sqlite")
    assert ready.plain("show") == 78
    assert FILE in ready.err
    monkeypatch.setenv(FILE, str(ready.store))
    assert ready.plain("show") == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("show",), ("migrate",), ("drain", "w"), ("open-session", "w"), ("cancel", "r"), ("release", "a"),
        ("revoke-credential", "c"), ("audit", "prune", "--older-than", "1d"), ("enroll", "w", "--token-file", "TOKEN"),
    ],
)  # fmt: skip
def test_a_missing_store_is_a_fault_of_configuration(shell: Shell, arguments: tuple[str, ...]) -> None:
    """No action but `init` makes a store: 78, with the mend, and nothing is created."""
    assert shell.run(*(str(shell.folder / one) if one == "TOKEN" else one for one in arguments)) == 78
    assert "authority init" in shell.err
    assert list(shell.folder.iterdir()) == []


def test_a_store_that_is_locked_fails_at_run_time(ready: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program's long write ends an action with 1; it may be tried again."""
    monkeypatch.setattr(connect, "__defaults__", (0.01,))
    with closing(sqlite3.connect(ready.store, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert ready.run("drain", "worker") == 1
    assert "locked" in ready.err
    ready.done("drain", "worker")


@pytest.mark.parametrize(
    "arguments",
    [(), ("unheard-of",), ("enroll",), ("audit",), ("dispatch",), ("enroll", "w", "--token-file", "f", "--ttl", "0d")],
)
def test_wrong_usage_is_64(shell: Shell, arguments: tuple[str, ...]) -> None:
    """A command line that means nothing ends with 64, never with argparse's 2."""
    assert shell.plain(*arguments) == 64


@pytest.mark.parametrize(
    "action",
    [
        ("init",), ("migrate",), ("enroll",), ("open-session",), ("drain",), ("dispatch",), ("renew",), ("start",),
        ("cancel",), ("release",), ("revoke-credential",), ("show",), ("audit",), ("audit", "prune"), (),
    ],
)  # fmt: skip
def test_every_action_has_help_with_an_example(shell: Shell, action: tuple[str, ...]) -> None:
    """`--help` shows how the action is used, in one line that begins with the program's name."""
    assert shell.plain(*action, "--help") == 0
    assert "example" in shell.out
    assert f"  secret-sidecar authority {' '.join(action)}" in shell.out


def _command(arguments: tuple[str, ...]) -> int:
    return main(["authority", *arguments])


def test_many_commands_at_once(ready: Shell) -> None:
    """Commands of several processes wait for one another: each is done whole, and one plan is one revision."""
    jobs = [
        ("dispatch", "--worker", "worker", "--project", "project", "--task", "task", "--secret", f"A={REF}",
         "--offer-file", str(ready.folder / f"offer-{number}"), "--file", str(ready.store))
        for number in range(12)
    ]  # fmt: skip
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert pool.map(_command, jobs, chunksize=1) == [0] * 12
    assert ready.rows("SELECT source_revision FROM task_execution_revisions") == [(1,)]
    assert ready.rows("SELECT count(*) FROM runs") == [(12,)]
    assert len({str(ready.offer(f"offer-{number}")["attemptId"]) for number in range(12)}) == 12


def test_it_is_a_command(shell: Shell) -> None:
    """`python -m sidecar authority` does the same, and prints no stack for a fault."""
    done = subprocess.run(
        [sys.executable, "-m", "sidecar", "authority", "show", "--file", str(shell.store)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 78
    assert done.stderr.startswith("secret-sidecar authority: The authority store is missing.")
    assert "Traceback" not in done.stderr
