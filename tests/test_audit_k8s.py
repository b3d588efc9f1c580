"""The audit of manifests: nothing on ours, the code on each spoilt copy, and mends that mend (issue of the audit)."""

import io
import json
import os
import sys
from types import SimpleNamespace
from typing import Any, Final

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.__main__ import main
from sidecar.audit import audit, read_path, read_text
from sidecar.audit import documents as manifests_read
from sidecar.audit.codes import Fault
from sidecar.audit.documents import DEPTH, FILE_BYTES, MERGED
from sidecar.findings import Finding
from tests.kit.jsonpatch import follow
from tests.kit.manifests import RENDERED, Manifest, documents, ours, pod, text_of, values
from tests.kit.spoiling import ALONE, BASE, SPOILT, Spoil, setting

PREFIX: Final = "SECRET_SIDECAR_KUBERNETES_"
SECRET: Final = "canary"
GOOD: Final = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"
SECRET_OBJECT: Final = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n"


def judged(text: str) -> list[Finding]:
    """Every finding of a text, those of reading included."""
    found, faults = read_text("given", text)
    return faults + audit(found)[0]


def dumped(found: list[Manifest]) -> str:
    """The documents as one list, as a cluster would give them."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": found})


@pytest.mark.parametrize("name", RENDERED)
def test_nothing_is_found_on_ours(name: str) -> None:
    """Each of our own manifests is without a finding of any severity, and has exactly one sidecar."""
    found, faults = read_text(name, text_of(name))
    assert faults == []
    assert audit(found) == ([], 1)


def test_each_code_has_a_spoilt_copy() -> None:
    """The codes are the issue's, and for each there is a copy of ours in which it must be found."""
    issue = """SECRET_COMMITTED INLINE_CREDENTIAL PROVIDER ROOT VALUES_MODE SUBPATH ITEMS NOT_READ_ONLY HOST_PATH
        GROUP_ACCESS TOKEN_MOUNTED SECURITY_CONTEXT REPLICAS ROLLOUT PDB PROBE RESOURCES NETWORK_POLICY MERGED_SECRETS
        UNKNOWN_VARIABLE SERVICE_LINKS GRACE_PERIOD PORT_CLASH DOCUMENT_INVALID"""
    assert [fault.code for fault in Fault] == [PREFIX + word for word in issue.split()]
    assert {fault for fault, _, _ in SPOILT} == set(Fault)


@pytest.mark.parametrize(
    ("fault", "name", "spoil"), SPOILT, ids=[f"{fault.value}-{at}" for at, (fault, _, _) in enumerate(SPOILT)]
)
def test_a_spoilt_copy_is_found_and_mended(fault: Fault, name: str, spoil: Spoil) -> None:
    """One thing made wrong gives its code and no other; the patch shown mends it, and no value of it is shown."""
    found = documents(name)
    spoil(found)
    findings = judged(dumped(found))
    assert {finding.code for finding in findings} == {fault.code}
    assert SECRET not in json.dumps([finding.document() for finding in findings])
    if fault is Fault.DOCUMENT_INVALID:
        return  # what is no manifest has no patch
    for finding in findings:
        follow(found, finding.mend)
    assert judged(dumped(found)) == []


@pytest.mark.parametrize("kind", ["Job", "Pod", "DaemonSet"])
def test_other_kinds_are_judged_by_their_store(kind: str) -> None:
    """PostgreSQL needs two pods, which a Job and a Pod never are; SQLite needs one, which a DaemonSet is not."""
    found = documents(ALONE if kind == "DaemonSet" else BASE)
    (deployment,) = [each for each in found if each["kind"] == "Deployment"]
    deployment |= {"kind": kind, "apiVersion": {"Job": "batch/v1", "Pod": "v1", "DaemonSet": "apps/v1"}[kind]}
    if kind == "Pod":
        template = deployment.pop("spec")["template"]
        deployment["spec"] = template["spec"]
        deployment["metadata"]["labels"] = template["metadata"]["labels"]
    assert {finding.code for finding in judged(dumped(found))} == {Fault.REPLICAS.code}


