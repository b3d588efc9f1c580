"""Rules of the root and the files: where they are mounted, from what, with which mode, for whom (contract 10)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from sidecar.audit.codes import Fault
from sidecar.audit.documents import Document, Manifest, mapping, sequence
from sidecar.audit.patches import Step, drop, patch, put
from sidecar.audit.world import Sidecar, World
from sidecar.findings import Finding
from sidecar.variable_rules import ROOT

ROOT_VARIABLE: Final = "QL3_WORKER_SECRET_ROOT_DIRECTORY"
USUAL_ROOT: Final = "/var/run/secrets/qinglong3/worker-values"
VALUES_SECRET: Final = "ql3-cluster-worker-values"  # noqa: S105 - a name
INGRESS_SECRET: Final = "ql3-cluster-worker-ingress"  # noqa: S105 - a name
MODES: Final = (0o440, 0o400)
_INJECT: Final = "vault.hashicorp.com/agent-inject"
_READER: Final = 10001


@dataclass(frozen=True, slots=True)
class _Mounted:
    """A mount of ours and its volume, each with its steps."""

    at: list[Step]
    mount: Manifest
    volume_at: list[Step]
    volume: Manifest
    holds_values: bool

    @property
    def secrets(self) -> Iterator[tuple[list[Step], str, Manifest]]:
        """Each Secret in the volume: steps, name, source."""
        secret = self.volume.get("secret")
        if secret is not None:
            yield [*self.volume_at, "secret"], str(mapping(secret).get("secretName")), mapping(secret)
        for index, source in enumerate(sequence(mapping(self.volume.get("projected")).get("sources"))):
            inner = mapping(source).get("secret")
            if inner is not None:
                steps = [*self.volume_at, "projected", "sources", index, "secret"]
                yield steps, str(mapping(inner).get("name")), mapping(inner)

    @property
    def kind(self) -> str | None:
        """The kind of volume whose mode matters: `secret` or `projected`."""
        return next((kind for kind in ("secret", "projected") if kind in self.volume), None)


def judge(sidecar: Sidecar, world: World) -> Iterator[Finding]:
    """Judge root, mounts and volumes of a sidecar."""
    if sidecar.text("QL3_WORKER_SECRET_PROVIDER") == "disabled":
        root = None
    else:
        root = sidecar.text(ROOT_VARIABLE)
        yield from _root(sidecar, root)
    mounted = [each for each in _mounts(sidecar, root) if each.holds_values or _names_a_file(sidecar, each.mount)]
    for each in mounted:
        yield from _mount(sidecar, each)
        yield from _modes(sidecar, each)
        if each.holds_values and "csi" in each.volume:
            yield from _csi(sidecar, each, world)
    if root is not None:
        yield from _inside(sidecar, root)
    yield from _group(sidecar, mounted)
    yield from _merged(sidecar, mounted)
    yield from _injected(sidecar, root)


def _mounts(sidecar: Sidecar, root: str | None) -> Iterator[_Mounted]:
    for index, mount, volume_index, volume in sidecar.mounts():
        at = sidecar.steps("volumeMounts", index)
        volume_at = sidecar.workload.steps("volumes", volume_index)
        yield _Mounted(at, mount, volume_at, volume, root is not None and _path(mount) == root)


def _path(mount: Manifest) -> str:
    path = str(mount.get("mountPath", ""))
    return path.rstrip("/") or path


def _names_a_file(sidecar: Sidecar, mount: Manifest) -> bool:
    """Whether a file of the TLS identity, the pepper or the password is in it; the store's file is written."""
    files = [text for name, text in sidecar.values.items() if name.endswith("_FILE") and "AUTHORITY" not in name]
    return any(text is not None and text.startswith(_path(mount) + "/") for text in files)


def _root(sidecar: Sidecar, root: str | None) -> Iterator[Finding]:
    if not sidecar.values or (root is None and ROOT_VARIABLE in sidecar.values):
        return  # said by the rule of variables, or not to be known here
    if root is not None and ROOT.read(root) is not None:
        if any(_path(mount) == root for _, mount, _, _ in sidecar.mounts()):
            return
        cause = f"mounts nothing at {ROOT_VARIABLE}"
        mount = {"name": "worker-values", "mountPath": root, "readOnly": True}
        operations = [put(sidecar.document, sidecar.steps("volumeMounts", "-"), mount)]
        if not any(mapping(volume).get("name") == "worker-values" for volume in sidecar.volumes):
            secret = {"secretName": VALUES_SECRET, "optional": True, "defaultMode": 0o440}
            volume = {"name": "worker-values", "secret": secret}
            operations.append(put(sidecar.document, sidecar.workload.steps("volumes", "-"), volume))
        yield Fault.ROOT.at(sidecar.where, cause, patch(sidecar.document, *operations))
        return
    index = next((n for n, each in enumerate(_env(sidecar)) if mapping(each).get("name") == ROOT_VARIABLE), None)
    entry = {"name": ROOT_VARIABLE, "value": USUAL_ROOT}
    step: Step = "-" if index is None else index
    cause = f"has no {ROOT_VARIABLE} that is {ROOT.wants}"
    yield Fault.ROOT.at(
        sidecar.where, cause, patch(sidecar.document, put(sidecar.document, sidecar.steps("env", step), entry))
    )


