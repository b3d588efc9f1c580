"""docs/kubernetes.md says what the manifests and the audit are."""

import re
from typing import Final

from sidecar.audit.codes import Fault
from tests.kit.manifests import OVERLAYS, ROOT, documents, ours, values

TEXT: Final = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")


def test_each_overlay_is_shown_in_use() -> None:
    """Each overlay has a section of its own with the command that applies it, and no other is named."""
    assert sorted(set(re.findall(r"kubectl apply -k k8s/overlays/([a-z-]+)$", TEXT, re.MULTILINE))) == OVERLAYS
    assert set(OVERLAYS) <= set(re.findall(r"^## (.*)$", TEXT, re.MULTILINE))
    assert TEXT.index("## First: the worker") < TEXT.index("## The base") < TEXT.index(f"## {OVERLAYS[0]}")


def test_each_key_that_is_read_is_in_the_table() -> None:
    """The keys of the Secret of the identity are those that the base mounts or refers to."""
    found = ours(documents("base"))
    folder = "/var/run/secrets/qinglong3/worker-ingress/"
    read = {text.removeprefix(folder) for text in values(found).values() if text.startswith(folder)}
    read |= {
        each["valueFrom"]["secretKeyRef"]["key"] for each in found["env"] if "secretKeyRef" in each.get("valueFrom", {})
    }
    table = TEXT[TEXT.index("| Secret | key |") : TEXT.index("| `ql3-cluster-worker-values`")]
    told = {word for row in table.splitlines() for word in re.findall(r"`([^`]+)`", row.split("|")[2])}
    assert told == read


def test_each_code_is_explained_with_its_severity() -> None:
    """The table has every code of the audit, in order, with the severity that it usually has."""
    rows = re.findall(r"^\| `([A-Z_]+)` \| (error|warning) \|", TEXT, re.MULTILINE)
    assert rows == [(fault.value, fault.at("", "", "").severity) for fault in Fault]
