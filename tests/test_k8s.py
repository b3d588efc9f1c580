"""The manifests of k8s/: rendered, valid for every version, and as the contract has them (contract 10)."""

from pathlib import PurePosixPath
from typing import Final

import kubernetes_validate
import pytest

from sidecar.config import survey
from sidecar.variables import BY_NAME
from tests.kit.manifests import RENDERED, VERSIONS, containers, documents, one, ours, pod, values

VALUES: Final = "/var/run/secrets/qinglong3/worker-values"
INGRESS: Final = "/var/run/secrets/qinglong3/worker-ingress"


@pytest.mark.parametrize("name", RENDERED)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_document_is_valid(name: str, version: str) -> None:
    """Each document that is rendered fits the strict schema of each version; a kind without a schema is a failure."""
    for document in documents(name):
        assert kubernetes_validate.validate(document, version, strict=True) == version


def test_a_document_that_is_not_valid_is_noticed() -> None:
    """The schemas refuse a field that does not exist, so that the test above can fail."""
    found = documents("base")
    pod(found)["automountServiceAccountTokens"] = False
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(one(found, "Deployment"), "1.29", strict=True)


@pytest.mark.parametrize("name", RENDERED)
def test_no_secret_is_in_the_manifests(name: str) -> None:
    """No Secret object and no value of one is rendered, and everything is in the one namespace."""
    found = documents(name)
    assert [each["kind"] for each in found if each["kind"] == "Secret"] == []
    assert {each["metadata"]["namespace"] for each in found} == {"qinglong3-system"}
    inline = {"QL3_WORKER_CREDENTIAL_PEPPER", "QL3_POSTGRES_WORKER_INGRESS_PASSWORD", "QL3_POSTGRES_WORKER_INGRESS_URL"}
    assert inline & values(ours(found)).keys() == set()


@pytest.mark.parametrize("name", RENDERED)
def test_serve_accepts_the_environment(name: str) -> None:
    """The container's variables are a configuration without a fault, and each file that they name is in a mount."""
    container = ours(documents(name))
    environment = values(container)
    assert environment.keys() <= BY_NAME.keys()
    # The files are the cluster's; everything else about their variables is judged.
    assert [fault for fault in survey(environment).faults if fault.wrong != "names a file that cannot be opened"] == []
    mounted = [PurePosixPath(mount["mountPath"]) for mount in container["volumeMounts"]]
    files = [PurePosixPath(path) for variable, path in environment.items() if variable.endswith("_FILE")]
    assert [path for path in files if path.parent not in mounted] == []


