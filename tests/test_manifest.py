"""`secret-sidecar manifest`: what Kubernetes needs, in names and modes that serve accepts; values only on demand."""

import base64
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from provider.refs import SecretRef
from sidecar import kubernetes
from sidecar.__main__ import main
from sidecar.publish.base64_view import encode_into, encoded_size
from tests.kit.manifests import VERSIONS, documents, kubectl, one
from tests.kit.memscan import ROOT

REFS = [
    SecretRef.of("shop", "db-url"),
    SecretRef.of("shop", 'a/b "c" # \u2028 \x85: {{x}}', 7),
    SecretRef.of("käse", "n" * 100, 2_147_483_647),
]
VALUES = [b"canary-one", "canary-\u00e9".encode(), b"canary\n"]


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    """A manifest of three refs, awkward ones among them."""
    secrets = []
    for index, (ref, value) in enumerate(zip(REFS, VALUES, strict=True)):
        (tmp_path / f"v{index}").write_bytes(value)
        secrets.append({"ref": ref.text, "file": f"v{index}"})
    path = tmp_path / "m.json"
    path.write_text(json.dumps({"schemaVersion": 1, "secrets": secrets}))
    return str(path)


def shown(capfd: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Run the command and read its YAML."""
    assert main(["manifest", *arguments]) == 0
    return yaml.safe_load(capfd.readouterr().out)


def test_secret_with_values(manifest: str, capfd: pytest.CaptureFixture[str]) -> None:
    """With `--with-values`: a Secret whose keys are the files' names and whose data is each value, byte for byte."""
    document = shown(capfd, "secret", "--manifest", manifest, "--with-values")
    assert document["kind"] == "Secret" and document["metadata"] == {
        "name": "ql3-cluster-worker-values",
        "namespace": "qinglong3-system",
    }
    assert {name: base64.b64decode(data, validate=True) for name, data in document["data"].items()} == {
        ref.file_name: value for ref, value in zip(REFS, VALUES, strict=True)
    }


def test_no_value_without_being_asked(manifest: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Without `--with-values` no kind shows a value, in clear or encoded, and no value file is needed."""
    for kind in ("secret", "csi", "vault-agent"):
        for file in Path(manifest).parent.glob("v*"):
            file.unlink()
        assert main(["manifest", kind, "--manifest", manifest]) == 0
        output = capfd.readouterr().out
        assert "canary" not in output and base64.b64encode(b"canary").decode()[:7] not in output
        assert all(ref.file_name in output for ref in REFS)


def test_secret_says_how_it_is_mounted(manifest: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The volume's mode and the read-only mount stand in the comment, as YAML that can be copied."""
    assert main(["manifest", "secret", "--manifest", manifest]) == 0
    comment = "\n".join(line[4:] for line in capfd.readouterr().out.splitlines() if line.startswith("#   "))
    pod = yaml.safe_load(comment)
    assert pod["volumes"][0]["secret"]["defaultMode"] == 0o440
    assert pod["volumeMounts"][0] == {"name": "worker-values", "mountPath": kubernetes.ROOT, "readOnly": True}


def test_csi(manifest: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A SecretProviderClass whose objects are the files' names, each with filePermission 0440, as Vault reads it."""
    document = shown(capfd, "csi", "--manifest", manifest)
    assert document["kind"] == "SecretProviderClass" and document["spec"]["provider"] == "vault"
    objects = yaml.safe_load(document["spec"]["parameters"]["objects"])
    assert [one["objectName"] for one in objects] == [ref.file_name for ref in REFS]
    assert {one["filePermission"] for one in objects} == {0o440}
    assert len({one["secretPath"] for one in objects}) == len(REFS)


def test_vault_agent(manifest: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Annotations with perms 0440 and templates without a trailing newline, of names that the API server takes."""
    template = shown(capfd, "vault-agent", "--manifest", manifest)["spec"]["template"]
    annotations = template["metadata"]["annotations"]
    files = {name: value for name, value in annotations.items() if "agent-inject-file-" in name}
    assert list(files.values()) == [f"../worker-values/{ref.file_name}" for ref in REFS]
    for name in files:
        assert annotations[name.replace("-file-", "-perms-")] == "0440"
        text = annotations[name.replace("-file-", "-template-")]
        assert re.fullmatch(
            r'\{\{- with secret "[A-Za-z0-9/%._~-]+" -\}\}\{\{- \.Data\.data\.value -\}\}\{\{- end -\}\}', text
        )
    assert all(len(name.partition("/")[2]) <= 63 and isinstance(value, str) for name, value in annotations.items())


def test_vault_agent_mounts_one_volume_twice(manifest: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The agents have a volume of the Deployment writable, and the sidecar the same one read-only, as its root."""
    template = shown(capfd, "vault-agent", "--manifest", manifest)["spec"]["template"]
    (mount,) = template["spec"]["containers"][0]["volumeMounts"]
    assert mount == {"name": "worker-values", "mountPath": kubernetes.ROOT, "readOnly": True}
    volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
    assert volumes["worker-values"]["emptyDir"]["medium"] == "Memory" and volumes["worker-values"]["secret"] is None
    annotations = template["metadata"]["annotations"]
    for agent in ("agent", "agent-init"):
        (operation,) = json.loads(annotations[f"vault.hashicorp.com/{agent}-json-patch"])
        assert operation["value"] == {"name": "worker-values", "mountPath": "/vault/worker-values"}
    assert annotations["vault.hashicorp.com/agent-service-account-token-volume-name"] in volumes


@pytest.mark.parametrize(
    ("kind", "file"),
    [("csi", "csi/secret-provider-class.yaml"), ("vault-agent", "vault-agent/deployment.yaml")],
)
def test_the_overlays_are_what_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str, file: str
) -> None:
    """The file of the overlay is this command's output for one ref, so that one's own output can take its place."""
    path = tmp_path / "m.json"
    path.write_text('{"schemaVersion":1,"secrets":[{"project":"project-1","name":"token"}]}')
    assert main(["manifest", kind, "--manifest", str(path)]) == 0
    assert capfd.readouterr().out == (ROOT / "k8s" / "overlays" / file).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("kind", "file"),
    [("csi", "csi/secret-provider-class.yaml"), ("vault-agent", "vault-agent/deployment.yaml")],
)
def test_what_is_printed_can_be_used_as_it_is(
    manifest: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str, file: str
) -> None:
    """With one's own refs in the overlay kubectl renders it, every schema and the audit find nothing to say."""
    assert main(["manifest", kind, "--manifest", manifest]) == 0
    shutil.copytree(ROOT / "k8s", tmp_path / "k8s")
    (tmp_path / "k8s" / "overlays" / file).write_text(capfd.readouterr().out)
    command = [kubectl(), "kustomize", str(tmp_path / "k8s" / "overlays" / kind)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    (tmp_path / "rendered.yaml").write_text(done.stdout)
    assert main(["audit", "k8s", str(tmp_path / "rendered.yaml"), "--strict"]) == 0
    (deployment,) = [one for one in yaml.safe_load_all(done.stdout) if one["kind"] == "Deployment"]
    for version in (VERSIONS[0], VERSIONS[-1]):
        kubernetes_validate.validate(deployment, version, strict=True)
    spec = deployment["spec"]["template"]["spec"]
    declared = {volume["name"] for volume in spec["volumes"]}
    assert {mount["name"] for mount in spec["containers"][0]["volumeMounts"]} <= declared


def test_vault_agent_is_a_patch_too(manifest: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Applied to the base's Deployment by kubectl, the Secret's volume is gone and the agents' is in its place."""
    assert main(["manifest", "vault-agent", "--manifest", manifest]) == 0
    (tmp_path / "agent.yaml").write_text(capfd.readouterr().out)
    (tmp_path / "d.yaml").write_text(yaml.safe_dump(one(documents("base"), "Deployment")))
    command = [kubectl(), "patch", "--local", "-f", str(tmp_path / "d.yaml"), "-o", "yaml"]
    command += ["--patch-file", str(tmp_path / "agent.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    volumes = yaml.safe_load(done.stdout)["spec"]["template"]["spec"]["volumes"]
    assert [volume.keys() for volume in volumes if volume["name"] == "worker-values"] == [{"name", "emptyDir"}]


@pytest.mark.parametrize(("kind", "count"), [("csi", 6000), ("vault-agent", 500)])
def test_more_than_the_api_server_takes_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str, count: int
) -> None:
    """A SecretProviderClass or annotations that are too long are told here, not by the API server."""
    path = tmp_path / "m.json"
    secrets = [{"project": "project", "name": f"name-{number}"} for number in range(count)]
    path.write_text(json.dumps({"schemaVersion": 1, "secrets": secrets}))
    assert main(["manifest", kind, "--manifest", str(path)]) == 65
    output = capfd.readouterr()
    assert output.out == "" and "refs_too_many" in output.err


def test_faults_are_told_beside_standard_output(manifest: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A faulty value or manifest is 65 with an empty standard output; values for csi are a usage error."""
    (Path(manifest).parent / "v1").write_bytes(b"")
    assert main(["manifest", "secret", "--manifest", manifest, "--with-values"]) == 65
    output = capfd.readouterr()
    assert output.out == "" and "value_empty" in output.err
    assert main(["manifest", "csi", "--manifest", manifest, "--with-values"]) == 64
    assert main(["manifest", "csi", "--manifest", "none"]) == 65
    assert capfd.readouterr().out == ""


def test_what_one_secret_cannot_hold(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Values over 1 MiB together are refused before a byte is written."""
    (tmp_path / "v").write_bytes(b"x" * 16_384)
    secrets = [{"project": "p", "name": f"n{index}", "file": "v"} for index in range(65)]
    path = tmp_path / "m.json"
    path.write_text(json.dumps({"schemaVersion": 1, "secrets": secrets}))
    assert main(["manifest", "secret", "--manifest", str(path), "--with-values"]) == 65
    output = capfd.readouterr()
    assert output.out == "" and "secret_too_large" in output.err


def test_standard_input_passes_through(tmp_path: Path) -> None:
    """A value from standard input reaches the Secret."""
    path = tmp_path / "m.json"
    path.write_text(json.dumps({"schemaVersion": 1, "secrets": [{"ref": REFS[0].text, "stdin": True}]}))
    command = [sys.executable, "-m", "sidecar", "manifest", "secret", "--manifest", str(path), "--with-values"]
    done = subprocess.run(command, cwd=ROOT, input=b"piped", capture_output=True, timeout=60, check=True)
    assert yaml.safe_load(done.stdout)["data"] == {REFS[0].file_name: base64.b64encode(b"piped").decode()}


@given(st.binary(max_size=200))
def test_base64_is_the_standard(value: bytes) -> None:
    """Encoded in place, every value is what the standard library makes of it."""
    room = bytearray(encoded_size(len(value)))
    with memoryview(value) as view, memoryview(room) as target:
        encode_into(view, target)
    assert room == base64.b64encode(value)
