"""The audit of manifests: nothing on ours, the code on each spoilt copy, and mends that mend (issue of the audit)."""

import io
import json
import sys
from types import SimpleNamespace
from typing import Any, Final

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.__main__ import main
from sidecar.audit import audit, read_path, read_text
from sidecar.audit.codes import Fault
from sidecar.audit.documents import DEPTH, FILE_BYTES
from sidecar.findings import Finding
from tests.kit.jsonpatch import follow
from tests.kit.manifests import RENDERED, Manifest, documents, ours, pod, text_of, values
from tests.kit.spoiling import ALONE, BASE, SPOILT, Spoil, setting

PREFIX: Final = "SECRET_SIDECAR_KUBERNETES_"
SECRET: Final = "canary"
GOOD: Final = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"


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
@pytest.mark.parametrize(
    "bad",
    [
        "a: [1\n",
        "a: 1\na: 2\n",
        "a: &x [1]\nb: *x\n",
        "- 1\n- 2\n",
        "text\n",
        "kind: ConfigMap\n",
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n",
        "a: {{ .Values.a }}\n",
        "a: !!python/object/apply:os.system ['true']\n",
        "a: \0\n",
        "a: " + "[" * (DEPTH + 1) + "]" * (DEPTH + 1) + "\n",
        "a: " + "[" * 5000 + "\n",
        '{"a": ' + "[" * 100_000 + "}\n",
    ],
    ids=range(13),
)
def test_a_bad_document_is_named_and_the_rest_is_judged(bad: str) -> None:
    """A document that is no object is reported by file and number, and the documents around it are read."""
    found, faults = read_text("file.yaml", f"{GOOD}---\n{bad}--- # last\n{GOOD}")
    assert [document.where for document in found] == ["file.yaml#1", "file.yaml#3"]
    (finding,) = faults
    assert (finding.code, finding.where) == (Fault.DOCUMENT_INVALID.code, "file.yaml#2")
    assert finding.severity == "error"


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


def test_the_order_of_a_folder_is_fixed(tmp_path: Any) -> None:
    """Files of a folder are read by name, so that a report is the same each time."""
    for name in ("b.yml", "a.yaml", "c.json"):
        (tmp_path / name).write_text(GOOD if name != "c.json" else json.dumps(yaml.safe_load(GOOD)), encoding="utf-8")
    found, _ = read_path(str(tmp_path))
    assert [document.where.rpartition("/")[2] for document in found] == ["a.yaml#1", "b.yml#1", "c.json#1"]
