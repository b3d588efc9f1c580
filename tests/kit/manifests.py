"""The manifests of k8s/, rendered by kubectl as anybody would, and read as documents."""

import copy
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
OVERLAYS: Final = sorted(path.parent.name for path in (ROOT / "k8s" / "overlays").glob("*/kustomization.yaml"))
RENDERED: Final = ("base", *(f"overlays/{name}" for name in OVERLAYS))
VERSIONS: Final = tuple(f"1.{minor}" for minor in range(29, 38))

Manifest = dict[str, Any]


def kubectl() -> str:
    """The program: of the development lock, else the system's."""
    locked = Path(sys.executable).with_name("kubectl")
    found = str(locked) if locked.exists() else shutil.which("kubectl")
    assert found is not None, "no kubectl: `make test` has one in its lock"
    return found


@cache
def text_of(name: str) -> str:
    """`kubectl kustomize k8s/NAME`, which must say nothing but the manifests."""
    # No cluster, no settings of the person: rendering needs neither.
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "KUBECONFIG": "/dev/null"}
    command = [kubectl(), "kustomize", str(ROOT / "k8s" / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def documents(name: str) -> list[Manifest]:
    """What k8s/NAME renders to; a copy that may be changed."""
    return copy.deepcopy(_read(name))


@cache
def _read(name: str) -> list[Manifest]:
    return list(yaml.safe_load_all(text_of(name)))


def one(found: list[Manifest], kind: str, name: str | None = None) -> Manifest:
    """The only document of that kind, or of that kind and name."""
    (chosen,) = [each for each in found if each["kind"] == kind and name in (None, each["metadata"]["name"])]
    return chosen


def pod(found: list[Manifest]) -> Manifest:
    """The pod's spec of the only Deployment."""
    spec: Manifest = one(found, "Deployment")["spec"]["template"]["spec"]
    return spec


def ours(found: list[Manifest]) -> Manifest:
    """The sidecar's container."""
    spec = pod(found)
    (chosen,) = [each for each in containers(spec) if each["name"] == "secret-sidecar"]
    return chosen


def containers(spec: Manifest) -> list[Manifest]:
    """Every container of a pod, init containers first."""
    return [*spec.get("initContainers", []), *spec["containers"]]


def values(container: Manifest) -> dict[str, str]:
    """The container's variables; one that comes from a Secret or a field gets a host name, which suits each of them."""
    return {each["name"]: each.get("value", "postgres.example") for each in container["env"]}
