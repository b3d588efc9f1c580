"""Plans that the embedded control plane writes, and their digest (contract 6.5).

A plan is stored as canonical JSON: keys sorted, no white space, UTF-8. Its digest is the lower-case hex SHA-256 of that
text, so anybody can compute it again from the row. QL3 digests its plans in its own way; `verify` trusts either.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from provider.limits import NAME_CHARACTERS, SECRET_REFS
from provider.refs import CHARACTER, InvalidRef, SecretRef

PLAN_SCHEMA: Final = "qinglong/command-execution@v1"
VARIABLES: Final = 256
"""Variables of a plan made here, so that its offer stays below what a worker reads; several may share a ref."""
_COMMAND: Final = {"kind": "argv", "file": "/bin/true", "args": []}
_VARIABLE: Final = re.compile(f"[A-Za-z_][A-Za-z0-9_]{{0,{NAME_CHARACTERS - 1}}}")
_ID: Final = re.compile(f"{CHARACTER}{{1,{NAME_CHARACTERS}}}")


class PlanFaults(Exception):
    """What was asked for makes no plan. `faults` lists everything that is wrong, one line each, without a ref."""

    def __init__(self, faults: Sequence[str]) -> None:
        """Raise for these faults; there is at least one."""
        super().__init__()
        self.faults = tuple(faults)


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """A plan that `verify` will find without fault. `environment` pairs each variable's name with its ref, in order."""

    project_id: str
    task_id: str
    environment: tuple[tuple[str, SecretRef], ...]
    bundle: SecretRef | None

    @property
    def text(self) -> str:
        """The plan as it is stored."""
        entries = [{"name": name, "kind": "secret", "secretRef": ref.text} for name, ref in self.environment]
        plan: dict[str, object] = {"command": _COMMAND, "environment": entries}
        if self.bundle is not None:
            plan["environmentBundleRef"] = self.bundle.text
        return json.dumps(plan, sort_keys=True, ensure_ascii=False, separators=(",", ":"))

    @property
    def digest(self) -> str:
        """The digest of the text, which is also the request's `executionDigest`."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def refs(self) -> tuple[SecretRef, ...]:
        """The refs in plan order, first occurrence only: what a worker has to ask for."""
        return tuple(dict.fromkeys(ref for _, ref in self.environment))


def make_plan(project_id: str, task_id: str, secrets: Sequence[str], bundle: str | None) -> Plan:
    """Read `NAME=REF` items and a bundle ref. Raises PlanFaults with every fault at once."""
    faults = [
        f"the {kind} must be 1 to {NAME_CHARACTERS} characters and bytes, none of them a control character"
        for kind, text in (("project", project_id), ("task", task_id))
        if _ID.fullmatch(text) is None or len(text.encode(errors="replace")) > NAME_CHARACTERS
    ]
    environment: list[tuple[str, SecretRef]] = []
    names: set[str] = set()
    for number, item in enumerate(secrets, start=1):
        name, equals, text = item.partition("=")
        known = bool(equals) and _VARIABLE.fullmatch(name) is not None
        # What has no name before a `=` may be a value that slipped in, so it is not shown.
        where = f"secret {number} ({name})" if known else f"secret {number}"
        if not known:
            faults.append(f"{where}: must be NAME=REF, the name of letters, digits and _, not beginning with a digit")
            continue
        if name in names:
            faults.append(f"{where}: the name is given twice")
        names.add(name)
        ref = _ref(text, where, project_id, faults)
        if ref is not None:
            environment.append((name, ref))
    bundle_ref = None if bundle is None else _ref(bundle, "bundle", project_id, faults)
    if bundle_ref is not None and bundle_ref.version is None:
        faults.append("bundle: the ref must have a version")
    plan = Plan(project_id, task_id, tuple(environment), bundle_ref)
    if bundle_ref is not None and bundle_ref in plan.refs:
        faults.append("bundle: the ref is among the secrets too")
    if len(plan.refs) > SECRET_REFS:
        faults.append(f"secrets: more than {SECRET_REFS} different refs")
    if len(environment) > VARIABLES:
        faults.append(f"secrets: more than {VARIABLES} variables")
    if not secrets and bundle is None:
        faults.append("secrets: at least one secret or a bundle is needed")
    if faults:
        raise PlanFaults(faults)
    return plan


def _ref(text: str, where: str, project_id: str, faults: list[str]) -> SecretRef | None:
    try:
        ref = SecretRef.parse(text)
    except InvalidRef:
        faults.append(f"{where}: no canonical SecretRef; `secret-sidecar ref encode` writes one")
        return None
    if ref.project_id != project_id:
        faults.append(f"{where}: the ref is of another project")
    return ref
