"""Copies of our own manifests with one thing made wrong: the code that an audit must find, and how to spoil it."""

from collections.abc import Callable
from typing import Any, Final

from sidecar.audit.codes import Fault
from tests.kit.manifests import Manifest, one, ours, pod

Spoil = Callable[[list[Manifest]], object]
BASE: Final = "base"
ALONE: Final = "overlays/stand-alone"
CSI: Final = "overlays/csi"
AGENT: Final = "overlays/vault-agent"
NATIVE: Final = "overlays/native-sidecar"


def setting(name: str, value: str | None) -> Spoil:
    """Set a variable, or take it away."""

    def spoil(found: list[Manifest]) -> None:
        env = ours(found)["env"]
        env[:] = [each for each in env if each["name"] != name]
        if value is not None:
            env.append({"name": name, "value": value})

    return spoil


def mount(key: str, value: object) -> Spoil:
    """Change the mount of the root."""
    return lambda found: ours(found)["volumeMounts"][0].update({key: value})


def mounted_inside(**fields: str) -> Spoil:
    """Mount something inside the root."""
    made = {"name": "worker-ingress", "mountPath": "/var/run/secrets/qinglong3/worker-values/a", "readOnly": True}
    return lambda found: ours(found)["volumeMounts"].append(made | fields)


def volume(found: list[Manifest], name: str = "worker-values") -> Manifest:
    """A volume of the pod."""
    (chosen,) = [each for each in pod(found)["volumes"] if each["name"] == name]
    return dict_of(chosen)


def dict_of(value: Any) -> Manifest:
    """The value, which is a mapping."""
    assert isinstance(value, dict)
    return value


def source(key: str, value: object, name: str = "worker-values") -> Spoil:
    """Change the Secret of a volume."""
    return lambda found: volume(found, name)["secret"].update({key: value})


def in_place_of_the_secret(made: Manifest) -> Spoil:
    """Take the root from another kind of volume."""

    def spoil(found: list[Manifest]) -> None:
        chosen = volume(found)
        del chosen["secret"]
        chosen.update(made)

    return spoil


def in_pod(key: str, value: object) -> Spoil:
    """Set a field of the pod's spec."""
    return lambda found: pod(found).update({key: value})


def without(*path: str) -> Spoil:
    """Take a field of the pod's spec away."""

    def spoil(found: list[Manifest]) -> None:
        node = pod(found)
        for step in path[:-1]:
            node = node[step]
        del node[path[-1]]

    return spoil


def security(key: str, value: object) -> Spoil:
    """Set a field of the container's security context."""
    return lambda found: ours(found)["securityContext"].update({key: value})


def container(key: str, value: object) -> Spoil:
    """Set a field of the container."""
    return lambda found: ours(found).update({key: value})


def spec(kind: str, key: str, value: object) -> Spoil:
    """Set a field of the spec of the only object of that kind."""
    return lambda found: one(found, kind)["spec"].update({key: value})


def no(kind: str) -> Spoil:
    """Take the objects of a kind away."""
    return lambda found: found.__setitem__(slice(None), [each for each in found if each["kind"] != kind])


def more(kind: str, name: str = "another", **fields: object) -> Spoil:
    """Add an object."""
    version = {"HorizontalPodAutoscaler": "autoscaling/v2", "PodDisruptionBudget": "policy/v1"}.get(kind, "v1")
    metadata = {"name": name, "namespace": "qinglong3-system"}
    return lambda found: found.append({"apiVersion": version, "kind": kind, "metadata": metadata, **fields})


def scaler(least: int) -> Spoil:
    """Add a scaler of our Deployment."""
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "ql3-secret-sidecar"}
    return more("HorizontalPodAutoscaler", spec={"scaleTargetRef": target, "minReplicas": least, "maxReplicas": 5})


def neighbour(**fields: object) -> Spoil:
    """Put a container beside ours."""
    return lambda found: pod(found)["containers"].append({"name": "neighbour", "image": "x:1", **fields})


def both(*spoils: Spoil) -> Spoil:
    """Do several."""
    return lambda found: [spoil(found) for spoil in spoils]


def rule(direction: str, made: Manifest) -> Spoil:
    """Add a rule to our policy."""
    return lambda found: one(found, "NetworkPolicy", "ql3-secret-sidecar")["spec"][direction].append(made)


def _objects(old: str, new: str) -> Spoil:
    def spoil(found: list[Manifest]) -> None:
        parameters = one(found, "SecretProviderClass")["spec"]["parameters"]
        assert old in parameters["objects"]
        parameters["objects"] = parameters["objects"].replace(old, new)

    return spoil


