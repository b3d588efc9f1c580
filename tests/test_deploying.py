"""docs/deploying.md can be followed: every command line in it runs, in order, in one folder (issue 5)."""

import os
import re
import subprocess
import sys

import pytest

from sidecar.__main__ import COMMANDS
from tests.kit.memscan import ROOT

TEXT = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
FOLDER = "/srv/secrets"


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, int, str]]:
    """Run every block of the page; give each block, its exit code and what it printed."""
    folder = tmp_path_factory.mktemp("deploying")
    program = folder / "bin" / "secret-sidecar"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sidecar "$@"\n')
    program.chmod(0o755)
    kubectl = folder / "bin" / "kubectl"  # a stand-in that takes what it is given: there is no cluster here
    kubectl.write_text('#!/bin/sh\nif [ "$1" = apply ]; then grep -c "^kind:"; else test -s "${*##*=}"; fi\n')
    kubectl.chmod(0o755)
    (folder / "work").mkdir()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("QL")}
    environ |= {"PATH": f"{program.parent}:{environ['PATH']}", "PYTHONPATH": str(ROOT)}
    outputs = []
    for language, block in BLOCKS:
        assert language == "sh", "a block that no test would run"
        script = block.replace(FOLDER, str(folder / "root"))
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
