"""Rules of the variables: no credential in sight, none unknown, ingress and provider in use (contract 8)."""

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from sidecar.audit.codes import Fault
from sidecar.audit.documents import mapping, sequence
from sidecar.audit.patches import Step, drop, patch, put
from sidecar.audit.rules_values import INGRESS_SECRET, ROOT_VARIABLE, USUAL_ROOT
from sidecar.audit.world import STORE_KIND, Sidecar
from sidecar.findings import Finding
from sidecar.reading import is_service_link
from sidecar.variables import BY_NAME, CREDENTIAL, ENABLED, LOGIN, OWN_PREFIXES, PROFILE, PROVIDING, VAULT_PREFIX

_KEYS: Final = {
    f"{CREDENTIAL}PEPPER": "pepper",
    f"{LOGIN}PASSWORD": "database-password",
    f"{LOGIN}URL": "database-url",
}
_WANTED: Final = (
    (PROFILE, ("cluster-control",), "cluster-control"),
    (ENABLED, ("true",), "true"),
    (f"{PROVIDING}PROVIDER", ("mounted-files",), "mounted-files"),
    (STORE_KIND, ("sqlite", "postgres"), "postgres"),
)


def judge(sidecar: Sidecar) -> Iterator[Finding]:
    """Judge the variables of a sidecar."""
    for name, key in _KEYS.items():
        text = sidecar.values.get(name)
        if text and (key != "database-url" or _bears_password(text)):
            reference = {"name": name, "valueFrom": {"secretKeyRef": {"name": INGRESS_SECRET, "key": key}}}
            cause = f"has {name} as plain text in the manifest; what stood there is to be replaced, not only moved"
            mend = patch(sidecar.document, put(sidecar.document, _entry(sidecar, name), reference))
            yield Fault.INLINE_CREDENTIAL.at(sidecar.where, cause, mend)
    if not sidecar.values:
        entries = [{"name": name, "value": usual} for name, _, usual in _WANTED]
        entries.append({"name": ROOT_VARIABLE, "value": USUAL_ROOT})
        cause = "serves nothing: it has no variables; k8s/base/deployment.yaml shows all that it needs"
        mend = patch(sidecar.document, put(sidecar.document, sidecar.steps("env"), entries))
        yield Fault.PROVIDER.at(sidecar.where, cause, mend)
        return
    for name, good, usual in _WANTED:
        if name in sidecar.values and sidecar.values[name] is None:
            continue
        if sidecar.text(name) not in good:
            cause = f"serves nothing: {name} is not {' or '.join(good)}"
            entry = {"name": name, "value": usual}
            mend = patch(sidecar.document, put(sidecar.document, _entry(sidecar, name), entry))
            yield Fault.PROVIDER.at(sidecar.where, cause, mend)
    for name, value in sidecar.values.items():
        if name.startswith(OWN_PREFIXES) and name not in BY_NAME and not is_service_link(name, value or ""):
            vault = name.startswith(VAULT_PREFIX)
            cause = f"sets {name}, which {'belongs to a provider that is not offered' if vault else 'does not exist'}"
            yield Fault.UNKNOWN_VARIABLE.at(sidecar.where, f"{cause}: serve refuses to start", _without(sidecar, name))


def _bears_password(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return True
    return parts.password is not None or "password" in parts.query


def _env(sidecar: Sidecar) -> list[Any]:
    return sequence(sidecar.container.get("env"))


def _index(sidecar: Sidecar, name: str) -> int | None:
    # The last one of a name counts.
    found = [index for index, each in enumerate(_env(sidecar)) if str(mapping(each).get("name")) == name]
    return found[-1] if found else None


def _entry(sidecar: Sidecar, name: str) -> list[Step]:
    index = _index(sidecar, name)
    return sidecar.steps("env", "-" if index is None else index)


def _without(sidecar: Sidecar, name: str) -> str:
    index = _index(sidecar, name)
    if index is None:
        return f"Remove {name} from the ConfigMap that the container takes its variables from."
    return patch(sidecar.document, drop(sidecar.steps("env", index)))