def _note(name: str, value: str | None) -> Spoil:
    def spoil(found: list[Manifest]) -> None:
        notes = one(found, "Deployment")["spec"]["template"]["metadata"]["annotations"]
        (key,) = [key for key in notes if key.startswith(f"vault.hashicorp.com/{name}")]
        notes.pop(key) if value is None else notes.update({key: value})

    return spoil


def _annotated(**notes: str) -> Spoil:
    named = {f"vault.hashicorp.com/{key.replace('_', '-')}": value for key, value in notes.items()}
    return lambda found: one(found, "Deployment")["spec"]["template"]["metadata"].update(annotations=named)


def _of_a_map(name: str) -> Spoil:
    reference = {"configMapKeyRef": {"name": "another", "key": "p"}}
    return lambda found: ours(found)["env"].append({"name": name, "valueFrom": reference})


_TOKEN: Final[Manifest] = {"projected": {"defaultMode": 0o440, "sources": [{"serviceAccountToken": {"path": "t"}}]}}
_TWO: Final[Manifest] = {
    "projected": {"defaultMode": 0o440, "sources": [{"secret": {"name": "a"}}, {"secret": {"name": "b"}}]}
}
_KEYS: Final = [{"key": "a", "path": "a"}]
_WHOLE: Final = {"matchLabels": {"app.kubernetes.io/name": "ql3-secret-sidecar"}}
_ROLE: Final = "QL3_WORKER_SECRET_"
_PROBE: Final[Manifest] = {"httpGet": {"path": "/readyz", "port": 8080}}

