"""Rules of the replicas and of what stands around them: rollout, budget, network (contract 10)."""

import re
from collections.abc import Iterator
from typing import Any, Final

from sidecar.audit.codes import Fault
from sidecar.audit.documents import Document, Manifest, mapping, sequence
from sidecar.audit.patches import adding, drop, patch, put
from sidecar.audit.world import Sidecar, World, selects
from sidecar.findings import Finding

_SCALED: Final = ("Deployment", "StatefulSet", "ReplicaSet")
_HOST: Final = "kubernetes.io/hostname"


def judge(sidecar: Sidecar, world: World) -> Iterator[Finding]:
    """Judge replicas, rollout, budget and network of a sidecar."""
    yield from _network(sidecar, world)
    if sidecar.store not in ("sqlite", "postgres"):
        return  # said by the rule of variables, or not to be known here
    single = sidecar.store == "sqlite"
    if sidecar.document.kind not in _SCALED:
        yield from _unscaled(sidecar, single)
        return
    count = _count(sidecar, world)
    yield from (_one(sidecar, world, count) if single else _several(sidecar, world, count))
    if sidecar.document.kind == "Deployment":
        yield from _rollout(sidecar, count, single)
    yield from _budget(sidecar, world, count, single)


def _unscaled(sidecar: Sidecar, single: bool) -> Iterator[Finding]:
    kind = sidecar.document.kind
    if not single and kind != "DaemonSet":
        mend = "Put its pod into a Deployment with replicas: 2; k8s/base shows one."
        yield Fault.REPLICAS.at(sidecar.where, f"is a {kind}: one pod, while postgres is for two at least", mend)
    if single and kind == "DaemonSet":
        mend = "Put its pod into a Deployment with replicas: 1; k8s/overlays/stand-alone shows one."
        yield Fault.REPLICAS.at(sidecar.where, "is a pod on every node, while sqlite is for exactly one", mend)


def _scalers(sidecar: Sidecar, world: World) -> Iterator[Document]:
    for document in world.of("HorizontalPodAutoscaler", sidecar.document.namespace):
        target = mapping(mapping(document.body.get("spec")).get("scaleTargetRef"))
        if (target.get("kind"), target.get("name")) == (sidecar.document.kind, sidecar.document.name):
            yield document


def _count(sidecar: Sidecar, world: World) -> int:
    """The fewest replicas that there may be."""
    for scaler in _scalers(sidecar, world):
        return _whole(mapping(scaler.body.get("spec")).get("minReplicas"), 1)
    return _whole(_spec(sidecar).get("replicas"), 1)


def _spec(sidecar: Sidecar) -> Manifest:
    return mapping(sidecar.document.body.get("spec"))


def _whole(value: object, default: int) -> int:
    return value if isinstance(value, int) else default


def _one(sidecar: Sidecar, world: World, count: int) -> Iterator[Finding]:
    for scaler in _scalers(sidecar, world):
        cause = "is scaled, while sqlite is for exactly one replica"
        yield Fault.REPLICAS.at(sidecar.where, cause, f"Remove {scaler.kind}/{scaler.name}.")
        return
    if count != 1:
        mend = patch(sidecar.document, put(sidecar.document, ["spec", "replicas"], 1))
        yield Fault.REPLICAS.at(sidecar.where, f"has {count} replicas, while sqlite is for exactly one", mend)


def _several(sidecar: Sidecar, world: World, count: int) -> Iterator[Finding]:
    document, spec = sidecar.document, sidecar.workload.spec
    if count < 2:
        scaler = next(_scalers(sidecar, world), None)
        held, key = (document, "replicas") if scaler is None else (scaler, "minReplicas")
        mend = patch(held, put(held, ["spec", key], 2))
        yield Fault.REPLICAS.at(sidecar.where, f"may have {count} replica, while two at least are due", mend)
    spread = sequence(spec.get("topologySpreadConstraints"))
    if not mapping(mapping(spec.get("affinity")).get("podAntiAffinity")) and not spread:
        term = {"topologyKey": _HOST, "labelSelector": {"matchLabels": sidecar.workload.labels}}
        value = [{"weight": 100, "podAffinityTerm": term}]
        steps = sidecar.workload.steps("affinity", "podAntiAffinity", "preferredDuringSchedulingIgnoredDuringExecution")
        cause = "has nothing that keeps its replicas on different nodes"
        yield Fault.REPLICAS.at(sidecar.where, cause, patch(document, put(document, steps, value)), "warning")


