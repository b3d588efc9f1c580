"""Audit of rendered Kubernetes manifests against what the sidecar needs (contract 10): what `audit k8s` finds.

`documents` reads files, `world` shows what is in them, each `rules_*` judges one side of a container of ours, and
`findings` runs them all. Nothing here changes a file or asks a cluster.
"""

from sidecar.audit.documents import Document, read_path, read_text
from sidecar.audit.findings import audit

__all__ = ["Document", "audit", "read_path", "read_text"]