@pytest.mark.parametrize("name", RENDERED)
def test_the_pod_is_locked_down(name: str) -> None:
    """User, groups, token, service links, root file system, capabilities and seccomp are the contract's."""
    found = documents(name)
    spec = pod(found)
    assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)
    security = spec["securityContext"]
    assert {security[key] for key in ("runAsUser", "runAsGroup", "fsGroup")} == {10001}
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(spec):
        own = container["securityContext"]
        assert own["runAsNonRoot"] and own["readOnlyRootFilesystem"] and not own["allowPrivilegeEscalation"]
        assert own["capabilities"] == {"drop": ["ALL"]}
    assert ours(found)["resources"]["requests"]["memory"] == "128Mi"
    assert ours(found)["resources"]["limits"] == {"memory": "512Mi"}
    for account in (each for each in found if each["kind"] == "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


@pytest.mark.parametrize("name", RENDERED)
def test_the_pod_may_drain(name: str) -> None:
    """The grace period is longer than shutdown delay, drain and five seconds together."""
    found = documents(name)
    environment = values(ours(found))
    spent = [
        int(environment.get(variable, BY_NAME[variable].default or ""))
        for variable in ("QL3_SECRET_SIDECAR_SHUTDOWN_DELAY_MS", "QL3_WORKER_INGRESS_DRAIN_TIMEOUT_MS")
    ]
    assert pod(found)["terminationGracePeriodSeconds"] * 1000 > sum(spent) + 5000


@pytest.mark.parametrize("name", RENDERED)
def test_probes_ask_the_health_port(name: str) -> None:
    """Start and life ask `/livez`, readiness asks `/readyz`, all on the health port."""
    container = ours(documents(name))
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    environment = values(container)
    assert ports == {
        "worker": int(environment.get("QL3_WORKER_INGRESS_PORT", "5801")),
        "health": int(environment.get("QL3_SECRET_SIDECAR_HEALTH_PORT", "8080")),
        "metrics": int(environment.get("QL3_SECRET_SIDECAR_METRICS_PORT", "9090")),
    }
    asked = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert {kind: (get["path"], get["port"]) for kind, get in asked.items()} == {
        "startup": ("/livez", "health"),
        "liveness": ("/livez", "health"),
        "readiness": ("/readyz", "health"),
    }


@pytest.mark.parametrize("name", RENDERED)
def test_the_root_is_mounted_whole_and_read_only(name: str) -> None:
    """Exactly one read-only mount without a sub-path is the root."""
    container = ours(documents(name))
    assert values(container)["QL3_WORKER_SECRET_ROOT_DIRECTORY"] == VALUES
    (mount,) = [mount for mount in container["volumeMounts"] if mount["mountPath"] == VALUES]
    assert mount["readOnly"] and "subPath" not in mount


def test_the_base_is_the_contracts() -> None:
    """Names, modes, replicas and budget of the base are those of contract 10."""
    found = documents("base")
    volumes = {volume["name"]: volume["secret"] for volume in pod(found)["volumes"]}
    assert volumes == {
        "worker-values": {"secretName": "ql3-cluster-worker-values", "optional": True, "defaultMode": 0o440},
        "worker-ingress": {"secretName": "ql3-cluster-worker-ingress", "defaultMode": 0o440},
    }
    assert [mount["mountPath"] for mount in ours(found)["volumeMounts"]] == [VALUES, INGRESS]
    assert one(found, "Deployment")["spec"]["replicas"] == 2
    assert one(found, "Deployment")["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert one(found, "PodDisruptionBudget")["spec"]["minAvailable"] == 1
    assert values(ours(found))["QL3_WORKER_SECRET_AUTHORITY"] == "postgres"
    terms = pod(found)["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [term["podAffinityTerm"]["topologyKey"] for term in terms] == ["kubernetes.io/hostname"]
    assert len(pod(found)["topologySpreadConstraints"]) == 2


def test_the_policy_of_the_base_lets_in_and_out_what_is_named() -> None:
    """In: worker port, health, metrics from one namespace. Out: PostgreSQL and DNS, each to selected pods."""
    policy = one(documents("base"), "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    into = [([port["port"] for port in rule["ports"]], "from" in rule) for rule in policy["ingress"]]
    assert into == [([5801], False), ([8080], False), ([9090], True)]
    out = [({port["port"] for port in rule["ports"]}, "podSelector" in rule["to"][0]) for rule in policy["egress"]]
    assert out == [({5432}, True), ({53}, True)]


def test_stand_alone_is_one_replica_over_one_volume() -> None:
    """The embedded store is on a claim, has one replica that is replaced and never doubled, and dials nobody."""
    found = documents("overlays/stand-alone")
    deployment = one(found, "Deployment")["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    environment = values(ours(found))
    assert environment["QL3_WORKER_SECRET_AUTHORITY"] == "sqlite"
    assert [name for name in environment if "POSTGRES" in name] == []
    assert [each for each in found if each["kind"] == "PodDisruptionBudget"] == []
    assert one(found, "NetworkPolicy")["spec"]["egress"] == []
    (made,) = pod(found)["initContainers"]
    assert made["args"] == ["authority", "init", "--file", environment["QL3_WORKER_SECRET_AUTHORITY_FILE"]]
    claim = one(found, "PersistentVolumeClaim")
    assert {"name": "store", "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}} in pod(found)["volumes"]
