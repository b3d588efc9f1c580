"""The manifests of k8s/: rendered, valid for every version, and as the contract has them (contract 10)."""

import json
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

import jsonschema
import kubernetes_validate
import pytest

from provider.refs import SecretRef
from sidecar import devcerts
from sidecar.config import survey
from sidecar.variables import BY_NAME
from tests.kit import manifests
from tests.kit.manifests import RENDERED, VERSIONS, Manifest, containers, documents, one, ours, pod, values
from tests.kit.stand import make_stand

VALUES: Final = "/var/run/secrets/qinglong3/worker-values"
INGRESS: Final = "/var/run/secrets/qinglong3/worker-ingress"
SCHEMAS: Final = manifests.ROOT / "tests" / "schemas"
REF: Final = SecretRef.of("project-1", "token")


@pytest.mark.parametrize("name", RENDERED)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_document_is_valid(name: str, version: str) -> None:
    """Each document fits the strict schema of each version, or ours for its custom kind; without one it fails."""
    for document in documents(name):
        schema = SCHEMAS / f"{document['kind'].lower()}.json"
        if schema.exists():
            jsonschema.validate(document, json.loads(schema.read_text(encoding="utf-8")))
        else:
            assert kubernetes_validate.validate(document, version, strict=True) == version


def test_a_document_that_is_not_valid_is_noticed() -> None:
    """The schemas refuse a field that does not exist, so that the test above can fail."""
    found = documents("base")
    pod(found)["automountServiceAccountTokens"] = False
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(one(found, "Deployment"), "1.29", strict=True)


