"""Standard streams as a shell may leave them: closed, full, broken, or of another encoding (contract 9)."""

import json
import os
import shlex
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from tests.kit.memscan import ROOT
from tests.kit.stand import make_stand
from tests.kit.waiting import wait_for

SIDECAR = f"{shlex.quote(sys.executable)} -m sidecar"
REF = "qlsecret:v1:eyJwcm9qZWN0SWQiOiLlkI0iLCJuYW1lIjoi5ZCN5YmN8J-UkSJ9"  # 名, 名前🔑


def shell(line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a line of shell in which `secret-sidecar` is the program."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("QL", "PYTHON", "LC_"))}
    return subprocess.run(
        ["bash", "-c", line.replace("secret-sidecar", SIDECAR)],
        cwd=ROOT, env=environment | variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip


@cache
def usual_code(call: str) -> int:
    """The exit code of a call whose streams are all open."""
    return shell(f"secret-sidecar {call}").returncode


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("call", ["ref decode " + REF, "ref encode --project p --name n --json", "audit k8s -"])
def test_a_closed_stream_is_no_failure(call: str, closed: str) -> None:
    """What nobody listens to is not written; nothing else changes, and there is no stack."""
    done = shell(f"secret-sidecar {call} {closed}")
    assert (done.returncode, "Traceback" in done.stderr) == (usual_code(call), False)


def test_no_file_ever_becomes_a_standard_stream() -> None:
    """With all three closed, the first file that is opened gets a number beyond them."""
    program = (
        "from sidecar.cli.streams import secure; import os, sys; secure(); got = os.open('/etc/hostname', 0)\n"
        "sys.exit(got if all(os.path.samefile(f'/proc/self/fd/{n}', '/dev/null') for n in range(3)) else 99)"
    )
    assert shell(f"{shlex.quote(sys.executable)} -c {shlex.quote(program)} <&- >&- 2>&-").returncode in range(3, 20)


@pytest.mark.root  # who else may not look at the descriptors of a hardened process
def test_a_server_without_an_output_writes_into_nothing_else(tmp_path: Path) -> None:
    """`serve` with a closed output serves, and its events go to no socket and no file of its own."""
    with make_stand(tmp_path) as stand:
        line = f"exec {SIDECAR} serve >&- <&-"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("QL")}
        process = subprocess.Popen(["bash", "-c", line], cwd=ROOT, env=environment | stand.environment)
        try:
            # A loop's own pair of sockets, and the three listeners.
            wait_for(lambda: sum(path.startswith("socket:") for path in _open_files(process.pid)) >= 5)
            assert [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in (0, 1)] == ["/dev/null", "/dev/null"]
        finally:
            process.terminate()
            assert process.wait(timeout=30) == 0


def _open_files(pid: int) -> list[str]:
    """What the descriptors of a process lead to; one that is closed meanwhile is left out."""
    found = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return found


@pytest.mark.parametrize(
    ("call", "unbuffered"),
    [("ref encode --project p --name n", ""), ("ref decode --json " + REF, "1"), ("--help", ""), ("ref --help", "")],
)
def test_a_full_output_is_told(call: str, unbuffered: str) -> None:
    """What could not be written is told in one line and ends with 1, whenever Python notices."""
    done = shell(f"secret-sidecar {call} > /dev/full", PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 1
    mend = "Look at where the output goes, and at this user's rights."
    assert done.stderr == f"secret-sidecar: The system refused (No space left on device). {mend}\n"


def test_a_reader_that_goes_is_not_told() -> None:
    """When the reader of our output has gone there is nobody to tell: 1, and silence."""
    done = shell("secret-sidecar --help | true; echo ${PIPESTATUS[0]}")
    assert done.stderr == ""
    done = shell("(sleep 0.2; exec secret-sidecar ref decode " + REF + ") | true; echo ${PIPESTATUS[0]}")
    assert (done.stdout, done.stderr) == ("1\n", "")


@pytest.mark.parametrize(("call", "code"), [("bogus", 64), ("ref decode x", 65), ("check", 78)])
def test_a_full_error_stream_does_not_change_the_code(call: str, code: int) -> None:
    """The exit code is the finding's, also when its words cannot be written."""
    line = f"QL_DEPLOYMENT_PROFILE=x secret-sidecar {call} 2> /dev/full > /dev/null"
    assert shell(line).returncode == code


def test_text_that_an_encoding_lacks_is_escaped() -> None:
    """A name that the terminal cannot show is shown escaped, and JSON stays JSON."""
    done = shell(f"secret-sidecar ref decode {REF}", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u540d\\u524d\\U0001f511" in done.stdout
    done = shell(f"secret-sidecar ref decode --json {REF}", PYTHONIOENCODING="latin-1")
    assert json.loads(done.stdout)["name"] == "名前🔑"


@pytest.mark.parametrize("call", ["fetch --credential {}", "ref decode a {}", "serve {}", "authority show --json={} x"])
def test_an_argument_that_is_not_known_is_not_repeated(call: str) -> None:
    """A credential that was given where none belongs is not told to whoever reads the log."""
    token = "ql3w_worker-1_AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI"
    done = shell(f"secret-sidecar {call.format(token)}")
    assert done.returncode == 64
    assert token not in done.stdout + done.stderr


@pytest.mark.parametrize("call", ["show {}", "cancel {}", "release {}", "revoke-credential {}", "drain {}",
                                  "dispatch --worker {} --project p --task t --secret A=x --offer-file o",
                                  "enroll {} --token-file t"])  # fmt: skip
def test_an_argument_that_is_no_text_is_bad_input(call: str, tmp_path: Path) -> None:
    """Bytes that are no UTF-8 name nothing in a store: 65, in a line, without a stack."""
    store = tmp_path / "store.sqlite3"
    assert shell(f"secret-sidecar authority init --file {store}").returncode == 0
    bad = call.format("$'x\\xff'")
    pepper = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
    done = shell(f"secret-sidecar authority {bad} --file {store}", QL3_WORKER_CREDENTIAL_PEPPER=pepper)
    assert done.returncode == 65
    assert done.stderr.startswith("secret-sidecar authority: ")
    assert "Traceback" not in done.stderr
