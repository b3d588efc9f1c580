"""`secret-sidecar authority` on PostgreSQL: every action as an operator runs it, its exit codes, and who may log in."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from provider.refs import SecretRef
from sidecar.stores import postgres_control
from tests.kit.postgres import OWNER_PASSWORD, ROLE_PASSWORD, Database, Postgres
from tests.kit.postgres_shell import Shell, shell_on

REF = SecretRef.of("project", "token").text


@pytest.fixture
def shell(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    """A shell on a database with the tables and the role's rights."""
    return shell_on(database, tmp_path, capsys, monkeypatch)


@pytest.fixture
def ready(shell: Shell) -> Shell:
    """A shell on a database with an enrolled worker and its session."""
    shell.done("enroll", "worker", "--token-file", str(shell.folder / "token"))
    shell.done("open-session", "worker")
    return shell


def dispatch(shell: Shell) -> dict[str, str]:
    """Dispatch one secret to the worker and return what the offer file holds."""
    identity = ("--worker", "worker", "--project", "project", "--task", "task", "--secret", f"TOKEN={REF}")
    shell.done("dispatch", *identity, "--offer-file", str(shell.folder / "offer"))
    document = json.loads((shell.folder / "offer").read_bytes())
    assert isinstance(document, dict)
    return document


def states(shell: Shell, run: str) -> tuple[str, str, str]:
    """Return the states of a run, its attempt and its lease, read as `serve`'s own login."""
    document = json.loads(shell.done("show", run, "--json", admin=False))
    (attempt,) = document["runs"][0]["attempts"]
    return document["runs"][0]["status"], attempt["status"], attempt["lease"]["status"]


def test_the_life_of_a_run(ready: Shell) -> None:
    """Enroll, open a session, dispatch, renew, start, cancel, release: each does what it does on SQLite."""
    assert stat.S_IMODE((ready.folder / "token").stat().st_mode) == 0o600
    offer = dispatch(ready)
    assert states(ready, offer["runId"]) == ("dispatching", "starting", "leased")
    ready.done("renew", "--offer-file", str(ready.folder / "offer"), "--lease-ttl", "1h")
    assert json.loads((ready.folder / "offer").read_bytes())["expectedLeaseVersion"] == 2
    ready.done("start", "--offer-file", str(ready.folder / "offer"))
    assert states(ready, offer["runId"]) == ("running", "running", "leased")
    assert ready.done("cancel", offer["runId"]) == "cancelled\n"
    assert "nothing was changed" in ready.done("cancel", offer["runId"])
    ready.done("release", offer["attemptId"])
    assert states(ready, offer["runId"]) == ("cancelled", "cancelled", "released")
    assert ready.done("drain", "worker") == "draining\n"
    assert ready.done("revoke-credential", "worker") == "revoked\n"
    plan = ready.database.execute("SELECT plan_json->'environment'->0->>'secretRef' FROM task_execution_revisions")
    assert plan == [(REF,)]


def test_what_cannot_be_is_refused_as_on_sqlite(ready: Shell) -> None:
    """An unknown id is bad input, a state in the way is a failure, and nothing is written."""
    assert ready.run("cancel", "no-such-run") == 65
    assert ready.run("open-session", "nobody") == 65
    ready.done("drain", "worker")
    identity = ("--worker", "worker", "--project", "project", "--task", "task", "--secret", f"TOKEN={REF}")
    assert ready.run("dispatch", *identity, "--offer-file", str(ready.folder / "offer")) == 1
    assert not (ready.folder / "offer").exists()
    assert ready.database.execute("SELECT count(*) FROM runs") == [(0,)]