@pytest.mark.parametrize(
    ("fields", "serves"),
    [
        ({"args": ["serve"]}, True),
        ({}, True),
        ({"args": ["--version"]}, True),
        ({"command": ["/opt/secret-sidecar/bin/secret-sidecar"], "args": ["serve"]}, True),
        ({"command": ["sh", "-c", "exec secret-sidecar serve"]}, True),
        ({"command": ["secret-sidecar", "serve"], "image": "other:1"}, True),
        ({"args": ["retention", "plan"]}, False),
        ({"command": ["secret-sidecar"], "args": ["publish", "/values"]}, False),
        ({"command": ["/usr/bin/secret-sidecar", "exec"], "args": ["--", "serve"], "image": "worker:1"}, False),
        ({"args": ["--secrets", "https://ql3-secret-sidecar:5801"], "image": "worker:1"}, False),
        ({"args": ["serve"], "image": "registry.example/secret-sidecars:1"}, False),
    ],
)
def test_what_serves_is_a_sidecar(fields: dict[str, Any], serves: bool) -> None:
    """Its image or program without another command is one; another command of ours, and whoever dials one, is none."""
    made = {"name": "a", "image": "registry.example/team/secret-sidecar:1", **fields}
    spec = {"containers": [made]}
    found = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}]
    assert audit(read_text("x", dumped(found))[0])[1] == serves


@pytest.mark.parametrize(
    ("quantity", "enough"),
    [
        *((each, True) for each in ("512Mi", "1Ti", "0.5Gi", "1e9", "536870912", "536870912000m", "600M", 536870912)),
        *((each, False) for each in ("511Mi", "5e8", "1Kib", "-1Gi", "1e9Mi", "", "512mi")),
    ],
)
def test_quantities_are_read_as_the_cluster_reads_them(quantity: str | int, enough: bool) -> None:
    """Every suffix and exponent of a quantity counts; what is none is not enough."""
    found = documents(BASE)
    ours(found)["resources"]["limits"]["memory"] = quantity
    assert [each.code for each in judged(dumped(found))] == ([] if enough else [Fault.RESOURCES.code])


def test_an_account_has_two_names() -> None:
    """The older field for the ServiceAccount counts, too: where it withholds the token, none is mounted."""
    found = documents(BASE)
    del pod(found)["automountServiceAccountToken"]
    pod(found)["serviceAccount"] = pod(found).pop("serviceAccountName")
    assert judged(dumped(found)) == []


def test_variables_of_a_config_map_count() -> None:
    """What the container takes from a ConfigMap among the manifests is judged like its own variables."""
    found = documents(BASE)
    plain = {each["name"]: each["value"] for each in ours(found)["env"] if "value" in each}
    ours(found)["env"] = [each for each in ours(found)["env"] if "value" not in each]
    ours(found)["envFrom"] = [{"configMapRef": {"name": "settings"}}]
    metadata = {"name": "settings", "namespace": "qinglong3-system"}
    found.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": plain})
    assert judged(dumped(found)) == []
    plain["QL3_WORKER_SECRET_WRONG"] = "1"
    (finding,) = judged(dumped(found))
    assert finding.code == Fault.UNKNOWN_VARIABLE.code and "ConfigMap" in finding.mend


def test_a_value_that_the_cluster_gives_is_not_guessed() -> None:
    """A variable from a Secret is neither missing nor wrong: nothing is said about what cannot be seen."""
    found = documents(BASE)
    for name in values(ours(found)):
        if name != "QL3_WORKER_SECRET_ROOT_DIRECTORY":
            setting(name, None)(found)
            ours(found)["env"].append({"name": name, "valueFrom": {"secretKeyRef": {"name": "x", "key": "k"}}})
    assert judged(dumped(found)) == []


def test_a_container_without_variables_is_told_once() -> None:
    """A container of ours without any variable gets one finding for all of them, whose patch mends what it names."""
    found = documents(BASE)
    del ours(found)["env"]
    (finding,) = judged(dumped(found))
    assert finding.code == Fault.PROVIDER.code
    follow(found, finding.mend)
    assert judged(dumped(found)) == []


def test_pods_without_a_sidecar_are_left_alone() -> None:
    """Another's workload is not judged, however careless it is; its Secrets are, and that nothing of ours is there."""
    careless = {"name": "web", "image": "web:1", "env": [{"name": "PASSWORD", "value": "x"}]}
    other = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {"containers": [careless]}}
    (finding,) = judged(dumped([other]))
    assert (finding.code, finding.severity) == (Fault.DOCUMENT_INVALID.code, "warning")


# --- input that is no manifest -----------------------------------------------------------------------------------
LAUGHS: Final = "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
MERGES: Final = "a0: &a0 {k0: 1}\n" + "".join(f"a{n}: &a{n} {{<<: *a{n - 1}, k{n}: 1}}\n" for n in range(1, MERGED + 2))


