"""The execution plan: which secrets an attempt is to have (contract 6, steps 4 and 5).

Only the refs are taken from it. Whatever is not as the contract says makes the whole plan unusable.
"""

import json
from collections.abc import Iterable
from typing import Final, NoReturn

from provider import limits
from provider.outcomes import Reason, Refused
from provider.refs import InvalidRef, SecretRef
from provider.snapshot import Revision

PLAN_SCHEMA: Final = "qinglong/command-execution@v1"
_PLAN_REQUIRED: Final = frozenset(("command", "environment"))
_PLAN_KEYS: Final = _PLAN_REQUIRED | {"environmentBundleRef", "placement", "timeoutMs", "workingDirectory"}
_PUBLIC_KEYS: Final = frozenset(("name", "kind", "value"))
_SECRET_KEYS: Final = frozenset(("name", "kind", "secretRef"))


def plan_refs(
    revision: Revision, project_id: str, known: Iterable[SecretRef] = ()
) -> tuple[tuple[SecretRef, ...], tuple[SecretRef, ...]]:
    """Return the plan's secret refs in stored order, first occurrence only, and its bundle ref.

    `known` are refs that were parsed already: a text among theirs is not parsed again. Raises
    `Refused(AUTHORITY_STORE)` for every fault of contract 6.5: the store then has no usable answer.
    """
    try:
        return _refs(revision, project_id, {ref.text: ref for ref in known})
    except (ValueError, RecursionError):
        refused = Refused(Reason.AUTHORITY_STORE)
    raise refused  # outside the handler, as its context would be an exception that holds the plan


def _refs(
    revision: Revision, project_id: str, known: dict[str, SecretRef]
) -> tuple[tuple[SecretRef, ...], tuple[SecretRef, ...]]:
    """The same, with a ValueError (InvalidRef is one) or a RecursionError for each fault."""
    if revision.plan_schema != PLAN_SCHEMA or not isinstance(revision.plan_json, str):
        raise ValueError
    plan = _PLAN.decode(revision.plan_json)
    if not isinstance(plan, dict) or not _PLAN_REQUIRED <= plan.keys() <= _PLAN_KEYS:
        raise ValueError
    secret_refs = _environment_refs(plan["environment"], known)
    bundle_refs = (_ref(plan["environmentBundleRef"], known),) if "environmentBundleRef" in plan else ()
    if any(ref.project_id != project_id for ref in secret_refs + bundle_refs):
        raise ValueError
    if any(ref.version is None for ref in bundle_refs) or len(secret_refs) > limits.SECRET_REFS:
        raise ValueError
    return secret_refs, bundle_refs


def _ref(text: object, known: dict[str, SecretRef]) -> SecretRef:
    if not isinstance(text, str):
        raise InvalidRef
    return known.get(text) or SecretRef.parse(text)


def _environment_refs(environment: object, known: dict[str, SecretRef]) -> tuple[SecretRef, ...]:
    if not isinstance(environment, list):
        raise ValueError
    names: set[str] = set()
    refs: dict[str, SecretRef] = {}
    for entry in environment:
        if not isinstance(entry, dict):
            raise ValueError
        name, kind = entry.get("name"), entry.get("kind")
        if not isinstance(name, str) or name in names:
            raise ValueError
        names.add(name)
        if kind == "secret" and entry.keys() == _SECRET_KEYS:
            ref = _ref(entry["secretRef"], known)
            refs[ref.text] = ref
        elif kind != "public" or entry.keys() != _PUBLIC_KEYS:
            raise ValueError
    return tuple(refs.values())


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError
    return found


def _no_constant(_: str) -> NoReturn:
    raise ValueError


# PostgreSQL's jsonb has dropped repeated keys already; a SQLite text that holds one is malformed.
_PLAN: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
