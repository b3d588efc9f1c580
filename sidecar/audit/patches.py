"""Exact mends: JSON Patches that `kubectl patch --type=json -p` takes, and manifests to add."""

import json
from collections.abc import Iterable
from typing import Any

from sidecar.audit.documents import Document

Step = str | int
Operation = dict[str, Any]


def put(document: Document, steps: Iterable[Step], value: object) -> Operation:
    """Return the operation that sets the value there, with whatever lies between and is missing."""
    path = list(steps)
    node: Any = document.body
    for depth, step in enumerate(path):
        inside = _child(node, step)
        if inside is None:
            for missing in reversed(path[depth + 1 :]):
                value = [value] if missing == "-" else {missing: value}
            return {"op": "add", "path": pointer(path[: depth + 1]), "value": value}
        node = inside
    return {"op": "replace", "path": pointer(path), "value": value}


def drop(steps: Iterable[Step]) -> Operation:
    """Return the operation that removes what is there."""
    return {"op": "remove", "path": pointer(steps)}


def patch(document: Document, *operations: Operation) -> str:
    """Return the sentence that names the object and the patch."""
    return f"Patch {document.kind}/{document.name} with {json.dumps(operations, ensure_ascii=True)}"


def adding(manifest: dict[str, Any]) -> str:
    """Return the sentence that shows a manifest to add."""
    return f"Add {json.dumps(manifest, ensure_ascii=True)}"


def pointer(steps: Iterable[Step]) -> str:
    """Return the steps as a JSON pointer (RFC 6901)."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)


def _child(node: Any, step: Step) -> Any:
    if isinstance(node, dict):
        return node.get(step)
    if isinstance(node, list) and isinstance(step, int) and step < len(node):
        return node[step]
    return None