@pytest.mark.parametrize(
    "bad",
    [
        "a: [1\n",
        "a: 1\na: 2\n",
        "a: *x\n",
        "a: &x [*x]\n",
        "a: &x {b: [*x, *x]}\n",
        LAUGHS,
        MERGES,
        '{"apiVersion": "v1", "kind": "Secret", "kind": "ConfigMap"}\n',
        '{"a": ' + "[" * DEPTH + "]" * DEPTH + "}\n",
        "- 1\n- 2\n",
        "text\n",
        "kind: ConfigMap\n",
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n",
        "a: {{ .Values.a }}\n",
        "a: !!python/object/apply:os.system ['true']\n",
        "a: \0\n",
        'a: !!int ""\n',
        "a: !!bool maybe\n",
        "a: !!float\n",
        "a: " + "[" * (DEPTH + 1) + "]" * (DEPTH + 1) + "\n",
        "a: " + "[" * 5000 + "\n",
        '{"a": ' + "[" * 100_000 + "}\n",
    ],
    ids=range(22),
)
@pytest.mark.parametrize("base", [yaml.CSafeLoader, yaml.SafeLoader], ids=["C", "Python"])
def test_a_bad_document_is_named_and_the_rest_is_judged(bad: str, base: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A document that is no object is reported by file and number by either parser, and those around it are read."""
    monkeypatch.setattr(manifests_read, "_LOADER", manifests_read._loader(base))
    found, faults = read_text("file.yaml", f"{GOOD}---\n{bad}--- # last\n{GOOD}")
    assert [document.where for document in found] == ["file.yaml#1", "file.yaml#3"]
    (finding,) = faults
    assert (finding.code, finding.where) == (Fault.DOCUMENT_INVALID.code, "file.yaml#2")
    assert finding.severity == "error"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (f"{GOOD}--- {{apiVersion: v1, kind: Secret, metadata: {{name: s}}}}\n---\n{GOOD}", "x#2"),
        (f"%YAML 1.1\n--- # a comment\n{GOOD}--- \r\n# nothing\n---\n---\n{SECRET_OBJECT}...\n---\n", "x#2"),
        (f"{GOOD}---\n{SECRET_OBJECT}".replace("\n", "\r\n"), "x#2"),
        (
            "apiVersion: v1\nkind: List\nitems:\n- &s {apiVersion: v1, kind: Secret, metadata: {name: s}}\n- *s\n",
            "x#1.1",
        ),
        ("apiVersion: v1\nx: &m {kind: Secret}\n<<: *m\nmetadata: {name: s}\n", "x#1"),
        ("apiVersion: v1\nkind: Secret\nmetadata: {name: 2026-13-45}\n", "x#1"),
    ],
    ids=["on the boundary's line", "directives", "CRLF", "referred to", "merged", "like a date"],
)
def test_no_document_is_lost(text: str, where: str) -> None:
    """However a stream is written, each object in it is read, so that none passes unseen."""
    found, faults = read_text("x", text)
    assert faults == []
    seen = [each.where.split()[0] for each in audit(found)[0] if each.code == Fault.SECRET_COMMITTED.code]
    assert seen[:1] == [where]


def test_lists_are_taken_apart() -> None:
    """A List, and a list in it, is as many documents as it has items, each with a number of its own."""
    item = yaml.safe_load(GOOD)
    inner = {"apiVersion": "v1", "kind": "ConfigMapList", "items": [item, "text"]}
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [item, inner]})
    found, faults = read_text("list.json", text)
    assert [document.where for document in found] == ["list.json#1.1", "list.json#1.2.1"]
    assert [finding.where for finding in faults] == ["list.json#1.2.2"]


@pytest.mark.parametrize("kind", ["example.com/v1 Widget", "v1 Widget"])
def test_an_unknown_kind_is_passed_over_and_said(kind: str) -> None:
    """A kind that is not known here is reported, and neither an error nor a warning."""
    version, _, name = kind.partition(" ")
    _, (finding,) = read_text("x.yaml", f"apiVersion: {version}\nkind: {name}\n")
    assert (finding.code, finding.severity) == (Fault.DOCUMENT_INVALID.code, "info")


def test_a_boundary_inside_a_text_is_none() -> None:
    """Three dashes that are indented, as in a certificate, part nothing."""
    found, faults = read_text("x", GOOD + "data:\n  a: |\n    ---\n    -----BEGIN\n")
    assert (len(found), faults) == (1, [])
    assert found[0].body["data"] == {"a": "---\n-----BEGIN\n"}


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_no_shape_stops_the_audit(data: st.DataObject) -> None:
    """Whatever stands in place of any part of a manifest, the audit ends with findings and not with an error."""
    found = documents(data.draw(st.sampled_from([BASE, ALONE])))
    for _ in range(data.draw(st.integers(1, 3))):
        node: Any = found[data.draw(st.integers(0, len(found) - 1))]
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if not isinstance(node[key], dict | list) or data.draw(st.integers(0, 5)) == 0:
                node[key] = data.draw(st.sampled_from([None, True, 7, -1, "", "x", [], [None], [[]], {}, {"a": []}]))
                break
            node = node[key]
    findings = judged(dumped(found))
    assert all(finding.code.startswith(PREFIX) and finding.cause and finding.mend for finding in findings)


@pytest.mark.parametrize("shape", [[], {}, [[]], {"a": []}, None, True, -1])
def test_a_port_of_any_shape_is_judged(shape: object) -> None:
    """What stands for a port in a policy that lets everybody in may be anything."""
    found = documents(BASE)
    for each in found:
        if each["kind"] == "NetworkPolicy":
            each["spec"]["ingress"] = [{"ports": [{"port": shape}]}]
    judged(dumped(found))


# --- the command -------------------------------------------------------------------------------------------------
def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run `secret-sidecar audit k8s ...`."""
    code = main(["audit", "k8s", *arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_the_command_reads_files_folders_and_standard_input(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file, a folder of them and `-` are the same to it; without a finding it ends with 0 and prints nothing."""
    (tmp_path / "deep").mkdir()
    file = tmp_path / "deep" / "ours.yaml"
    file.write_text(text_of(BASE), encoding="utf-8")
    (tmp_path / "notes.txt").write_text("no manifest: [", encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text_of(BASE).encode())))
    for path in (str(file), str(tmp_path), "-"):
        assert command(capsys, path, "--strict") == (0, "", "")


def test_severities_decide_the_exit_code(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A warning is 0, with `--strict` 65; an error is 65; JSON shows findings and counts."""
    found = documents(BASE)
    del pod(found)["enableServiceLinks"]
    file = tmp_path / "ours.yaml"
    file.write_text(dumped(found), encoding="utf-8")
    code, out, _ = command(capsys, str(file))
    assert (code, out.split()[:2]) == (0, ["warning", Fault.SERVICE_LINKS.code])
    assert command(capsys, str(file), "--strict")[0] == 65
    setting("QL3_WORKER_SECRET_PROVIDER", "disabled")(found)
    file.write_text(dumped(found), encoding="utf-8")
    code, out, _ = command(capsys, str(file), "--json")
    document = json.loads(out)
    assert (code, document["schemaVersion"], document["command"]) == (65, 1, "audit k8s")
    assert [each["severity"] for each in document["findings"]] == ["error", "warning"]
    assert document["summary"] == {"documents": 6, "sidecars": 1, "errors": 1, "warnings": 1, "infos": 0}


def test_what_cannot_be_read_is_a_fault(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is missing or too large ends the command with 65 and one line that says so."""
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (FILE_BYTES + 1))
    for path in (tmp_path / "missing.yaml", large):
        code, out, err = command(capsys, str(path))
        assert (code, out, err.count("\n")) == (65, "", 1)


def test_one_file_does_not_end_a_folder(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of a folder that is too large is a finding, and the others are read; a pipe of such a name is no file."""
    (tmp_path / "large.yaml").write_bytes(b"#" * (FILE_BYTES + 1))
    (tmp_path / "secret.yaml").write_text(SECRET_OBJECT, encoding="utf-8")
    (tmp_path / "folder.yaml").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    code, out, err = command(capsys, str(tmp_path), "--json")
    codes = [(each["code"], each["where"].rpartition("/")[2].split()[0]) for each in json.loads(out)["findings"]]
    assert (code, err) == (65, "")
    assert codes[0] == (Fault.DOCUMENT_INVALID.code, "large.yaml")
    assert Fault.SECRET_COMMITTED.code in dict(codes)


def test_the_order_of_a_folder_is_fixed(tmp_path: Any) -> None:
    """Files of a folder are read by name, so that a report is the same each time."""
    for name in ("b.yml", "a.yaml", "c.json"):
        (tmp_path / name).write_text(GOOD if name != "c.json" else json.dumps(yaml.safe_load(GOOD)), encoding="utf-8")
    found, _ = read_path(str(tmp_path))
    assert [document.where.rpartition("/")[2] for document in found] == ["a.yaml#1", "b.yml#1", "c.json#1"]
