"""Rendered manifests as documents, each by file and number. What cannot be read is reported, the rest still read."""

import json
import re
import sys
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from sidecar.audit.codes import Fault
from sidecar.cli.common import Exit
from sidecar.cli.common import Fault as Unreadable
from sidecar.findings import Finding

FILE_BYTES: Final = 8 << 20
"""Largest file that is read: more than any cluster would take."""
DEPTH: Final = 64
"""Deepest nesting of a document; manifests need a third of it, and a recursive parser should not be put to the test."""
NODES: Final = 1 << 20
"""Most values of a document, those that it refers to counted each time."""
MERGED: Final = 1000
"""Most keys that a mapping has after others were merged into it."""
SUFFIXES: Final = (".yaml", ".yml", ".json")
# A document may begin on the line of its boundary.
_BOUNDARY: Final = re.compile(r"^---(?=[ \t\r]|$)[ \t]*(?:#.*)?", re.MULTILINE)
_CONTENT: Final = re.compile(r"^\s*[^\s#%]", re.MULTILINE)
"""A line that is neither empty nor a comment nor a directive."""
_REFUSED: Final = (yaml.YAMLError, ValueError, RecursionError, LookupError, TypeError, AttributeError)
"""What the parser raises; the last three where a tag does not fit its value."""
_RENDER: Final = "Audit what is applied: kubectl kustomize DIRECTORY | secret-sidecar audit k8s -"
_CORE: Final = frozenset(
    {
        *("ConfigMap", "Endpoints", "LimitRange", "Namespace", "Node", "PersistentVolume", "PersistentVolumeClaim"),
        *("Pod", "PodTemplate", "ReplicationController", "ResourceQuota", "Secret", "Service", "ServiceAccount"),
    }
)
_GROUPS: Final = frozenset({"apps", "autoscaling", "batch", "extensions", "policy"})
_CUSTOM: Final = frozenset(
    {
        ("secrets-store.csi.x-k8s.io", "SecretProviderClass"),
        ("monitoring.coreos.com", "ServiceMonitor"),
        ("monitoring.coreos.com", "PodMonitor"),
        ("monitoring.coreos.com", "PrometheusRule"),
        ("external-secrets.io", "ExternalSecret"),
    }
)
"""Custom kinds that belong to a deployment of ours."""

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Document:
    """One object. `where` names its file and number, never its content."""

    where: str
    body: Manifest

    @property
    def kind(self) -> str:
        """Its kind."""
        return str(self.body["kind"])

    @property
    def name(self) -> str:
        """Its name, empty when it has none."""
        return str(mapping(self.body.get("metadata")).get("name", ""))

    @property
    def namespace(self) -> str:
        """Its namespace; `default` when it names none."""
        return str(mapping(self.body.get("metadata")).get("namespace") or "default")


def mapping(value: object) -> Manifest:
    """The value when it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def sequence(value: object) -> list[Any]:
    """The value when it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def read_path(path: str) -> tuple[list[Document], list[Finding]]:
    """Read a file, all manifests below a directory, or standard input for `-`. Raises the CLI's Fault(BAD_INPUT)."""
    documents: list[Document] = []
    findings: list[Finding] = []
    for name, text in _texts(path):
        found, faults = read_text(name, text) if isinstance(text, str) else ([], [text])
        documents += found
        findings += faults
    return documents, findings


def read_text(name: str, text: str) -> tuple[list[Document], list[Finding]]:
    """Read the documents of one text. Lists are taken apart; what is no object becomes a finding."""
    documents: list[Document] = []
    findings: list[Finding] = []
    # A boundary stands at the beginning of a line even inside a block of text, so a broken document ends where it ends.
    parts = [part for part in _BOUNDARY.split(text) if _CONTENT.search(part)]
    for number, part in enumerate(parts, 1):
        where = f"{name}#{number}"
        try:
            body = _parse(part)
        except _REFUSED as error:
            findings.append(Fault.DOCUMENT_INVALID.at(where, f"is no YAML document{_line(error)}", _RENDER))
            continue
        for place, item in _items(where, body):
            fault = _judge(place, item)
            if fault is not None:
                findings.append(fault)
            if fault is None or fault.severity == "info":
                documents.append(Document(place, item))
    return documents, findings