SPOILT: Final[list[tuple[Fault, str, Spoil]]] = [
    (Fault.SECRET_COMMITTED, BASE, more("Secret", stringData={"pepper": "canary"})),
    (Fault.SECRET_COMMITTED, BASE, more("Secret")),
    (Fault.INLINE_CREDENTIAL, BASE, setting("QL3_WORKER_CREDENTIAL_PEPPER", "canary")),
    (Fault.INLINE_CREDENTIAL, BASE, setting("QL3_POSTGRES_WORKER_INGRESS_PASSWORD", "canary")),
    (Fault.INLINE_CREDENTIAL, BASE, setting("QL3_POSTGRES_WORKER_INGRESS_URL", "postgresql://u:canary@h.example/d")),
    (Fault.INLINE_CREDENTIAL, BASE, setting("QL3_POSTGRES_WORKER_INGRESS_URL", "postgresql://h/d?password=canary")),
    (
        Fault.INLINE_CREDENTIAL,
        BASE,
        both(more("ConfigMap", data={"p": "canary"}), _of_a_map("QL3_WORKER_CREDENTIAL_PEPPER")),
    ),
    (Fault.INLINE_CREDENTIAL, BASE, more("ConfigMap", data={"tls.key": "-----BEGIN EC PRIVATE KEY-----\ncanary\n"})),
    (Fault.PROVIDER, BASE, setting(f"{_ROLE}PROVIDER", None)),
    (Fault.PROVIDER, BASE, setting(f"{_ROLE}PROVIDER", "vault")),
    (Fault.PROVIDER, BASE, setting("QL3_WORKER_INGRESS_ENABLED", "false")),
    (Fault.PROVIDER, BASE, setting("QL_DEPLOYMENT_PROFILE", "worker")),
    (Fault.ROOT, BASE, setting(f"{_ROLE}ROOT_DIRECTORY", None)),
    (Fault.ROOT, BASE, setting(f"{_ROLE}ROOT_DIRECTORY", "values")),
    (Fault.ROOT, BASE, setting(f"{_ROLE}ROOT_DIRECTORY", "/var/run/secrets/qinglong3")),
    (Fault.ROOT, BASE, lambda found: ours(found)["volumeMounts"].pop(0)),
    (Fault.ROOT, BASE, in_place_of_the_secret({"configMap": {"name": "values", "defaultMode": 0o440}})),
    (Fault.ROOT, BASE, mounted_inside()),
    (Fault.SUBPATH, BASE, mounted_inside(subPath="a")),
    (Fault.VALUES_MODE, BASE, source("defaultMode", 0o644)),
    (Fault.VALUES_MODE, BASE, source("defaultMode", 440)),
    (Fault.VALUES_MODE, BASE, source("defaultMode", "0o444")),
    (Fault.VALUES_MODE, BASE, lambda found: volume(found)["secret"].pop("defaultMode")),
    (Fault.VALUES_MODE, BASE, source("defaultMode", 0o444, "worker-ingress")),
    (Fault.VALUES_MODE, BASE, source("items", [{"key": "a", "path": "a", "mode": 0o444}], "worker-ingress")),
    (Fault.VALUES_MODE, BASE, _annotated(agent_inject="true", agent_inject_secret_a="x")),
    (Fault.VALUES_MODE, CSI, _objects("filePermission: 0440", "filePermission: 0644")),
    (Fault.VALUES_MODE, CSI, _objects("filePermission: 0440\n", "")),
    (Fault.VALUES_MODE, AGENT, _note("agent-inject-perms-", None)),
    (Fault.VALUES_MODE, AGENT, _note("agent-inject-perms-", "0644")),
    (Fault.SUBPATH, BASE, mount("subPath", "a")),
    (Fault.SUBPATH, BASE, mount("subPathExpr", "$(A)")),
    (Fault.ITEMS, BASE, source("items", _KEYS)),
    (Fault.NOT_READ_ONLY, BASE, mount("readOnly", False)),
    (Fault.NOT_READ_ONLY, BASE, lambda found: ours(found)["volumeMounts"][1].pop("readOnly")),
    (
        Fault.NOT_READ_ONLY,
        BASE,
        _annotated(agent_inject="true", secret_volume_path="/var/run/secrets/qinglong3/worker-values"),
    ),
    (Fault.NOT_READ_ONLY, AGENT, mount("readOnly", False)),
    (Fault.HOST_PATH, BASE, in_place_of_the_secret({"hostPath": {"path": "/srv"}})),
    (Fault.GROUP_ACCESS, BASE, without("securityContext", "fsGroup")),
    (
        Fault.GROUP_ACCESS,
        BASE,
        in_place_of_the_secret({"csi": {"driver": "secrets-store.csi.k8s.io", "readOnly": True}}),
    ),
    (Fault.GROUP_ACCESS, CSI, without("securityContext", "supplementalGroups")),
    (Fault.TOKEN_MOUNTED, BASE, in_pod("automountServiceAccountToken", True)),
    (Fault.TOKEN_MOUNTED, BASE, both(without("automountServiceAccountToken"), no("ServiceAccount"))),
    (Fault.TOKEN_MOUNTED, BASE, in_place_of_the_secret(_TOKEN)),
    *((Fault.SECURITY_CONTEXT, BASE, in_pod(key, True)) for key in ("hostNetwork", "hostPID", "shareProcessNamespace")),
    (Fault.SECURITY_CONTEXT, BASE, security("runAsNonRoot", False)),
    (Fault.SECURITY_CONTEXT, BASE, security("readOnlyRootFilesystem", False)),
    (Fault.SECURITY_CONTEXT, BASE, security("allowPrivilegeEscalation", True)),
    (Fault.SECURITY_CONTEXT, BASE, security("privileged", True)),
    (Fault.SECURITY_CONTEXT, BASE, security("runAsUser", 0)),
    (Fault.SECURITY_CONTEXT, BASE, security("capabilities", {"drop": ["ALL"], "add": ["SYS_PTRACE"]})),
    (Fault.SECURITY_CONTEXT, BASE, security("capabilities", {})),
    (Fault.SECURITY_CONTEXT, BASE, security("seccompProfile", {"type": "Unconfined"})),
    (Fault.SECURITY_CONTEXT, BASE, container("securityContext", None)),
    (Fault.REPLICAS, BASE, spec("Deployment", "replicas", 1)),
    (Fault.REPLICAS, BASE, scaler(1)),
    (Fault.REPLICAS, BASE, both(without("affinity"), without("topologySpreadConstraints"))),
    (Fault.REPLICAS, ALONE, spec("Deployment", "replicas", 2)),
    (Fault.REPLICAS, ALONE, scaler(1)),
    (Fault.ROLLOUT, ALONE, spec("Deployment", "strategy", {"type": "RollingUpdate"})),
    (Fault.ROLLOUT, BASE, spec("Deployment", "strategy", {"type": "Recreate"})),
    (Fault.ROLLOUT, BASE, spec("Deployment", "strategy", {"rollingUpdate": {"maxUnavailable": "50%"}})),
    (Fault.PDB, BASE, no("PodDisruptionBudget")),
    (Fault.PDB, BASE, spec("PodDisruptionBudget", "minAvailable", 2)),
    (Fault.PDB, BASE, spec("PodDisruptionBudget", "minAvailable", "0%")),
    (Fault.PDB, BASE, spec("PodDisruptionBudget", "maxUnavailable", 2)),
    (Fault.PDB, BASE, spec("PodDisruptionBudget", "selector", {"matchLabels": {"app": "other"}})),
    (Fault.PDB, BASE, spec("PodDisruptionBudget", "selector", None)),
    (Fault.PDB, ALONE, more("PodDisruptionBudget", spec={"minAvailable": 1, "selector": _WHOLE})),
    *((Fault.PROBE, BASE, container(kind, None)) for kind in ("startupProbe", "livenessProbe", "readinessProbe")),
    (Fault.PROBE, BASE, container("livenessProbe", _PROBE)),
    (Fault.PROBE, BASE, container("readinessProbe", {"tcpSocket": {"port": 5801}})),
    (Fault.PROBE, BASE, container("readinessProbe", {"httpGet": {"path": "/readyz", "port": "worker"}})),
    (Fault.RESOURCES, BASE, container("resources", None)),
    (Fault.RESOURCES, BASE, lambda found: ours(found)["resources"]["limits"].update(memory="256M")),
    (Fault.RESOURCES, BASE, lambda found: ours(found)["resources"]["requests"].pop("cpu")),
    (Fault.NETWORK_POLICY, BASE, no("NetworkPolicy")),
    (Fault.NETWORK_POLICY, ALONE, spec("NetworkPolicy", "policyTypes", ["Ingress"])),
    (Fault.NETWORK_POLICY, BASE, rule("egress", {})),
    (Fault.NETWORK_POLICY, BASE, rule("ingress", {})),
    (Fault.NETWORK_POLICY, BASE, rule("ingress", {"ports": [{"port": 9090}]})),
    (Fault.NETWORK_POLICY, BASE, rule("ingress", {"ports": [{"port": "metrics"}]})),
    (Fault.NETWORK_POLICY, BASE, rule("ingress", {"ports": [{"port": 9000, "endPort": 9100}]})),
    (Fault.NETWORK_POLICY, NATIVE, rule("ingress", {"ports": [{"port": "secrets-metrics"}]})),
    (Fault.NETWORK_POLICY, BASE, rule("ingress", {"from": [{"ipBlock": {"cidr": "::/0"}}]})),
    (
        Fault.NETWORK_POLICY,
        BASE,
        rule("egress", {"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}], "ports": [{"port": 443}]}),
    ),
    (Fault.MERGED_SECRETS, BASE, container("envFrom", [{"secretRef": {"name": "ql3-cluster-worker-values"}}])),
    (Fault.MERGED_SECRETS, BASE, source("secretName", "ql3-cluster-worker-ingress")),
    (Fault.MERGED_SECRETS, BASE, in_place_of_the_secret(_TWO)),
    (Fault.UNKNOWN_VARIABLE, BASE, setting("QL3_SECRET_SIDECAR_HEALTHPORT", "8080")),
    (Fault.UNKNOWN_VARIABLE, BASE, setting("QL3_WORKER_SECRET_VAULT_ADDRESS", "https://vault.example")),
    (Fault.SERVICE_LINKS, BASE, without("enableServiceLinks")),
    (Fault.GRACE_PERIOD, BASE, in_pod("terminationGracePeriodSeconds", 20)),
    (Fault.GRACE_PERIOD, BASE, setting("QL3_WORKER_INGRESS_DRAIN_TIMEOUT_MS", "60000")),
    (Fault.PORT_CLASH, BASE, neighbour(ports=[{"containerPort": 9090}])),
    (Fault.PORT_CLASH, BASE, setting("QL3_WORKER_INGRESS_PORT", "9090")),
    (Fault.PORT_CLASH, BASE, neighbour(ports=[{"containerPort": 5801}])),
    (Fault.PORT_CLASH, BASE, neighbour(env=[{"name": "QL_DEPLOYMENT_PROFILE", "value": "cluster-control"}])),
    (Fault.PORT_CLASH, NATIVE, setting("QL3_WORKER_INGRESS_PORT", None)),
    (Fault.PROBE, NATIVE, container("startupProbe", None)),
    (Fault.DOCUMENT_INVALID, BASE, lambda found: ours(found)["env"].append({"name": "A", "value": True})),
    (Fault.DOCUMENT_INVALID, BASE, neighbour(ports={"containerPort": 1})),
    (Fault.DOCUMENT_INVALID, BASE, lambda found: found[0].pop("apiVersion")),
]
