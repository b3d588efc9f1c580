"""What Kubernetes needs for a set of refs, as YAML text: the names and modes that serve accepts (contract 10)."""

import json
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import quote

from provider.refs import SecretRef
from sidecar.findings import printable

NAMESPACE: Final = "qinglong3-system"
VALUES: Final = "ql3-cluster-worker-values"
"""Name of the Secret, and of the SecretProviderClass in its place."""
ROOT: Final = "/var/run/secrets/qinglong3/worker-values"
DEPLOYMENT: Final = "ql3-secret-sidecar"
CONTAINER: Final = "secret-sidecar"
SECRET_BYTES: Final = 1 << 20
"""What the API server takes for one Secret, all values together."""
CLASS_BYTES: Final = 1 << 20
"""What it takes for one SecretProviderClass, with room to spare below the 1.5 MiB of a request."""
VAULT: Final = "vault.hashicorp.com"
"""What the names of the injector's annotations begin with."""
ANNOTATION_BYTES: Final = 256 << 10
"""What it takes for all annotations of one pod, names and values together."""
_ID: Final = 10001
_SUFFIX_CHARACTERS: Final = 32  # a whole hash does not fit into the 63 characters of an annotation's name
# Room for each value and the copy that an agent renames into its place. `secret: null` takes the base's volume away.
_AGENT_VOLUMES: Final = f"""\
    spec:
      containers:
        - name: {CONTAINER}
          volumeMounts:
            - name: worker-values
              mountPath: {ROOT}
              readOnly: true
      volumes:
        - name: worker-values
          secret: null
          emptyDir:
            medium: Memory
            sizeLimit: {{mebibytes}}Mi
        - name: vault-token
          projected:
            defaultMode: 0440
            sources:
              - serviceAccountToken:
                  path: token
                  audience: vault
                  expirationSeconds: 600
"""


def told(ref: SecretRef) -> str:
    """Write a ref for a comment: project/name@version, on one line whatever the name is."""
    return printable(f"{ref.project_id}/{ref.name}" + ("" if ref.version is None else f"@{ref.version}"))


def secret_head() -> str:
    """Return a Secret up to its keys."""
    return (
        "# Mount the whole Secret, read-only, without items and subPath, and with this mode; the default is refused:\n"
        "#   volumes:\n"
        "#     - name: worker-values\n"
        f"#       secret: {{secretName: {VALUES}, optional: true, defaultMode: 0440}}\n"
        "#   volumeMounts:\n"
        f"#     - {{name: worker-values, mountPath: {ROOT}, readOnly: true}}\n"
        "apiVersion: v1\n"
        "kind: Secret\n"
        f"metadata:\n  name: {VALUES}\n  namespace: {NAMESPACE}\n"
        "type: Opaque\n"
        "data:\n"
    )


def secret_key(ref: SecretRef) -> str:
    """Return the line of a key up to its value."""
    return f"  # {told(ref)}\n  {ref.file_name}: "


def vault_path(ref: SecretRef) -> str:
    """Return where the secret is expected in a KV 2 engine that is mounted at `secret`."""
    version = "" if ref.version is None else f"/v{ref.version}"
    return f"secret/data/{quote(ref.project_id, safe='')}/{quote(ref.name, safe='')}{version}"