def test_prune_deletes_old_audit_rows(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows older than asked go, in batches; younger ones stay."""
    monkeypatch.setattr(postgres_control, "BATCH_ROWS", 4)
    shell.database.psql(
        "INSERT INTO ql3.security_audit_events SELECT gen_random_uuid(), 'r', 'worker.secrets',"
        " 'authentication_rejected', NULL, NULL, NULL, '[]',"
        " extract(epoch FROM now()) * 1000 - n * 86400000::bigint FROM generate_series(0, 20) AS n"
    )
    assert "deleted 11 audit rows" in shell.done("audit", "prune", "--older-than", "237h")
    assert shell.database.execute("SELECT count(*) FROM security_audit_events") == [(10,)]
    assert "deleted 0 audit rows" in shell.done("audit", "prune", "--older-than", "237h")


def test_reading_needs_no_admin_url(ready: Shell) -> None:
    """`show` logs in as `serve` does; whatever writes refuses without the admin URL, and says what to give."""
    assert "worker" in ready.done("show", admin=False)
    assert "worker" in ready.done("show")
    for action in (("drain", "worker"), ("init",), ("migrate",), ("audit", "prune", "--older-than", "1d")):
        assert ready.run(*action, admin=False) == 78
        assert "--admin-url-file" in ready.err


def test_the_role_cannot_be_the_admin(ready: Shell) -> None:
    """With the role's own URL as the admin's nothing can be written: it has no right to."""
    (ready.folder / "admin.url").write_text(ready.database.role_url)
    for action in (("drain", "worker"), ("init",), ("revoke-credential", "worker")):
        assert ready.run(*action) == 78
        assert "rights" in ready.err


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o660])
def test_an_admin_url_that_others_reach_is_refused(shell: Shell, mode: int) -> None:
    """The file is for its owner alone, since the URL in it bears a password."""
    (shell.folder / "admin.url").chmod(mode)
    assert shell.run("drain", "worker") == 78
    assert "0600" in shell.err


@pytest.mark.parametrize(
    "content", ["", "postgresql://", "owner:{}@host/db", "postgresql://u:{}@127.0.0.1/db?sslmode=disable"]
)
def test_an_admin_url_that_is_none_is_refused(shell: Shell, content: str) -> None:
    """What is no URL as contracted is named by its option, and nothing of it is shown."""
    (shell.folder / "admin.url").write_text(content.format(OWNER_PASSWORD))
    assert shell.run("drain", "worker") == 78
    assert "--admin-url-file" in shell.err
    assert OWNER_PASSWORD not in shell.err


def test_an_admin_url_that_is_missing_is_refused(shell: Shell) -> None:
    """A file that is not there is a fault of configuration, as is one that holds no text."""
    (shell.folder / "admin.url").write_bytes(b"\xff")
    assert shell.run("drain", "worker") == 78
    (shell.folder / "admin.url").unlink()
    assert shell.run("drain", "worker") == 78
    assert "--admin-url-file" in shell.err


def test_an_admin_url_is_for_postgres_alone(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside --file it is a wrong use; with another store in the environment, or none, a fault."""
    assert shell.run("drain", "worker", "--file", str(shell.folder / "store.db")) == 64
    for name in list(shell.database.environment()):
        monkeypatch.delenv(name)
    assert shell.run("drain", "worker") == 78
    assert "QL3_WORKER_SECRET_AUTHORITY" in shell.err
    monkeypatch.setenv("QL3_WORKER_SECRET_AUTHORITY", "sqlite")
    monkeypatch.setenv("QL3_WORKER_SECRET_AUTHORITY_FILE", str(shell.folder / "store.db"))
    assert shell.run("drain", "worker") == 78


def test_a_wrong_password_and_a_lost_server_are_told_apart(shell: Shell, database: Database) -> None:
    """A refused login is a fault of configuration; a server that is not there may be there the next time."""
    url = shell.folder / "admin.url"
    url.write_text(database.admin_url.replace(OWNER_PASSWORD, "wrong"))
    assert shell.run("drain", "worker") == 78
    url.write_text(database.admin_url + "-no-such")
    assert shell.run("drain", "worker") == 78
    url.write_text(database.admin_url.replace(f":{database.server.port}/", ":1/"))
    assert shell.run("drain", "worker") == 1
    assert "reached" in shell.err


def test_a_change_waits_for_the_attempts_lock(ready: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends an attempt waits for the request that holds its lock; other commands go on meanwhile."""
    offer = dispatch(ready)
    monkeypatch.setattr(postgres_control, "_WRITE", postgres_control._WRITE.replace("'5s'", "'300ms'"))
    key = f"hashtextextended('ql3-attempt-authority:{offer['attemptId']}', 0)"

    async def while_held(connection: object) -> list[int]:
        async with connection.transaction():  # type: ignore[attr-defined]  # asyncpg bears no types
            await connection.execute(f"SELECT pg_advisory_xact_lock({key})")  # type: ignore[attr-defined]
            blocked: list[tuple[str, ...]] = [("cancel", offer["runId"]), ("release", offer["attemptId"])]
            blocked += [(name, "--offer-file", str(ready.folder / "offer")) for name in ("renew", "start")]
            return [run_apart(ready, *action) for action in (*blocked, ("drain", "worker"))]

    assert ready.database.run(while_held) == [1, 1, 1, 1, 0]
    assert states(ready, offer["runId"]) == ("dispatching", "starting", "leased")
    assert ready.done("cancel", offer["runId"]) == "cancelled\n"


def run_apart(shell: Shell, *arguments: str) -> int:
    """Run an action from inside a running loop, in a thread of its own."""
    codes: list[int] = []
    from threading import Thread

    thread = Thread(target=lambda: codes.append(shell.run(*arguments)))
    thread.start()
    thread.join()
    return codes[0]


def test_the_login_is_shown_nowhere(ready: Shell) -> None:
    """No output of any action holds a password of either login."""
    said = ""
    for action in (("show",), ("init",), ("drain", "nobody"), ("drain", "worker"), ("migrate",)):
        ready.run(*action)
        said += ready.out + ready.err
    assert OWNER_PASSWORD not in said
    assert ROLE_PASSWORD not in said


def test_no_driver_is_loaded_for_a_file(tmp_path: Path) -> None:
    """Whoever keeps a SQLite store never imports the PostgreSQL driver."""
    script = (
        "import sys; from sidecar.__main__ import main; code = main(sys.argv[1:]);"
        " sys.exit(code or any(name.partition('.')[0] == 'asyncpg' for name in sys.modules))"
    )
    for action in (("init",), ("show",), ("init", "--print-role")):
        command = [sys.executable, "-c", script, "authority", *action, "--file", str(tmp_path / "store.db")]
        subprocess.run(command, check=True, capture_output=True, timeout=60)


def test_a_paused_server_does_not_hang_a_command(
    server: Postgres, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that accepts and says nothing ends a command once the connection timeout is over."""
    monkeypatch.setenv("QL3_WORKER_INGRESS_POSTGRES_CONNECTION_TIMEOUT_MS", "300")
    server.pause()
    try:
        assert shell.run("drain", "worker") == 1
    finally:
        server.resume()
    assert shell.run("drain", "worker") == 65
