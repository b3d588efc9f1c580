"""The secret delivery command (contract 2): a parsed JSON document becomes a Command, or is refused.

Both schemas are accepted side by side, dispatched by one table. The lease token is hashed here and kept nowhere.
"""

import hashlib
import re
from dataclasses import dataclass, field
from enum import Enum, unique
from typing import Final

from provider.limits import ATTEMPT_ID_CHARACTERS, BUNDLE_REFS, NAME_CHARACTERS, SECRET_REFS, VERSION_MAX
from provider.outcomes import Reason, Refused
from provider.refs import CHARACTER, InvalidRef, SecretRef
from provider.strictjson import Number


@unique
class Schema(Enum):
    """The schemas a command may name; each is answered in its own."""

    V1 = "qinglong/remote-secret-delivery@v1"
    V2 = "qinglong/remote-secret-delivery@v2"


@dataclass(frozen=True, slots=True)
class Command:
    """What a worker asks for and the fences it claims. Every field is within the contract's bounds, none is believed.

    `lease_token_digest` is the lower-case hex SHA-256 of the lease token. `secret_refs` and `bundle_refs` are all of
    `project_id`, without repeats, and not both empty; a bundle ref has a version.
    """

    schema: Schema
    run_id: str
    attempt_id: str
    offer_id: str
    project_id: str
    task_id: str
    task_revision: str
    execution_digest: str
    worker_generation: int
    lease_generation: int
    expected_lease_version: int
    lease_token_digest: str = field(repr=False)
    secret_refs: tuple[SecretRef, ...]
    bundle_refs: tuple[SecretRef, ...]


_KEYS_V1: Final = frozenset(
    {
        "schema",
        "runId",
        "attemptId",
        "offerId",
        "projectId",
        "taskId",
        "taskRevision",
        "executionDigest",
        "workerGeneration",
        "leaseGeneration",
        "expectedLeaseVersion",
        "leaseToken",
        "secretRefs",
    }
)
_FORMS: Final = {
    Schema.V1.value: (Schema.V1, _KEYS_V1),
    Schema.V2.value: (Schema.V2, _KEYS_V1 | {"environmentBundleRefs"}),
}

_ATTEMPT_ID: Final = f"{CHARACTER}{{1,{ATTEMPT_ID_CHARACTERS}}}+"
_NAME: Final = f"{CHARACTER}{{1,{NAME_CHARACTERS}}}+"
_FIELDS: Final = {
    "runId": _ATTEMPT_ID,
    "attemptId": _ATTEMPT_ID,
    "offerId": _NAME,
    "projectId": _NAME,
    "taskId": _NAME,
    "taskRevision": _NAME,
    "executionDigest": "[0-9a-f]{64}",
    "leaseToken": "[A-Za-z0-9_-]{32,128}+",
}
# No field may hold a line feed, so it can stand between them and all are judged at once.
_TASK_REVISION: Final = list(_FIELDS).index("taskRevision")
_TEXTS: Final = re.compile("\n".join(_FIELDS.values()))
_INTEGER: Final = re.compile("0|[1-9][0-9]{0,9}")


def parse_command(document: object) -> Command:
    """Read a command out of what `strictjson.parse` gave. Raises Refused(COMMAND) for anything else (contract 2)."""
    if type(document) is not dict:
        raise Refused(Reason.COMMAND)
    schema, keys = _form(document.get("schema"))
    if document.keys() != keys:
        raise Refused(Reason.COMMAND)
    run_id, attempt_id, offer_id, project_id, task_id, task_revision, execution_digest, lease_token = _texts(document)
    secret_refs = _refs(document["secretRefs"], project_id, SECRET_REFS)
    bundle_refs = _refs(document.get("environmentBundleRefs", []), project_id, BUNDLE_REFS)
    if not secret_refs and not bundle_refs:  # so `@v1`, which has no bundle, has at least one secret ref
        raise Refused(Reason.COMMAND)
    if any(ref.version is None or ref in secret_refs for ref in bundle_refs):
        raise Refused(Reason.COMMAND)
    return Command(
        schema=schema,
        run_id=run_id,
        attempt_id=attempt_id,
        offer_id=offer_id,
        project_id=project_id,
        task_id=task_id,
        task_revision=task_revision,
        execution_digest=execution_digest,
        worker_generation=_integer(document["workerGeneration"], 1),
        lease_generation=_integer(document["leaseGeneration"], 1),
        expected_lease_version=_integer(document["expectedLeaseVersion"], 0),
        lease_token_digest=hashlib.sha256(lease_token.encode()).hexdigest(),
        secret_refs=secret_refs,
        bundle_refs=bundle_refs,
    )


def _form(schema: object) -> tuple[Schema, frozenset[str]]:
    """The schema of that name and its exact keys."""
    form = _FORMS.get(schema) if type(schema) is str else None
    if form is None:
        raise Refused(Reason.COMMAND)
    return form


def _texts(document: dict[str, object]) -> list[str]:
    """The fields that are text, in the order of `_FIELDS`."""
    texts = [value for value in map(document.__getitem__, _FIELDS) if type(value) is str]
    if len(texts) != len(_FIELDS) or _TEXTS.fullmatch("\n".join(texts)) is None:
        raise Refused(Reason.COMMAND)
    if len(texts[_TASK_REVISION].encode()) > NAME_CHARACTERS:  # the one field that is bounded in bytes
        raise Refused(Reason.COMMAND)
    return texts


def _integer(value: object, low: int) -> int:
    if type(value) is not Number or _INTEGER.fullmatch(value.lexeme) is None:
        raise Refused(Reason.COMMAND)
    number = int(value.lexeme)
    if not low <= number <= VERSION_MAX:
        raise Refused(Reason.COMMAND)
    return number


def _refs(value: object, project_id: str, most: int) -> tuple[SecretRef, ...]:
    """Canonical refs of the project, at most `most` of them, none twice."""
    if type(value) is not list or len(value) > most:
        raise Refused(Reason.COMMAND)
    try:
        refs = tuple(map(SecretRef.parse, value))
    except InvalidRef:
        raise Refused(Reason.COMMAND) from None
    if len(set(refs)) != len(refs) or any(ref.project_id != project_id for ref in refs):
        raise Refused(Reason.COMMAND)
    return refs
