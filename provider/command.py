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

_ATTEMPT_ID: Final = re.compile(f"{CHARACTER}{{1,{ATTEMPT_ID_CHARACTERS}}}")
_NAME: Final = re.compile(f"{CHARACTER}{{1,{NAME_CHARACTERS}}}")
_DIGEST: Final = re.compile("[0-9a-f]{64}")
_LEASE_TOKEN: Final = re.compile("[A-Za-z0-9_-]{32,128}")
_INTEGER: Final = re.compile("0|[1-9][0-9]{0,9}")


def parse_command(document: object) -> Command:
    """Read a command out of what `strictjson.parse` gave. Raises Refused(COMMAND) for anything else (contract 2)."""
    if type(document) is not dict:
        raise Refused(Reason.COMMAND)
    schema, keys = _form(document.get("schema"))
    if document.keys() != keys:
        raise Refused(Reason.COMMAND)
    project_id = _text(document["projectId"], _NAME)
    secret_refs = _refs(document["secretRefs"], project_id, SECRET_REFS)
    bundle_refs = _refs(document.get("environmentBundleRefs", []), project_id, BUNDLE_REFS)
    if not secret_refs and not bundle_refs:  # so `@v1`, which has no bundle, has at least one secret ref
        raise Refused(Reason.COMMAND)
    if any(ref.version is None or ref in secret_refs for ref in bundle_refs):
        raise Refused(Reason.COMMAND)
    return Command(
        schema=schema,
        run_id=_text(document["runId"], _ATTEMPT_ID),
        attempt_id=_text(document["attemptId"], _ATTEMPT_ID),
        offer_id=_text(document["offerId"], _NAME),
        project_id=project_id,
        task_id=_text(document["taskId"], _NAME),
        task_revision=_task_revision(document["taskRevision"]),
        execution_digest=_text(document["executionDigest"], _DIGEST),
        worker_generation=_integer(document["workerGeneration"], 1),
        lease_generation=_integer(document["leaseGeneration"], 1),
        expected_lease_version=_integer(document["expectedLeaseVersion"], 0),
        lease_token_digest=hashlib.sha256(_text(document["leaseToken"], _LEASE_TOKEN).encode()).hexdigest(),
        secret_refs=secret_refs,
        bundle_refs=bundle_refs,
    )


def _form(schema: object) -> tuple[Schema, frozenset[str]]:
    """The schema of that name and its exact keys."""
    form = _FORMS.get(schema) if type(schema) is str else None
    if form is None:
        raise Refused(Reason.COMMAND)
    return form


def _text(value: object, pattern: re.Pattern[str]) -> str:
    if type(value) is not str or pattern.fullmatch(value) is None:
        raise Refused(Reason.COMMAND)
    return value


def _task_revision(value: object) -> str:
    """The one field that is bounded in bytes."""
    text = _text(value, _NAME)
    if len(text.encode()) > NAME_CHARACTERS:
        raise Refused(Reason.COMMAND)
    return text


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
