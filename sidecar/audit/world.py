"""What the documents say together: workloads, their pods, and the containers in them that are sidecars of ours."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from sidecar.audit.codes import Fault
from sidecar.audit.documents import Document, Manifest, mapping, sequence
from sidecar.audit.patches import Step
from sidecar.findings import Finding
from sidecar.variables import BY_NAME, SIDECAR

POD: Final[dict[str, tuple[str, ...]]] = {
    "Pod": (),
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
"""Every kind that makes pods, and where the pod stands in it."""
_PROGRAM: Final = "secret-sidecar"
_IMAGE: Final = re.compile(rf"(?:^|[/_-]){_PROGRAM}(?:[:@_-]|$)")
STORE_KIND: Final = "QL3_WORKER_SECRET_AUTHORITY"


@dataclass(frozen=True, slots=True)
class Workload:
    """An object that makes pods."""

    document: Document
    at: tuple[str, ...]
    """Steps from the object to the pod."""

    @property
    def _pod(self) -> Manifest:
        node: object = self.document.body
        for step in self.at:
            node = mapping(node).get(step)
        return mapping(node)

    @property
    def spec(self) -> Manifest:
        """The pod's spec."""
        return mapping(self._pod.get("spec"))

    @property
    def labels(self) -> Manifest:
        """The pod's labels."""
        return mapping(mapping(self._pod.get("metadata")).get("labels"))

    @property
    def annotations(self) -> Manifest:
        """The pod's annotations."""
        return mapping(mapping(self._pod.get("metadata")).get("annotations"))

    @property
    def where(self) -> str:
        """The document and the object's name."""
        return f"{self.document.where} {self.document.kind}/{self.document.name}"

    def containers(self) -> Iterator[tuple[tuple[Step, ...], Manifest]]:
        """Every container and the steps to it from the pod's spec."""
        for group in ("initContainers", "containers"):
            for index, container in enumerate(sequence(self.spec.get(group))):
                yield (group, index), mapping(container)

    def steps(self, *more: Step) -> list[Step]:
        """Steps from the object into the pod's spec."""
        return [*self.at, "spec", *more]

    def outside(self, *more: Step) -> list[Step]:
        """Steps from the object into its own spec."""
        return ["spec", *more]


@dataclass(frozen=True, slots=True)
class Sidecar:
    """A container that serves secrets, in its workload."""

    workload: Workload
    inside: tuple[Step, ...]
    container: Manifest
    values: dict[str, str | None] = field(default_factory=dict)
    """Its variables; None where a Secret, a field or a file of the cluster's gives the value."""

    @property
    def document(self) -> Document:
        """The object that it is in."""
        return self.workload.document

    @property
    def where(self) -> str:
        """The object and the container's name."""
        return f"{self.workload.where} {self.container.get('name', '')}"

    def steps(self, *more: Step) -> list[Step]:
        """Steps from the object into the container."""
        return self.workload.steps(*self.inside, *more)

    def text(self, name: str) -> str | None:
        """The value of a variable, its default when it is not set, None when it cannot be known here."""
        if name in self.values:
            return self.values[name]
        return BY_NAME[name].default

    def number(self, name: str) -> int:
        """The value of a variable of whole numbers; its default when it cannot be known or is none."""
        text = self.text(name) or ""
        default = BY_NAME[name].default or "0"
        return int(text if re.fullmatch("[0-9]{1,9}", text) else default)

    @property
    def store(self) -> str | None:
        """`sqlite` or `postgres`; None when that cannot be known."""
        return self.text(STORE_KIND)

    def mounts(self) -> Iterator[tuple[int, Manifest, int, Manifest]]:
        """Each mount with its index, and its volume with its; -1 and nothing for a volume that is not declared."""
        volumes = {str(mapping(each).get("name")): index for index, each in enumerate(self.volumes)}
        for index, mount in enumerate(sequence(self.container.get("volumeMounts"))):
            at = volumes.get(str(mapping(mount).get("name")), -1)
            yield index, mapping(mount), at, mapping(self.volumes[at]) if at >= 0 else {}

    @property
    def volumes(self) -> list[Any]:
        """The pod's volumes."""
        return sequence(self.workload.spec.get("volumes"))