def _rollout(sidecar: Sidecar, count: int, single: bool) -> Iterator[Finding]:
    document = sidecar.document
    strategy = mapping(_spec(sidecar).get("strategy"))
    recreates = strategy.get("type") == "Recreate"
    if single and not recreates:
        cause = "starts the new pod beside the old one, while sqlite is for one process"
        mend = patch(document, put(document, ["spec", "strategy"], {"type": "Recreate"}))
        yield Fault.ROLLOUT.at(sidecar.where, cause, mend, "error")
    if not single and (recreates or (count >= 2 and count - _gone(strategy, count) < 2)):
        cause = "leaves fewer than two replicas while it rolls out"
        value = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
        yield Fault.ROLLOUT.at(sidecar.where, cause, patch(document, put(document, ["spec", "strategy"], value)))


def _gone(strategy: Manifest, count: int) -> int:
    """How many may be away; a share is rounded down, as the cluster does."""
    return _share(mapping(strategy.get("rollingUpdate")).get("maxUnavailable", "25%"), count)


def _share(value: object, count: int) -> int:
    share = re.fullmatch("([0-9]{1,3})%", str(value))
    return _whole(value, 0) if share is None else count * int(share[1]) // 100


def _budget(sidecar: Sidecar, world: World, count: int, single: bool) -> Iterator[Finding]:
    workload, document = sidecar.workload, sidecar.document
    budgets = [
        each
        for each in world.of("PodDisruptionBudget", document.namespace)
        if selects(mapping(each.body.get("spec")).get("selector"), workload.labels)
    ]
    if single:
        for budget in budgets:
            if not _allows_one(mapping(budget.body.get("spec")), 1):
                mend = f"Remove {budget.kind}/{budget.name}."
                cause = "has a budget over its one replica, which blocks the draining of the node"
                yield Fault.PDB.at(sidecar.where, cause, mend)
    elif not budgets:
        manifest = _manifest(sidecar, "policy/v1", "PodDisruptionBudget")
        manifest["spec"] = {"minAvailable": 1, "selector": {"matchLabels": workload.labels}}
        yield Fault.PDB.at(sidecar.where, "has no PodDisruptionBudget", adding(manifest))
    for budget in () if single else budgets:
        spec = mapping(budget.body.get("spec"))
        if count < 2 or (_allows_one(spec, count) and _keeps_one(spec, count)):
            continue
        cause = (
            "has a budget that lets no replica go" if not _allows_one(spec, count) else "has a budget that keeps none"
        )
        operations = [put(budget, ["spec", "minAvailable"], 1)]
        if "maxUnavailable" in spec:
            operations.insert(0, drop(["spec", "maxUnavailable"]))
        yield Fault.PDB.at(sidecar.where, cause, patch(budget, *operations))


def _allows_one(spec: Manifest, count: int) -> bool:
    if "maxUnavailable" in spec:
        return _up(spec["maxUnavailable"], count) >= 1
    return count - _up(spec.get("minAvailable", 1), count) >= 1


def _keeps_one(spec: Manifest, count: int) -> bool:
    if "maxUnavailable" in spec:
        return _up(spec["maxUnavailable"], count) < count
    return _up(spec.get("minAvailable", 1), count) >= 1