def _env(sidecar: Sidecar) -> list[Any]:
    return sequence(sidecar.container.get("env"))


def _mount(sidecar: Sidecar, each: _Mounted) -> Iterator[Finding]:
    document, name = sidecar.document, str(each.mount.get("name"))
    for key in ("subPath", "subPathExpr"):
        if key in each.mount:
            cause = f"mounts {name} by {key}, which never sees a rotation"
            yield Fault.SUBPATH.at(sidecar.where, cause, patch(document, drop([*each.at, key])))
    if each.mount.get("readOnly") is not True:
        cause = f"mounts {name} so that it may be written"
        mend = patch(document, put(document, [*each.at, "readOnly"], True))
        yield Fault.NOT_READ_ONLY.at(sidecar.where, cause, mend)
    if "hostPath" in each.volume:
        cause = f"takes {name} from a directory of the node, which others write and which is on one node only"
        secret = VALUES_SECRET if each.holds_values else INGRESS_SECRET
        source = {"secretName": secret, "defaultMode": 0o440}
        operations = (drop([*each.volume_at, "hostPath"]), put(document, [*each.volume_at, "secret"], source))
        yield Fault.HOST_PATH.at(sidecar.where, cause, patch(document, *operations))
    if each.holds_values and "configMap" in each.volume:
        cause = "takes the values from a ConfigMap, which is no place for a secret; replace them, they have been seen"
        source = {"secretName": VALUES_SECRET, "optional": True, "defaultMode": 0o440}
        operations = (drop([*each.volume_at, "configMap"]), put(document, [*each.volume_at, "secret"], source))
        yield Fault.ROOT.at(sidecar.where, cause, patch(document, *operations))
    if each.holds_values:
        for steps, secret, source in each.secrets:
            if "items" in source:
                cause = f"takes chosen keys of the Secret {secret}: a new one never shows"
                yield Fault.ITEMS.at(sidecar.where, cause, patch(document, drop([*steps, "items"])))


def _inside(sidecar: Sidecar, root: str) -> Iterator[Finding]:
    """A mount inside the root: what lies there is another file system, and is refused."""
    for index, mount in reversed(list(enumerate(map(mapping, sequence(sidecar.container.get("volumeMounts")))))):
        if _path(mount).startswith(root + "/"):
            fault = Fault.SUBPATH if "subPath" in mount or "subPathExpr" in mount else Fault.ROOT
            cause = f"mounts {mount.get('name')} inside the root, where it is refused"
            mend = patch(sidecar.document, drop(sidecar.steps("volumeMounts", index)))
            yield fault.at(sidecar.where, cause, mend)


def _modes(sidecar: Sidecar, each: _Mounted) -> Iterator[Finding]:
    kind = each.kind
    if kind is None:
        return
    mode = mapping(each.volume.get(kind)).get("defaultMode")
    wrong = mode is not None and _number(mode) not in MODES
    if mode is None or wrong:
        shown = "0644, the default" if mode is None else f"{_number(mode) & 0o7777:04o}"
        cause = f"gives the files of {each.volume.get('name')} the mode {shown}: such files are refused"
        mend = patch(sidecar.document, put(sidecar.document, [*each.volume_at, kind, "defaultMode"], 0o440))
        yield Fault.VALUES_MODE.at(sidecar.where, cause, mend)
    for steps, _, source in each.secrets:
        for index, item in enumerate(sequence(source.get("items"))):
            own = mapping(item).get("mode")
            if own is not None and _number(own) not in MODES:
                cause = f"gives a key of {each.volume.get('name')} a mode of its own, at which the file is refused"
                mend = patch(sidecar.document, drop([*steps, "items", index, "mode"]))
                yield Fault.VALUES_MODE.at(sidecar.where, cause, mend)


def _number(mode: object) -> int:
    """The mode as the cluster reads it; 0 for what is none."""
    if isinstance(mode, str) and mode.startswith("0o") and mode[2:].isdecimal() and len(mode) < 8:
        return int(mode[2:].translate(str.maketrans("89", "77")), 8)
    return mode if isinstance(mode, int) else 0


def _csi(sidecar: Sidecar, each: _Mounted, world: World) -> Iterator[Finding]:
    attributes = mapping(mapping(each.volume.get("csi")).get("volumeAttributes"))
    wanted = attributes.get("secretProviderClass")
    for document in world.of("SecretProviderClass", sidecar.document.namespace):
        objects = mapping(mapping(document.body.get("spec")).get("parameters")).get("objects")
        if document.name != wanted or not isinstance(objects, str):
            continue
        # Text inside a text: whole entries of it begin with a dash and their name.
        entries = objects.count("objectName:")
        if objects.count("filePermission:") < entries or not _all_allowed(objects):
            cause = "leaves files that everybody may read, or nobody: such files are refused"
            yield Fault.VALUES_MODE.at(
                f"{document.where} {document.kind}/{document.name}", cause, _permission(document, objects)
            )


