"""docs/deploying.md can be followed: every command line in it runs, in order, in one folder (issue 5)."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from provider.refs import SecretRef
from sidecar.__main__ import COMMANDS
from tests.kit.manifests import kubectl
from tests.kit.memscan import ROOT

TEXT = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
FOLDERS = ("/srv/secrets", "/var/run/secrets/qinglong3/worker-values")
KUBECTL = """#!/bin/sh
# There is no cluster here: what would be sent is rendered or read, and a command in a pod runs on this machine.
case "$*" in
  "kustomize "*) exec "{kubectl}" "$@" ;;
  "apply -k "*) exec "{kubectl}" kustomize "$3" ;;
  "apply --server-side -f -") exec "{python}" -c 'import sys, yaml; print(yaml.safe_load(sys.stdin)["kind"])' ;;
  *" exec "*" -- "*) while [ "$1" != -- ]; do shift; done; shift 2; exec secret-sidecar "$@" ;;
  *) exit 1 ;;
esac
"""
DB_URL, API_TOKEN = SecretRef.of("shop", "db-url"), SecretRef.of("shop", "api-token", 2)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, int, str]]:
    """Run every block of the page; give each block, its exit code and what it printed."""
    folder = tmp_path_factory.mktemp("deploying")
    program = folder / "bin" / "secret-sidecar"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sidecar "$@"\n')
    program.chmod(0o755)
    stand_in = folder / "bin" / "kubectl"
    stand_in.write_text(KUBECTL.format(python=sys.executable, kubectl=kubectl()))
    stand_in.chmod(0o755)
    shutil.copytree(ROOT / "k8s", folder / "work" / "k8s")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("QL")}
    environ |= {"PATH": f"{program.parent}:{environ['PATH']}", "PYTHONPATH": str(ROOT)}
    outputs = []
    for language, block in BLOCKS:
        assert language == "sh", "a block that no test would run"
        script = block
        for place in FOLDERS:
            script = script.replace(place, str(folder / "root"))
        done = subprocess.run(
            ["sh", "-eu", "-c", script],
            cwd=folder / "work",
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        outputs.append((block, done.returncode, done.stdout))
    return outputs


def test_every_command_line_runs(outputs: list[tuple[str, int, str]]) -> None:
    """Every block of the page ends with 0."""
    assert len(outputs) > 5
    for block, code, output in outputs:
        assert code == 0, f"{block}\n{output}"


def test_no_command_line_stands_outside_of_a_block() -> None:
    """A whole command line in the text would be one that no test runs."""
    prose = re.sub(r"^```.*?^```$", "", TEXT, flags=re.DOTALL | re.MULTILINE)
    inline = re.findall(r"`((?:secret-sidecar|kubectl) [^`]+)`", prose)
    assert [line for line in inline if len(line.split()) > 3] == []


def test_each_way_of_kubernetes_is_rendered_with_our_refs(outputs: list[tuple[str, int, str]]) -> None:
    """Secret, CSI and Vault Agent: what would be applied names the file of each ref; the audit has nothing to say."""
    for name in ("k8s/overlays/csi", "k8s/overlays/vault-agent"):
        (output,) = [output for block, _, output in outputs if f"apply -k {name}" in block]
        assert output.startswith("apiVersion") and output.count(DB_URL.file_name) and output.count(API_TOKEN.file_name)
    (secret,) = [output for block, _, output in outputs if "--with-values | kubectl" in block]
    assert secret.endswith("Secret\n") and DB_URL.file_name in secret
    (doctor,) = [output for block, _, output in outputs if " exec " in block]
    assert " 0 errors" in doctor


def test_what_was_published_is_there(outputs: list[tuple[str, int, str]]) -> None:
    """The page's publications are told as it says: two values, then one more, none lost."""
    told = [output for _, _, output in outputs if output.startswith("published")]
    assert [line.split(":")[0] for line in told][:3] == [
        "published 2, kept 0, dropped 0",
        "published 2, kept 0, dropped 0",
        "published 1, kept 2, dropped 0",
    ]


def test_the_page_names_real_commands() -> None:
    """Every command that the page names in a line of code exists."""
    named = set(re.findall(r"secret-sidecar ([a-z]+)", TEXT))
    assert named and named <= COMMANDS.keys()
    assert "publish" in named
