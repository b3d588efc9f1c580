"""Which old versions may go: versioned, named by nothing that counts, old enough, not among the newest."""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from provider.outcomes import Refused
from provider.refs import InvalidRef, SecretRef
from provider.strictjson import Number, parse
from sidecar.publish.manifest import HASH
from sidecar.stores.references import References


@dataclass(frozen=True, slots=True)
class Judged:
    """One file: kept for `reason`, or to be dropped where that is None."""

    file_name: str
    ref: SecretRef | None
    written_ms: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class Drop:
    """What a plan wants dropped, as it stood when it was planned."""

    ref: SecretRef
    written_ms: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan that was read back."""

    root: str
    drops: tuple[Drop, ...]


class BadPlan(Exception):
    """The document is no plan of ours."""


def judge(
    named: References, files: Mapping[str, int], now_ms: int, keep_for_ms: int, keep_versions: int
) -> list[Judged]:
    """Judge every file that is named by hash, by project, name and version; `files` maps names to times of writing."""
    versions: dict[tuple[str, str], list[int]] = defaultdict(list)
    for name in files:
        known = named.named.get(name)
        if known is not None and known.ref.version is not None:
            versions[(known.ref.project_id, known.ref.name)].append(known.ref.version)
    newest = {key: set(sorted(found)[-keep_versions:] if keep_versions else ()) for key, found in versions.items()}
    judged = []
    for name, written_ms in files.items():
        if not HASH.fullmatch(name):
            continue
        known = named.named.get(name)
        ref = None if known is None else known.ref
        reason = _reason(named, name, newest)
        if reason is None and now_ms - written_ms < keep_for_ms:
            reason = "younger than --keep-for"
        judged.append(Judged(name, ref, written_ms, reason))
    return sorted(judged, key=_order)


def _reason(named: References, name: str, newest: Mapping[tuple[str, str], set[int]]) -> str | None:
    """Why a file stays whatever its age is."""
    known = named.named.get(name)
    if known is None:
        return "no revision names it, so its ref is not known"
    if known.live:
        return "named by a live run"
    if known.startable:
        return "named by the newest revision of a task"
    if known.ref.version is None:
        return "it has no version"
    if named.lost:
        return "the revision of a live run is lost, so nobody can tell what it names"
    if known.ref.version in newest[(known.ref.project_id, known.ref.name)]:
        return "among the newest versions (--keep-versions)"
    return None


def _order(judged: Judged) -> tuple[bool, str, str, int, str]:
    ref = judged.ref
    if ref is None:
        return True, "", "", 0, judged.file_name
    return False, ref.project_id, ref.name, ref.version or 0, judged.file_name


def written(root: str, judged: list[Judged], now_ms: int, keep_for_ms: int, keep_versions: int) -> bytes:
    """Return a plan as JSON."""
    document = {
        "schemaVersion": 1,
        "root": root,
        "plannedAtMs": now_ms,
        "keepForMs": keep_for_ms,
        "keepVersions": keep_versions,
        "drop": [_document(one) for one in judged if one.reason is None],
        "keep": [_document(one) | {"reason": one.reason} for one in judged if one.reason is not None],
    }
    return (json.dumps(document, ensure_ascii=False, indent=2) + "\n").encode()


def _document(judged: Judged) -> dict[str, object]:
    ref = None if judged.ref is None else judged.ref.text
    return {"fileName": judged.file_name, "ref": ref, "writtenAtMs": judged.written_ms}


def read(content: bytes) -> Plan:
    """Read a plan back. Raises BadPlan unless every drop is a versioned ref of its file name."""
    try:
        document = parse(content)
    except Refused:
        raise BadPlan from None
    if not isinstance(document, dict) or document.get("schemaVersion") != Number("1"):
        raise BadPlan
    root, drops = document.get("root"), document.get("drop")
    if not isinstance(root, str) or not isinstance(drops, list):
        raise BadPlan
    return Plan(root, tuple(_drop(entry) for entry in drops))


def _drop(entry: object) -> Drop:
    if not isinstance(entry, dict):
        raise BadPlan
    text, at_ms = entry.get("ref"), entry.get("writtenAtMs")
    if not isinstance(text, str) or not isinstance(at_ms, Number) or not at_ms.lexeme.isdigit():
        raise BadPlan
    try:
        ref = SecretRef.parse(text)
    except InvalidRef:
        raise BadPlan from None
    if ref.version is None or ref.file_name != entry.get("fileName"):
        raise BadPlan
    return Drop(ref, int(at_ms.lexeme))
