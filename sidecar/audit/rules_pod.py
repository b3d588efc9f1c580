"""Rules of the pod and its container: token, security, service links, grace, probes, resources, ports (contract 10)."""

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

from sidecar.audit.codes import Fault
from sidecar.audit.documents import mapping, sequence
from sidecar.audit.patches import Step, drop, patch, put
from sidecar.audit.world import Sidecar, World
from sidecar.findings import Finding

_GRACE_MS: Final = 5000
_USUAL_GRACE_S: Final = 30
_PORTS: Final = (
    ("QL3_WORKER_INGRESS_PORT", 10),
    ("QL3_SECRET_SIDECAR_HEALTH_PORT", 2),
    ("QL3_SECRET_SIDECAR_METRICS_PORT", 2),
)
_CONTROL_PORT: Final = 5801
_UNITS: Final = {
    **{unit: Decimal(1000) ** power for power, unit in enumerate(("m", "", "k", "M", "G", "T", "P", "E"), -1)},
    **{unit: Decimal(1024) ** power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
_LEAST: Final = (("requests", "128Mi"), ("limits", "512Mi"))
_USER: Final = 10001


def judge(sidecar: Sidecar, world: World) -> Iterator[Finding]:
    """Judge the pod and the container of a sidecar."""
    yield from _token(sidecar, world)
    yield from _security(sidecar)
    spec = sidecar.workload.spec
    if spec.get("enableServiceLinks") is not False:
        cause = "gets a variable for each Service of its namespace, and one of them may bear a name of ours"
        yield Fault.SERVICE_LINKS.at(sidecar.where, cause, _pod(sidecar, "enableServiceLinks", False))
    yield from _grace(sidecar)
    yield from _probes(sidecar)
    yield from _resources(sidecar)
    yield from _ports(sidecar)


def _pod(sidecar: Sidecar, key: str, value: object) -> str:
    return patch(sidecar.document, put(sidecar.document, sidecar.workload.steps(key), value))


def _own(sidecar: Sidecar, *steps: Step, value: object) -> str:
    return patch(sidecar.document, put(sidecar.document, sidecar.steps(*steps), value))


def _token(sidecar: Sidecar, world: World) -> Iterator[Finding]:
    spec = sidecar.workload.spec
    account = str(spec.get("serviceAccountName") or spec.get("serviceAccount") or "default")
    withheld = spec.get("automountServiceAccountToken")
    if withheld is None:
        accounts = world.of("ServiceAccount", sidecar.document.namespace)
        withheld = next(
            (each.body.get("automountServiceAccountToken") for each in accounts if each.name == account), None
        )
    if withheld is not False:
        cause = "mounts a token of its ServiceAccount, which it never needs"
        yield Fault.TOKEN_MOUNTED.at(sidecar.where, cause, _pod(sidecar, "automountServiceAccountToken", False))
    for _, mount, at, volume in sidecar.mounts():
        sources = sequence(mapping(volume.get("projected")).get("sources"))
        for index, source in reversed(list(enumerate(sources))):
            if "serviceAccountToken" in mapping(source):
                cause = f"mounts a token of its ServiceAccount by the volume {mount.get('name')}"
                mend = drop(sidecar.workload.steps("volumes", at, "projected", "sources", index))
                yield Fault.TOKEN_MOUNTED.at(sidecar.where, cause, patch(sidecar.document, mend))


def _security(sidecar: Sidecar) -> Iterator[Finding]:
    spec = sidecar.workload.spec
    own = mapping(sidecar.container.get("securityContext"))
    either = {**mapping(spec.get("securityContext")), **own}
    for key in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"):
        if spec.get(key) is True:
            cause = f"shares what it should not ({key})"
            yield Fault.SECURITY_CONTEXT.at(sidecar.where, cause, _pod(sidecar, key, False))
    # Each patch is the whole, so that any one of them mends all and none undoes another.
    mended = dict(own)
    causes: list[str] = []
    for key, wanted in (("runAsNonRoot", True), ("readOnlyRootFilesystem", True), ("allowPrivilegeEscalation", False)):
        settled = either if key == "runAsNonRoot" else own
        if settled.get(key) is not wanted:
            causes.append(f"does not say {key}: {str(wanted).lower()}")
            mended[key] = wanted
    if either.get("runAsUser") == 0:
        causes.append("runs as root")
        mended["runAsUser"] = _USER
    if own.get("privileged") is True:
        causes.append("is privileged")
        mended["privileged"] = False
    capabilities = mapping(own.get("capabilities"))
    if "ALL" not in sequence(capabilities.get("drop")) or sequence(capabilities.get("add")):
        causes.append("keeps capabilities")
        mended["capabilities"] = {"drop": ["ALL"]}
    if mapping(either.get("seccompProfile")).get("type") not in ("RuntimeDefault", "Localhost"):
        causes.append("has no seccomp profile")
        mended["seccompProfile"] = {"type": "RuntimeDefault"}
    for cause in causes:
        yield Fault.SECURITY_CONTEXT.at(sidecar.where, cause, _own(sidecar, "securityContext", value=mended))


def _grace(sidecar: Sidecar) -> Iterator[Finding]:
    spent = sidecar.number("QL3_SECRET_SIDECAR_SHUTDOWN_DELAY_MS")
    spent += sidecar.number("QL3_WORKER_INGRESS_DRAIN_TIMEOUT_MS") + _GRACE_MS
    grace = sidecar.workload.spec.get("terminationGracePeriodSeconds", _USUAL_GRACE_S)
    if not isinstance(grace, int) or grace * 1000 <= spent:
        cause = "may be killed before it has drained: grace must be longer than delay + drain + 5 s"
        longer = max(spent // 1000 + 1, _USUAL_GRACE_S)
        yield Fault.GRACE_PERIOD.at(sidecar.where, cause, _pod(sidecar, "terminationGracePeriodSeconds", longer))


def _probes(sidecar: Sidecar) -> Iterator[Finding]:
    health = sidecar.number("QL3_SECRET_SIDECAR_HEALTH_PORT")
    named = {str(mapping(port).get("name")): mapping(port).get("containerPort") for port in _declared(sidecar)}
    for kind, paths in (
        ("startupProbe", ("/livez", "/healthz")),
        ("livenessProbe", ("/livez", "/healthz")),
        ("readinessProbe", ("/readyz",)),
    ):
        get = mapping(mapping(sidecar.container.get(kind)).get("httpGet"))
        port = named.get(str(get.get("port")), get.get("port"))
        plain = str(get.get("scheme", "HTTP")) == "HTTP"
        if get.get("path") in paths and port == health and plain:
            continue
        cause = f"has no {kind} that asks {paths[0]} on the health port"
        probe: dict[str, Any] = {"httpGet": {"path": paths[0], "port": health}, "timeoutSeconds": 3}
        probe |= {"periodSeconds": 2, "failureThreshold": 30} if kind == "startupProbe" else {}
        yield Fault.PROBE.at(sidecar.where, cause, _own(sidecar, kind, value=probe))


def _declared(sidecar: Sidecar) -> list[Any]:
    return sequence(sidecar.container.get("ports"))


def _resources(sidecar: Sidecar) -> Iterator[Finding]:
    resources = mapping(sidecar.container.get("resources"))
    mended = {**resources, **{kind: dict(mapping(resources.get(kind))) for kind in ("requests", "limits")}}
    causes: list[str] = []
    for kind, least in _LEAST:
        given = mended[kind].get("memory")
        if _bytes(given) < _bytes(least):
            causes.append(f"has {kind} of memory below {least}" if given else f"has no {kind} of memory")
            mended[kind]["memory"] = least
    if not mended["requests"].get("cpu"):
        causes.append("has no request of CPU")
        mended["requests"]["cpu"] = "100m"
    for cause in causes:
        yield Fault.RESOURCES.at(sidecar.where, cause, _own(sidecar, "resources", value=mended))


def _bytes(quantity: object) -> Decimal:
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{0,9})?)(?:[eE]([0-9]{1,2}))?([mkMGTPE]|[KMGTPE]i|)", str(quantity))
    if match is None or (match[2] and match[3]):
        return Decimal(0)
    return Decimal(match[1]) * Decimal(10) ** int(match[2] or 0) * _UNITS[match[3]]


def _ports(sidecar: Sidecar) -> Iterator[Finding]:
    taken = {port for _, container in _others(sidecar) for port in _listens(container)}
    for variable, step in _PORTS:
        port = sidecar.number(variable)
        if port in taken:
            cause = f"listens on {port} ({variable}), which another listener of the pod has"
            free = port + step
            while free in taken or free in {sidecar.number(each) for each, _ in _PORTS}:
                free += 1
            yield Fault.PORT_CLASH.at(sidecar.where, cause, patch(sidecar.document, *_move(sidecar, variable, free)))
        taken.add(port)


def _others(sidecar: Sidecar) -> Iterator[tuple[tuple[Step, ...], dict[str, Any]]]:
    for inside, container in sidecar.workload.containers():
        runs = inside[0] == "containers" or container.get("restartPolicy") == "Always"
        if runs and inside != sidecar.inside:
            yield inside, container


def _listens(container: dict[str, Any]) -> Iterator[int]:
    for port in map(mapping, sequence(container.get("ports"))):
        if isinstance(port.get("containerPort"), int):
            yield port["containerPort"]
    # QL3's control container has the same variable for its own listener, and the same default.
    env = {str(each.get("name")): each.get("value") for each in map(mapping, sequence(container.get("env")))}
    if env.get("QL_DEPLOYMENT_PROFILE") == "cluster-control" or "ql3-cluster-control" in str(container.get("name")):
        text = str(env.get("QL3_WORKER_INGRESS_PORT"))
        yield int(text) if re.fullmatch("[0-9]{1,5}", text) else _CONTROL_PORT


def _move(sidecar: Sidecar, variable: str, port: int) -> list[dict[str, Any]]:
    env = sequence(sidecar.container.get("env"))
    index: Step = next((n for n, each in enumerate(env) if mapping(each).get("name") == variable), "-")
    entry = {"name": variable, "value": str(port)}
    moves = [put(sidecar.document, sidecar.steps("env", index), entry)]
    old = sidecar.number(variable)
    for at, declared in enumerate(map(mapping, _declared(sidecar))):
        if declared.get("containerPort") == old:
            moves.append(put(sidecar.document, sidecar.steps("ports", at, "containerPort"), port))
    return moves
