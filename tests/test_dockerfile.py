"""The Dockerfile: what it says, and each of its steps run for real where there is no container engine."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.kit import manifests
from tests.kit.manifests import ROOT, ours
from tests.kit.stand import Stand, make_stand

TEXT: Final = (ROOT / "Dockerfile").read_text(encoding="utf-8")
PREFIX: Final = "/opt/secret-sidecar"
PYTHON: Final = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
BEHAVED: Final = {"PIP_ROOT_USER_ACTION": "ignore", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def stages() -> list[list[tuple[str, str]]]:
    """Instructions of each stage, in order."""
    made: list[list[tuple[str, str]]] = []
    for line in TEXT.splitlines():
        if not line or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        if word == "FROM":
            made.append([])
        made[-1].append((word, rest))
    return made


def of(word: str, stage: int = 1) -> list[str]:
    """What follows each such instruction of a stage."""
    return [rest for name, rest in stages()[stage] if name == word]


# --- what it says ------------------------------------------------------------------------------------------------
def test_what_runs_is_locked_down() -> None:
    """The last stage runs as 10001, needs no shell, opens the three ports, and runs no step of its own."""
    assert [of("USER"), of("RUN")] == [["10001:10001"], []]
    assert of("FROM")[0] == of("FROM", 0)[0].removesuffix(" AS build")
    assert json.loads(of("ENTRYPOINT")[0]) == [f"{PREFIX}/bin/secret-sidecar"]
    assert json.loads(of("CMD")[0]) == ["serve"]
    assert of("COPY") == [f"--from=build {PREFIX} {PREFIX}"]
    ports = [str(port["containerPort"]) for port in ours(manifests.documents("base"))["ports"]]
    assert of("EXPOSE") == [" ".join(ports)]


def test_labels_tell_the_truth() -> None:
    """Title, version and licence are the distribution's; the manifests run an image of that version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    labels = {
        name.rpartition(".")[2]: value.strip('"') for name, _, value in (each.partition("=") for each in of("LABEL"))
    }
    assert (labels["title"], labels["version"], labels["licenses"]) == (
        project["name"],
        project["version"],
        project["license"],
    )
    assert ours(manifests.documents("base"))["image"] == f"{project['name']}:{project['version']}"
    assert ours(manifests.documents("base"))["args"] == json.loads(of("CMD")[0])


def test_only_locked_packages_are_installed() -> None:
    """Each installation is by hash from a lock, or of the product alone without an index."""
    steps = [json.loads(step) for step in of("RUN", 0)]
    installs = [step for step in steps if "install" in step]
    assert len(installs) == 2
    for step in installs:
        locked = "--require-hashes" in step and "--only-binary=:all:" in step
        assert locked or {"--no-index", "--no-deps", "--no-build-isolation"} <= set(step)