def provider_class(refs: Sequence[SecretRef]) -> Iterator[str]:
    """Return a SecretProviderClass for secrets-store CSI with the Vault provider, line by line.

    It is the whole of k8s/overlays/csi/secret-provider-class.yaml.
    """
    yield "# Adapt role, address, secretPath and secretKey to your store; keep objectName and filePermission. Vault's"
    yield "# provider reads the permission as a number, those of the clouds as a text, in quotes."
    yield "# CSI ignores fsGroup and writes files of root's group: the pod needs supplementalGroups: [0]."
    yield "#   volumes:"
    yield "#     - name: worker-values"
    yield "#       csi:"
    yield "#         driver: secrets-store.csi.k8s.io"
    yield "#         readOnly: true"
    yield f"#         volumeAttributes: {{secretProviderClass: {VALUES}}}"
    yield "#   volumeMounts:"
    yield f"#     - {{name: worker-values, mountPath: {ROOT}, readOnly: true}}"
    yield "apiVersion: secrets-store.csi.x-k8s.io/v1"
    yield "kind: SecretProviderClass"
    yield "metadata:"
    yield f"  name: {VALUES}"
    yield f"  namespace: {NAMESPACE}"
    yield "  labels:"
    yield f"    app.kubernetes.io/name: {DEPLOYMENT}"
    yield "    app.kubernetes.io/part-of: qinglong3"
    yield "spec:"
    yield "  provider: vault"
    yield "  parameters:"
    yield f"    roleName: {DEPLOYMENT}"
    yield "    vaultAddress: https://vault.vault.svc:8200"
    yield "    objects: |"
    for ref in refs:
        yield f"      # {told(ref)}"
        yield f'      - objectName: "{ref.file_name}"'
        yield f'        secretPath: "{vault_path(ref)}"'
        yield '        secretKey: "value"'
        yield "        filePermission: 0440"


def agent_patch(refs: Sequence[SecretRef]) -> Iterator[str]:
    """Return a patch of the Deployment for the Vault Agent injector, line by line.

    It is the whole of k8s/overlays/vault-agent/deployment.yaml. A Deployment may not mount the injector's own volume,
    `vault-secrets`, which is added to its pods later on; so the agents write into a volume that it declares.
    """
    folder = "/vault/worker-values"
    mount = {"op": "add", "path": "/volumeMounts/-", "value": {"name": "worker-values", "mountPath": folder}}
    yield "# Adapt role and paths. The injector's writable mount, /vault/secrets, stays empty and is never the root."
    yield "apiVersion: apps/v1"
    yield "kind: Deployment"
    yield f"metadata:\n  name: {DEPLOYMENT}\n  namespace: {NAMESPACE}"
    yield "spec:"
    yield "  template:"
    yield "    metadata:"
    yield "      annotations:"
    yield f'        {VAULT}/agent-inject: "true"'
    yield f"        {VAULT}/role: {DEPLOYMENT}"
    yield "        # The agents run as the sidecar does, so that it may read their files."
    yield f'        {VAULT}/agent-run-as-user: "{_ID}"'
    yield f'        {VAULT}/agent-run-as-group: "{_ID}"'
    yield "        # The pod has no token; this one is for the agents alone."
    yield f"        {VAULT}/agent-service-account-token-volume-name: vault-token"
    yield "        # The agents mount the volume writable; the sidecar mounts it a second time, read-only, as its root."
    for agent in ("agent", "agent-init"):
        yield f"        {VAULT}/{agent}-json-patch: {_scalar(json.dumps([mount], separators=(',', ':')))}"
    yield "        # Four for each ref. The template adds no final newline: values are delivered as they are."
    for ref in refs:
        suffix = ref.file_name[:_SUFFIX_CHARACTERS]
        template = f'{{{{- with secret "{vault_path(ref)}" -}}}}{{{{- .Data.data.value -}}}}{{{{- end -}}}}'
        yield f"        # {told(ref)}"
        yield f'        {VAULT}/agent-inject-secret-{suffix}: "{vault_path(ref)}"'
        yield f'        {VAULT}/agent-inject-file-{suffix}: "..{folder.removeprefix("/vault")}/{ref.file_name}"'
        yield f'        {VAULT}/agent-inject-perms-{suffix}: "0440"'
        yield f"        {VAULT}/agent-inject-template-{suffix}: {_scalar(template)}"
    yield from _AGENT_VOLUMES.format(mebibytes=16 + len(refs) // 32).splitlines()


def _scalar(text: str) -> str:
    """Write a text without control characters as a YAML scalar."""
    quoted = text.replace("'", "''")
    return f"'{quoted}'"
