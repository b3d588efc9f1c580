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
_ID: Final = 10001
_SUFFIX_CHARACTERS: Final = 16  # a whole hash does not fit into an annotation's 63 characters


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
    """Return a SecretProviderClass for secrets-store CSI with the Vault provider, line by line."""
    yield "# Adapt role, address, secretPath and secretKey to your provider; keep objectName and filePermission."
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
    yield f"metadata:\n  name: {VALUES}\n  namespace: {NAMESPACE}"
    yield "spec:"
    yield "  provider: vault"
    yield "  parameters:"
    yield "    roleName: ql3-worker-ingress"
    yield "    vaultAddress: https://vault.vault.svc:8200"
    yield "    objects: |"
    for ref in refs:
        yield f"      # {told(ref)}"
        yield f'      - objectName: "{ref.file_name}"'
        yield f'        secretPath: "{vault_path(ref)}"'
        yield '        secretKey: "value"'
        yield '        filePermission: "0440"'


def agent_patch(refs: Sequence[SecretRef]) -> Iterator[str]:
    """Return a patch of the Deployment for the Vault Agent injector, line by line."""
    prefix = "vault.hashicorp.com"
    yield "# The injected mount at /vault/secrets is writable and never the root: its volume is mounted a second time,"
    yield "# read-only. The agent runs as the sidecar's user, so that mode 0440 lets it read. Adapt role and paths."
    yield "apiVersion: apps/v1"
    yield "kind: Deployment"
    yield f"metadata:\n  name: {DEPLOYMENT}\n  namespace: {NAMESPACE}"
    yield "spec:"
    yield "  template:"
    yield "    metadata:"
    yield "      annotations:"
    yield f'        {prefix}/agent-inject: "true"'
    yield f'        {prefix}/role: "ql3-worker-ingress"'
    yield f'        {prefix}/agent-run-as-user: "{_ID}"'
    yield f'        {prefix}/agent-run-as-group: "{_ID}"'
    for ref in refs:
        suffix = ref.file_name[:_SUFFIX_CHARACTERS]
        template = f'{{{{- with secret "{vault_path(ref)}" -}}}}{{{{- .Data.data.value -}}}}{{{{- end -}}}}'
        yield f"        # {told(ref)}"
        yield f'        {prefix}/agent-inject-secret-{suffix}: "{vault_path(ref)}"'
        yield f'        {prefix}/agent-inject-file-{suffix}: "{ref.file_name}"'
        yield f'        {prefix}/agent-inject-perms-{suffix}: "0440"'
        yield f"        {prefix}/agent-inject-template-{suffix}: {json.dumps(template)}"
    yield "    spec:"
    yield "      containers:"
    yield f"        - name: {CONTAINER}"
    yield "          volumeMounts:"
    yield "            - name: vault-secrets"
    yield f"              mountPath: {ROOT}"
    yield "              readOnly: true"