def _texts(path: str) -> Iterator[tuple[str, str | Finding]]:
    """Each file's name and text; a file of a folder that cannot be read is a finding, and the others are read."""
    given = Path(path)
    if path == "-":
        yield "-", _decoded("-", sys.stdin.buffer.read(FILE_BYTES + 1))
    elif not given.is_dir():
        yield path, _read(given)
    else:
        for file in sorted(each for each in given.rglob("*") if each.suffix in SUFFIXES and each.is_file()):
            try:
                yield str(file), _read(file)
            except Unreadable as why:
                cause = f"was not read: {why.wrong.removesuffix('.')}"
                yield str(file), Fault.DOCUMENT_INVALID.at(str(file), cause, why.mend)


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            content = opened.read(FILE_BYTES + 1)
    except OSError as error:
        wrong = f"A manifest could not be read ({error.strerror})."
        raise Unreadable(Exit.BAD_INPUT, wrong, "Check its name and rights.") from None
    return _decoded(str(file), content)


def _decoded(name: str, content: bytes) -> str:
    if len(content) > FILE_BYTES:
        raise Unreadable(Exit.BAD_INPUT, f"{name} is too large.", f"A file may have at most {FILE_BYTES} bytes.")
    # What is not UTF-8 becomes a character that YAML refuses: one document is lost, not the audit.
    return content.decode("utf-8-sig", "replace").replace("\N{REPLACEMENT CHARACTER}", "\0")


def _loader(base: Any) -> Any:
    """A loader on the parser of `base`, yaml.CSafeLoader or its twin in Python, which is eight times slower."""

    class Loader(base):  # type: ignore[misc]  # PyYAML bears no types
        """Plain data only, and no key twice: the cluster would refuse it, or take the last."""

        def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
            """As the parser, down to a bounded depth; the one in C has a bound of its own."""
            self.levels = getattr(self, "levels", 0) + 1
            if self.levels > DEPTH:
                raise ValueError("depth")
            try:
                node: yaml.Node | None = super().compose_node(parent, index)
            finally:
                self.levels -= 1
            return node

        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            """As the parser; what is merged is copied, so up to a bound."""
            before = len(node.value)
            super().flatten_mapping(node)
            if len(node.value) > max(before, MERGED):
                raise ValueError("size")

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
            """As the parser, with every key a text and none twice."""
            keys = [key.value for key, _ in node.value]
            if len(set(map(str, keys))) != len(keys):
                raise ValueError("key")
            made: dict[Hashable, Any] = super().construct_mapping(node, deep)
            return {str(key): value for key, value in made.items()}

    # A lone `=` is a value like any other; YAML 1.1 has a type for it that nobody uses.
    Loader.add_constructor("tag:yaml.org,2002:value", lambda loader, node: str(node.value))
    # And what looks like a date is a text to the cluster.
    Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: str(node.value))
    return Loader


_LOADER: Final = _loader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader)


def _parse(text: str) -> object:
    body = _loaded(text)
    if _weight(body, {}, 0) > NODES:
        raise ValueError("size")
    return body


def _loaded(text: str) -> object:
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text, object_pairs_hook=_once)
        except ValueError:
            pass  # YAML has such mappings, too, and its parser says better what is wrong
    return yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe loader, with less than the safe one's


def _once(pairs: list[tuple[str, Any]]) -> Manifest:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("key")
    return made


def _weight(value: object, known: dict[int, int], depth: int) -> int:
    """How many values there are with every reference followed; what refers to itself has no end, and no weight."""
    if depth > DEPTH:
        raise ValueError("depth")
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        within = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_weight(each, known, depth + 1) for each in within)
    return known[id(value)]


def _line(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        return f" (line {mark.line + 1} of it)"
    named = {"size": "it is too large", "depth": "it is nested too deep", "key": "a key stands twice"}
    reason = named.get(str(error))
    return "" if reason is None else f" ({reason})"


def _items(where: str, body: object) -> Iterator[tuple[str, Any]]:
    if isinstance(body, dict) and str(body.get("kind", "")).endswith("List") and isinstance(body.get("items"), list):
        for index, item in enumerate(body["items"], 1):
            yield from _items(f"{where}.{index}", item)
    else:
        yield where, body


def _judge(where: str, body: object) -> Finding | None:
    if not isinstance(body, dict) or not all(isinstance(body.get(key), str) for key in ("apiVersion", "kind")):
        return Fault.DOCUMENT_INVALID.at(where, "is no object with apiVersion and kind", _RENDER)
    group, _, _ = body["apiVersion"].rpartition("/")
    kind = body["kind"]
    if group == "kustomize.config.k8s.io":
        return Fault.DOCUMENT_INVALID.at(where, "is a kustomization, not what it renders to", _RENDER)
    builtin = kind in _CORE if not group else group in _GROUPS or group.endswith(".k8s.io")
    if builtin or (group, kind) in _CUSTOM:
        return None
    return Fault.DOCUMENT_INVALID.at(
        where, "is of a kind that is not known here", "Look at it yourself: it was passed over.", "info"
    )