@dataclass(frozen=True, slots=True)
class World:
    """Everything that was read."""

    documents: list[Document]

    def of(self, kind: str, namespace: str | None = None) -> Iterator[Document]:
        """The documents of a kind, in one namespace when one is named."""
        for document in self.documents:
            if document.kind == kind and namespace in (None, document.namespace):
                yield document

    def workloads(self) -> Iterator[Workload]:
        """Everything that makes pods."""
        for document in self.documents:
            if document.kind in POD:
                yield Workload(document, POD[document.kind])

    def sidecars(self) -> Iterator[Sidecar]:
        """Every container that is a sidecar of ours; one that only makes the store is none."""
        for workload in self.workloads():
            for inside, container in workload.containers():
                starts = inside[0] == "initContainers" and container.get("restartPolicy") != "Always"
                values = self._values(workload, container)
                if not starts and _is_ours(container, values):
                    yield Sidecar(workload, inside, container, values)

    def _values(self, workload: Workload, container: Manifest) -> dict[str, str | None]:
        values: dict[str, str | None] = {}
        maps = {each.name: each for each in self.of("ConfigMap", workload.document.namespace)}
        for source in sequence(container.get("envFrom")):
            name = str(mapping(mapping(source).get("configMapRef")).get("name"))
            if name in maps:
                prefix = str(mapping(source).get("prefix") or "")
                data = mapping(maps[name].body.get("data"))
                values |= {prefix + str(key): str(value) for key, value in data.items()}
        for entry in map(mapping, sequence(container.get("env"))):
            if "valueFrom" not in entry:
                values[str(entry.get("name"))] = str(entry.get("value", ""))
                continue
            given = mapping(mapping(entry["valueFrom"]).get("configMapKeyRef"))
            source = maps.get(str(given.get("name")))
            text = mapping(source.body.get("data")).get(str(given.get("key"))) if source else None
            values[str(entry.get("name"))] = None if text is None else str(text)
        return values


def selects(selector: object, labels: Manifest) -> bool:
    """Tell whether a label selector takes pods with these labels; an empty one takes all, a missing one none."""
    if not isinstance(selector, dict):
        return False
    chosen: Manifest = selector
    if any(labels.get(key) != value for key, value in mapping(chosen.get("matchLabels")).items()):
        return False
    return all(_holds(mapping(each), labels) for each in sequence(chosen.get("matchExpressions")))


def _holds(expression: Manifest, labels: Manifest) -> bool:
    key, values = str(expression.get("key")), sequence(expression.get("values"))
    match expression.get("operator"):
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    return False


def _is_ours(container: Manifest, values: dict[str, str | None]) -> bool:
    """Whether it serves: by its variables, its image or its program, unless another command is named."""
    words = [str(word) for key in ("command", "args") for word in sequence(container.get(key))]
    at = next((n for n, word in enumerate(words) if word.rpartition("/")[2] == _PROGRAM), None)
    ours = at is not None or _IMAGE.search(str(container.get("image"))) is not None
    # The image's entry point is the program: where nothing else is run, the arguments begin with its command.
    if at is None and (container.get("command") or not ours):
        at = len(words)
    named = words[0 if at is None else at + 1 :][:1]
    if named and not named[0].startswith("-") and named != ["serve"]:
        return False
    return ours or any(name.startswith(SIDECAR) for name in values) or STORE_KIND in values


def shape_faults(workload: Workload) -> Iterator[Finding]:
    """Say which parts of a pod are not what they must be; the rest is judged as if they were not there."""
    lists = [(workload.spec, "containers", True), (workload.spec, "initContainers", False)]
    lists.append((workload.spec, "volumes", False))
    for _, container in workload.containers():
        lists += [(container, name, False) for name in ("env", "envFrom", "volumeMounts", "ports")]
    for holder, name, needed in lists:
        value = holder.get(name)
        if value is None and not needed:
            continue
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            yield Fault.DOCUMENT_INVALID.at(workload.where, f"has {name} that are no list of mappings", _SHAPE)
    for _, container in workload.containers():
        for entry in map(mapping, sequence(container.get("env"))):
            if not isinstance(entry.get("value", ""), str) and entry["value"] is not None:
                yield Fault.DOCUMENT_INVALID.at(workload.where, "has a variable whose value is no text", _QUOTE)


_SHAPE: Final = "Compare it with kubectl explain pod.spec --recursive."
_QUOTE: Final = 'Put the value in quotes: "true", "5801".'