def _all_allowed(objects: str) -> bool:
    lines = [line.split("filePermission:")[1] for line in objects.splitlines() if "filePermission:" in line]
    return all(line.strip().strip("\"'") in ("0440", "0400") for line in lines)


def _permission(document: Document, objects: str) -> str:
    # The provider for Vault reads a number, those for clouds read a text.
    mode = "0440" if mapping(document.body.get("spec")).get("provider") == "vault" else '"0440"'
    lines: list[str] = []
    for line in objects.splitlines():
        if "filePermission:" in line:
            continue
        lines.append(line)
        if "objectName:" in line:
            indent = " " * (len(line) - len(line.lstrip(" -")))
            lines.append(f"{indent}filePermission: {mode}")
    return patch(document, put(document, ["spec", "parameters", "objects"], "\n".join(lines) + "\n"))


def _group(sidecar: Sidecar, mounted: list[_Mounted]) -> Iterator[Finding]:
    security = mapping(sidecar.workload.spec.get("securityContext"))
    steps = sidecar.workload.steps("securityContext")
    if any(each.kind for each in mounted) and not isinstance(security.get("fsGroup"), int):
        cause = "has no fsGroup: the files of its Secrets belong to root alone"
        mend = patch(sidecar.document, put(sidecar.document, [*steps, "fsGroup"], _READER))
        yield Fault.GROUP_ACCESS.at(sidecar.where, cause, mend)
    groups = sequence(security.get("supplementalGroups"))
    if any(each.holds_values and "csi" in each.volume for each in mounted) and 0 not in groups:
        cause = "is not in the group 0, to which the files of a CSI driver belong whatever fsGroup says"
        mend = patch(sidecar.document, put(sidecar.document, [*steps, "supplementalGroups"], [*groups, 0]))
        yield Fault.GROUP_ACCESS.at(sidecar.where, cause, mend)


def _merged(sidecar: Sidecar, mounted: list[_Mounted]) -> Iterator[Finding]:
    values = [(steps, name) for each in mounted if each.holds_values for steps, name, _ in each.secrets]
    named = {name for each in mounted if not each.holds_values for _, name, _ in each.secrets}
    for entry in map(mapping, _env(sidecar)):
        named.add(str(mapping(mapping(entry.get("valueFrom")).get("secretKeyRef")).get("name")))
    if len(values) > 1:
        cause = "merges several Secrets into the root, which do not switch together"
        operations = [drop(steps[:-1]) for steps, _ in reversed(values[1:])]
        yield Fault.MERGED_SECRETS.at(sidecar.where, cause, patch(sidecar.document, *operations))
    held = {name for _, name in values}
    for index, entry in reversed(list(enumerate(map(mapping, sequence(sidecar.container.get("envFrom")))))):
        if mapping(entry.get("secretRef")).get("name") in held:
            cause = "has the workers' values in its environment, too"
            mend = patch(sidecar.document, drop(sidecar.steps("envFrom", index)))
            yield Fault.MERGED_SECRETS.at(sidecar.where, cause, mend)
    for steps, name in values:
        if name in named:
            cause = f"takes the workers' values and its own identity from one Secret, {name}"
            key = "secretName" if steps[-2] != "sources" and "sources" not in steps else "name"
            mend = patch(sidecar.document, put(sidecar.document, [*steps, key], VALUES_SECRET))
            yield Fault.MERGED_SECRETS.at(sidecar.where, cause, mend)


def _injected(sidecar: Sidecar, root: str | None) -> Iterator[Finding]:
    notes = sidecar.workload.annotations
    if str(notes.get(_INJECT)).lower() != "true":
        return
    steps: list[Step] = [*sidecar.workload.at, "metadata", "annotations"]
    volume = str(notes.get(f"{_INJECT.rpartition('/')[0]}/secret-volume-path", "/vault/secrets"))
    if root is not None and root == volume:
        cause = "has the injector's writable mount as its root"
        elsewhere = put(sidecar.document, [*steps, "vault.hashicorp.com/secret-volume-path"], "/vault/secrets")
        yield Fault.NOT_READ_ONLY.at(sidecar.where, cause, patch(sidecar.document, elsewhere))
    for name in sorted(map(str, notes)):
        secret = name.removeprefix(f"{_INJECT}-secret-")
        perms = f"{_INJECT}-perms-{secret}"
        if secret != name and str(notes.get(perms)) not in ("0440", "0400"):
            cause = "has the agent write a file of the mode 0644, its default, or of another that is refused"
            mend = patch(sidecar.document, put(sidecar.document, [*steps, perms], "0440"))
            yield Fault.VALUES_MODE.at(sidecar.where, cause, mend)
