"""All rules over all documents."""

import json
from collections.abc import Iterator

from sidecar.audit import rules_cluster, rules_pod, rules_values, rules_variables
from sidecar.audit.codes import Fault
from sidecar.audit.documents import Document, mapping
from sidecar.audit.world import World, shape_faults
from sidecar.findings import Finding


def audit(documents: list[Document]) -> tuple[list[Finding], int]:
    """Return what is to be found in the documents, and how many sidecars of ours there are in them."""
    world = World(documents)
    sidecars = list(world.sidecars())
    findings = [*_secrets(world), *_keys(world)]
    for workload in world.workloads():
        findings += shape_faults(workload)
    for sidecar in sidecars:
        findings += rules_variables.judge(sidecar)
        findings += rules_values.judge(sidecar, world)
        findings += rules_pod.judge(sidecar, world)
        findings += rules_cluster.judge(sidecar, world)
    if not sidecars:
        cause = "hold no container of a secret sidecar, so there was little to judge"
        mend = "Give everything that is applied: kubectl kustomize DIRECTORY | secret-sidecar audit k8s -"
        findings.append(Fault.DOCUMENT_INVALID.at("the documents", cause, mend, "warning"))
    return findings, len(sidecars)


def _keys(world: World) -> Iterator[Finding]:
    """Private keys where everybody may read them. Only an opening line is looked for; nothing of it is shown."""
    for document in world.of("ConfigMap"):
        if any("PRIVATE KEY-----" in str(text) for text in mapping(document.body.get("data")).values()):
            where = f"{document.where} ConfigMap/{document.name}"
            cause = "holds a private key, which has been seen: issue another, and keep it in a Secret"
            yield Fault.INLINE_CREDENTIAL.at(where, cause, _removal(document))


def _secrets(world: World) -> Iterator[Finding]:
    for document in world.of("Secret"):
        where = f"{document.where} Secret/{document.name}"
        held = any(mapping(document.body.get(key)) for key in ("data", "stringData"))
        cause = "is a Secret among the manifests" + (", with values; replace them, they have been seen" if held else "")
        yield Fault.SECRET_COMMITTED.at(where, cause, _removal(document))


def _removal(document: Document) -> str:
    metadata = {"name": document.name, "namespace": document.namespace}
    removal = {"$patch": "delete", "apiVersion": "v1", "kind": document.kind, "metadata": metadata}
    return f"Remove it; in an overlay, as a patch: {json.dumps(removal)}"
