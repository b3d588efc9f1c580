"""The environment of the checkout is built once, added to, built anew when stale, and never half built in silence."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "requirements" / "environment.py"


class World:
    """A project with lock files in a folder of its own, and the commands that the script would have run there."""

    def __init__(self, module: ModuleType, root: Path) -> None:
        self.module = module
        self.root = root
        self.directory = root / "env"
        self.commands: list[list[str]] = []
        self.fails = ""

    def run(self, command: list[str]) -> None:
        self.commands.append(command)
        if self.fails and self.fails in " ".join(command):
            self.module.fail("a step failed")
        self.directory.mkdir(exist_ok=True)

    def steps(self, level: str) -> list[str]:
        """Bring the environment to `level`; what was run for it, each command by its last argument's name."""
        self.commands.clear()
        assert self.module.main([str(self.directory), level]) == 0
        return [Path(command[-1]).name for command in self.commands]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A valid world: all lock files there, nothing installed."""
    specification = importlib.util.spec_from_file_location("environment_under_test", SCRIPT)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    for name in ("pyproject.toml", "build.txt", "runtime.txt", "dev.txt", "tools.txt"):
        (tmp_path / name).write_text(name, encoding="ascii")
    result = World(module, tmp_path)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module, "run", result.run)
    return result


def test_a_current_environment_costs_nothing(world: World) -> None:
    """The first run creates and installs by hash and then the project; the second runs no command at all."""
    project = world.root.name
    assert world.steps("runtime") == ["env", "build.txt", "runtime.txt", project]
    installs = [command for command in world.commands if "-r" in command]
    assert [command for command in installs if "--require-hashes" not in command] == []
    assert world.steps("runtime") == []


def test_development_is_added_to_the_runtime(world: World) -> None:
    """What tests need is added to an environment that has what runs; after that both are current."""
    world.steps("runtime")
    assert world.steps("dev") == ["build.txt", "dev.txt"]
    assert world.steps("runtime") == []
    assert world.steps("dev") == []


def test_tools_are_installed_without_the_project(world: World) -> None:
    """The environment of `make lock` holds the tools and not this project."""
    assert world.steps("tools") == ["env", "tools.txt"]


@pytest.mark.parametrize("changed", ["pyproject.toml", "build.txt", "runtime.txt"])
def test_a_stale_environment_is_made_anew(world: World, changed: str) -> None:
    """A change in the metadata or in a lock file of the level begins from nothing, so that nothing old stays behind."""
    world.steps("dev")
    (world.root / changed).write_text("changed", encoding="ascii")
    assert world.steps("runtime")[0] == "env"


@pytest.mark.parametrize(
    "change",
    [
        lambda world: setattr(world.module, "BASE_PYTHON", "/another/python"),
        lambda world: setattr(world, "directory", world.directory.rename(world.root / "moved")),
    ],
    ids=["interpreter", "place"],
)
def test_another_interpreter_or_place_makes_another_environment(world: World, change: Callable[[World], None]) -> None:
    """An environment serves one interpreter in one place; any other use of it begins from nothing."""
    world.steps("dev")
    change(world)
    assert world.steps("dev")[0] == world.directory.name


@pytest.mark.parametrize("step", ["venv --clear", "build.txt", "dev.txt", "--editable"])
def test_a_run_cut_short_claims_nothing(world: World, step: str) -> None:
    """Whichever step fails, the run ends with 1 and the next one begins from nothing."""
    world.fails = step
    with pytest.raises(SystemExit, match="1"):
        world.steps("dev")
    world.fails = ""
    assert world.steps("dev")[0] == "env"


@pytest.mark.parametrize("text", ["", "[]", "{", json.dumps({"dev": 1}), json.dumps({"unknown": "mark"})])
def test_a_stamp_that_means_nothing_is_no_stamp(world: World, text: str) -> None:
    """A damaged or foreign stamp leads to a new environment, not to an error and not to trust."""
    world.directory.mkdir()
    (world.directory / "stamp.json").write_text(text, encoding="ascii")
    assert world.steps("dev")[0] == "env"


def run_step(folder: Path, step: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A process that runs the Python program `step` as one step of the script."""
    (folder / "step.py").write_text(step, encoding="ascii")
    program = f"import runpy, sys; runpy.run_path({str(SCRIPT)!r})['run']([sys.executable, 'step.py'])"
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment, timeout=60)


def test_a_failing_step_shows_what_it_said(tmp_path: Path) -> None:
    """The output of a step that fails reaches the person, after it one line that names the step; the status is 1."""
    done = run_step(tmp_path, "import sys; print('the cause'); sys.exit(3)", dict(os.environ))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == ["the cause", "venv: the step above failed: step.py ..."]


def test_settings_that_would_lead_packages_elsewhere_are_left_out(tmp_path: Path) -> None:
    """A step does not see the person's pip target, prefix, root or user settings; it sees the others."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    misleading = dict.fromkeys(("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIRE_VIRTUALENV"), "x")
    step = "import os, sys; print(*(name for name in os.environ if name.startswith('PIP_'))); sys.exit(3)"
    done = run_step(tmp_path, step, {**kept, **misleading, "PIP_CERT": "y"})
    seen = set(done.stderr.splitlines()[0].split())
    assert seen == {"PIP_CERT", "PIP_DISABLE_PIP_VERSION_CHECK", "PIP_ROOT_USER_ACTION"}


@pytest.mark.parametrize("arguments", [[], ["env"], ["env", "production"], ["env", "dev", "more"]])
def test_a_wrong_call_shows_the_usage(world: World, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Anything but a directory and a known level ends with 1 and the usage."""
    with pytest.raises(SystemExit, match="1"):
        world.module.main(arguments)
    assert "usage: environment.py DIRECTORY runtime|dev|tools" in capsys.readouterr().err