def _up(value: object, count: int) -> int:
    """A share of a budget, which the cluster rounds up."""
    share = re.fullmatch("([0-9]{1,3})%", str(value))
    return _whole(value, 0) if share is None else -(-count * int(share[1]) // 100)


def _manifest(sidecar: Sidecar, version: str, kind: str) -> dict[str, Any]:
    metadata = {"name": sidecar.document.name, "namespace": sidecar.document.namespace}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def _network(sidecar: Sidecar, world: World) -> Iterator[Finding]:
    labels = sidecar.workload.labels
    policies = [
        each
        for each in world.of("NetworkPolicy", sidecar.document.namespace)
        if selects(mapping(each.body.get("spec")).get("podSelector") or {}, labels)
    ]
    covered = {str(kind) for each in policies for kind in _types(mapping(each.body.get("spec")))}
    missing = [kind for kind in ("Ingress", "Egress") if kind not in covered]
    if missing:
        manifest = _manifest(sidecar, "networking.k8s.io/v1", "NetworkPolicy")
        manifest["spec"] = {"podSelector": {"matchLabels": labels}, "policyTypes": missing, **_rules(sidecar, missing)}
        manifest["metadata"]["name"] += "-fence"
        cause = f"has no NetworkPolicy for {' and '.join(missing)}: everything may pass"
        yield Fault.NETWORK_POLICY.at(sidecar.where, cause, adding(manifest))
    for policy in policies:
        for direction, peers in (("ingress", "from"), ("egress", "to")):
            rules = sequence(mapping(policy.body.get("spec")).get(direction))
            for index, rule in reversed(list(enumerate(map(mapping, rules)))):
                if _anybody(sequence(rule.get(peers))) and (direction == "egress" or _reaches_metrics(sidecar, rule)):
                    mend = patch(policy, drop(["spec", direction, index]))
                    cause = f"has a policy whose {direction} rule {index + 1} lets everybody pass"
                    yield Fault.NETWORK_POLICY.at(sidecar.where, cause, mend)


def _anybody(peers: list[Any]) -> bool:
    """Whether these peers are the whole world; none named are."""
    blocks = [mapping(mapping(peer).get("ipBlock")) for peer in peers]
    return not peers or any(str(block.get("cidr")).endswith("/0") for block in blocks)


def _reaches_metrics(sidecar: Sidecar, rule: Manifest) -> bool:
    """Whether the rule opens the port of the metrics: by number, by range, by its name, or because it names none."""
    metrics = sidecar.number("QL3_SECRET_SIDECAR_METRICS_PORT")
    declared = map(mapping, sequence(sidecar.container.get("ports")))
    names = {str(port.get("name")) for port in declared if port.get("containerPort") == metrics}
    ports = [mapping(port) for port in sequence(rule.get("ports"))]
    return not ports or any(
        str(port.get("port")) in names or _whole(port.get("port"), metrics + 1) <= metrics <= _last(port)
        for port in ports
    )


def _last(port: Manifest) -> int:
    return _whole(port.get("endPort"), _whole(port.get("port"), 0))


def _types(spec: Manifest) -> list[Any]:
    if "policyTypes" in spec:
        return sequence(spec["policyTypes"])
    return ["Ingress", "Egress"] if "egress" in spec else ["Ingress"]


def _rules(sidecar: Sidecar, kinds: list[str]) -> dict[str, Any]:
    rules: dict[str, Any] = {}
    if "Ingress" in kinds:
        ports = [sidecar.number(name) for name in ("QL3_WORKER_INGRESS_PORT", "QL3_SECRET_SIDECAR_HEALTH_PORT")]
        monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
        metrics = sidecar.number("QL3_SECRET_SIDECAR_METRICS_PORT")
        rules["ingress"] = [{"ports": [{"port": port}]} for port in ports]
        rules["ingress"].append({"from": [monitoring], "ports": [{"port": metrics}]})
    if "Egress" in kinds:
        dns = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}
        rules["egress"] = [{"to": [dns], "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}]
        if sidecar.store != "sqlite":
            database = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "ql3-postgres"}}}
            rules["egress"].append({"to": [database], "ports": [{"port": 5432}]})
    return rules