def test_the_context_is_what_is_copied() -> None:
    """.dockerignore lets in exactly the sources of the COPY instructions."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    admitted = sorted(line[1:] for line in lines if line.startswith("!"))
    assert admitted == sorted(source for each in of("COPY", 0) for source in each.split()[:-1])
    assert lines[1] == "*"


# --- its steps: as long as an installation takes, so with the long runs -----------------------------------------
@dataclass(frozen=True)
class Image:
    """The prefix as the last stage has it."""

    prefix: Path

    def command(self, *arguments: str, kept: Path | None = None) -> list[str]:
        """The entry point as user 10001 on a read-only root, in namespaces; `kept` alone may be written."""
        again = f"mount --bind '{kept}' '{kept}'" if kept else ":"
        readonly = f"{again}; mount -o remount,bind,ro {PREFIX}; mount -o remount,bind,ro /"
        user = ["unshare", "--user", "--map-user=10001", "--map-group=10001", "--"]
        return [*inside(self.prefix, readonly), *user, *json.loads(of("ENTRYPOINT")[0]), *arguments]


def inside(prefix: Path, more: str = ":") -> list[str]:
    """Begin of a command that sees `prefix` in its place, in user and mount namespaces of its own."""
    keep = os.path.realpath(sys.base_prefix)
    steps = [f"mount --bind '{keep}' /mnt"] if keep.startswith("/opt/") else []
    steps += ["mount -t tmpfs none /opt", f"mkdir {PREFIX}", f"mount --bind '{prefix}' {PREFIX}"]
    if keep.startswith("/opt/"):
        steps += [f"mkdir -p '{keep}'", f"mount --move /mnt '{keep}'"]
    script = "; ".join(["set -e", *steps, more, 'exec "$@"'])
    return ["unshare", "--user", "--map-root-user", "--mount", "--", "sh", "-c", script, "sh"]


def settings(stage: int) -> dict[str, str]:
    """The variables that a stage sets."""
    return dict(each.split("=", 1) for each in of("ENV", stage))


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Both stages, step by step."""
    place = tmp_path_factory.mktemp("image")
    source, built, clean = place / "src", place / "built", place / "clean"
    source.mkdir()
    built.mkdir()
    try:
        tried = subprocess.run([*inside(built), "true"], capture_output=True, text=True, check=False, timeout=30)
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    if tried.returncode != 0:
        pytest.skip(f"this kernel gives no user and mount namespaces: {tried.stderr.strip()}")
    for word, rest in stages()[0]:
        if word == "COPY":
            *names, target = rest.split()
            for name in names:
                copy(ROOT / name, source / target / ("" if (ROOT / name).is_dir() else Path(name).name))
        elif word == "RUN":
            run(built, source, json.loads(rest))
    shutil.copytree(built, clean, symlinks=True)
    return Image(clean)


def copy(source: Path, target: Path) -> None:
    """Copy as COPY does, without what .dockerignore leaves out."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def run(prefix: Path, source: Path, step: list[str]) -> None:
    """Run one step of the first stage; only a package index out of reach is no failure of ours."""
    command = [PYTHON if step[0] == "python" else step[0], *step[1:]]
    # pip's cache is the person's: with it the step takes seconds, and every file in it is held to its hash.
    environment = os.environ | BEHAVED | {key: value for key, value in settings(0).items() if "CACHE" not in key}
    done = subprocess.run(
        [*inside(prefix), *command],
        cwd=source,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    if done.returncode and ("NewConnectionError" in done.stderr or "ConnectTimeout" in done.stderr):
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    """A world for the image to serve."""
    with make_stand(tmp_path / "stand") as made:
        yield made


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_the_prefix_is_whole_and_clean(image: Image) -> None:
    """It holds exactly the runtime lock and the product, at the locked versions, and nothing that installs."""
    lock = (ROOT / "requirements" / "runtime.txt").read_text(encoding="utf-8")
    wanted = {line.split("==")[0] for line in lock.splitlines() if "==" in line and not line.startswith(" ")}
    (packages,) = image.prefix.glob("lib/python3*/site-packages")
    found = {path.name.split("-")[0].lower().replace("_", "-") for path in packages.glob("*.dist-info")}
    assert found == wanted | {"secret-sidecar"}
    assert not list(image.prefix.glob("bin/pip*"))


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_the_image_serves_as_10001_on_a_read_only_root(image: Image, stand: Stand) -> None:
    """The entry point with its usual argument starts, is ready, and ends with 0 when it is told to."""
    command = image.command(*json.loads(of("CMD")[0]), kept=stand.directory)
    environment = stand.environment | {"PATH": os.environ["PATH"]} | settings(1)
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            if json.loads(line)["event"] == "process_ready":
                break
        else:
            pytest.fail(process.stderr.read())
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
        capabilities = [line.split()[1] for line in status.splitlines() if line.startswith("CapEff")]
        assert capabilities == ["0" * 16]
        mounts = Path(f"/proc/{process.pid}/mountinfo").read_text(encoding="utf-8").splitlines()
        options = {line.split()[4]: line.split()[5].split(",") for line in mounts}
        assert "ro" in options["/"] and "ro" in options[PREFIX]
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, errors) == (0, "")
    assert json.loads(rest.splitlines()[-1])["event"]


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_the_audit_is_in_the_image(image: Image) -> None:
    """Every command's needs are in the prefix: the one that brings a package of its own runs from it."""
    command = image.command("audit", "k8s", "-", "--strict")
    done = subprocess.run(
        command, input=manifests.text_of("base"), capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