@pytest.mark.parametrize("name", RENDERED)
def test_what_schemas_do_not_tell_holds_too(name: str) -> None:
    """The name of an annotation has at most 63 characters, and what is mounted is declared, as the API server asks."""
    found = documents(name)
    template = one(found, "Deployment")["spec"]["template"]
    notes = template["metadata"].get("annotations", {})
    assert [key for key in notes if len(key.rpartition("/")[2]) > 63] == []
    declared = {volume["name"] for volume in template["spec"]["volumes"]}
    mounts = [
        mount["name"] for container in containers(template["spec"]) for mount in container.get("volumeMounts", [])
    ]
    assert [mount for mount in mounts if mount not in declared] == []


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
    health = int(environment.get("QL3_SECRET_SIDECAR_HEALTH_PORT", "8080"))
    assert list(ports.values()) == [
        int(environment.get("QL3_WORKER_INGRESS_PORT", "5801")),
        health,
        int(environment.get("QL3_SECRET_SIDECAR_METRICS_PORT", "9090")),
    ]
    asked = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert {kind: (get["path"], ports[get["port"]]) for kind, get in asked.items()} == {
        "startup": ("/livez", health),
        "liveness": ("/livez", health),
        "readiness": ("/readyz", health),
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


def test_csi_lets_the_group_read_what_the_driver_writes() -> None:
    """The driver's volume is read-only, the pod is in the group 0, and the object's file is its ref's and 0440."""
    found = documents("overlays/csi")
    given = one(found, "SecretProviderClass")
    (volume,) = [each for each in pod(found)["volumes"] if each["name"] == "worker-values"]
    attributes = {"secretProviderClass": given["metadata"]["name"]}
    driver = {"driver": "secrets-store.csi.k8s.io", "readOnly": True, "volumeAttributes": attributes}
    assert volume == {"name": "worker-values", "csi": driver}
    assert pod(found)["securityContext"]["supplementalGroups"] == [0]
    objects = given["spec"]["parameters"]["objects"]
    assert f'objectName: "{REF.file_name}"\n' in objects and "filePermission: 0440\n" in objects


def test_the_agents_write_where_the_sidecar_reads() -> None:
    """The agents, as our user, have the volume writable; we mount it a second time, read-only, at the root."""
    found = documents("overlays/vault-agent")
    notes = one(found, "Deployment")["spec"]["template"]["metadata"]["annotations"]
    told = {key.removeprefix("vault.hashicorp.com/"): value for key, value in notes.items()}
    assert {told["agent-run-as-user"], told["agent-run-as-group"]} == {"10001"}
    for name in ("agent-json-patch", "agent-init-json-patch"):
        (operation,) = json.loads(told[name])
        assert operation["value"] == {"name": "worker-values", "mountPath": "/vault/worker-values"}
    assert told[f"agent-inject-file-{REF.file_name[:32]}"] == f"../worker-values/{REF.file_name}"
    assert told[f"agent-inject-perms-{REF.file_name[:32]}"] == "0440"
    assert told[f"agent-inject-template-{REF.file_name[:32]}"].endswith("{{- end -}}")
    volumes = {volume["name"]: volume for volume in pod(found)["volumes"]}
    assert volumes["worker-values"]["emptyDir"]["medium"] == "Memory"
    token = told["agent-service-account-token-volume-name"]
    assert token in volumes
    assert token not in [mount["name"] for mount in ours(found)["volumeMounts"]]
    ports = [port["port"] for rule in one(found, "NetworkPolicy")["spec"]["egress"] for port in rule["ports"]]
    assert 8200 in ports


def test_the_native_sidecar_shares_nothing_but_the_pod() -> None:
    """It is a restartable init container with ports, volumes and a Service of its own; the control one is untouched."""
    found = documents("overlays/native-sidecar")
    spec = pod(found)
    container = ours(found)
    assert spec["initContainers"] == [container]
    assert container["restartPolicy"] == "Always"
    (control,) = spec["containers"]
    assert control["name"] == "ql3-cluster-control"
    taken = [port["containerPort"] for port in control["ports"]]
    assert [port["containerPort"] for port in container["ports"]] == [5802, 8082, 9092]
    assert 5801 in taken
    mounts = [{mount["name"] for mount in each.get("volumeMounts", [])} for each in (control, container)]
    assert mounts[0] & mounts[1] == set()
    assert spec["shareProcessNamespace"] is False
    (port,) = one(found, "Service")["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (5802, container["ports"][0]["name"])


# --- monitoring --------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What a running sidecar with a CRL shows at `/metrics`."""
    with make_stand(tmp_path_factory.mktemp("monitoring")) as stand:
        crl = stand.directory / "tls" / "ca.crl"
        devcerts.write(crl, stand.pki.crl_pem(number=1))
        stand.environment["QL3_WORKER_INGRESS_TLS_CLIENT_CRL_FILE"] = str(crl)
        stand.start()
        yield stand.get("/metrics", port=stand.metrics_port)[1]


def expressions(found: list[Manifest]) -> list[str]:
    """Every query of the alerts and of the dashboard."""
    rules = [rule for group in one(found, "PrometheusRule")["spec"]["groups"] for rule in group["rules"]]
    board = json.loads(one(found, "ConfigMap")["data"]["secret-sidecar.json"])
    return [rule["expr"] for rule in rules] + [
        target["expr"] for panel in board["panels"] for target in panel["targets"]
    ]


def test_every_query_names_what_exists(scraped: str) -> None:
    """Each metric of an alert or panel is shown by a running sidecar, with each label value that the query names."""
    queries = expressions(documents("overlays/monitoring"))
    assert len(queries) > 20
    for query in queries:
        named = re.findall(r"(secret_sidecar_[a-z_]+)(?:\{([a-z]+)=~?\"([a-z_0-9|]+)\"\})?", query)
        assert named
        for metric, label, members in named:
            assert re.search(rf"^{metric}[ {{]", scraped, re.MULTILINE), metric
            for member in members.split("|") if label else ():
                assert f'{metric}{{{label}="{member}"}}' in scraped, member
        for label in re.findall(r" by \(([a-z, ]+)\)", query):
            # The rest are labels of the scrape, not of ours.
            for each in set(label.split(", ")) - {"pod"}:
                assert re.search(rf'^{named[0][0]}\{{[^}}]*{each}="', scraped, re.MULTILINE), each


def test_the_alerts_are_those_asked_for() -> None:
    """There is an alert for refusals, drift, the ends of certificates and CRL, the store's loss and the shield."""
    found = documents("overlays/monitoring")
    alerts = {rule["alert"] for group in one(found, "PrometheusRule")["spec"]["groups"] for rule in group["rules"]}
    asked = {"Refusals", "Drift", "CertificateExpiry", "CrlExpiry", "StoreLost", "Shield"}
    assert {f"SecretSidecar{name}" for name in asked} <= alerts


def test_the_monitor_finds_the_metrics_service() -> None:
    """The ServiceMonitor selects exactly the Service of the metrics, and a port that it has."""
    found = documents("overlays/monitoring")
    monitor = one(found, "ServiceMonitor")["spec"]
    wanted = monitor["selector"]["matchLabels"].items()
    services = [each for each in found if each["kind"] == "Service"]
    (service,) = [each for each in services if wanted <= each["metadata"]["labels"].items()]
    assert [end["port"] for end in monitor["endpoints"]] == [port["name"] for port in service["spec"]["ports"]]
