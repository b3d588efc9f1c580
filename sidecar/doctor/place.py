"""Who writes a root, and what the mounts there are; and how that writer is told to write otherwise."""

import os
import re
import stat
from dataclasses import dataclass
from typing import Final

from sidecar.findings import Finding, quoted
from sidecar.publish.target import GENERATION

KUBELET: Final = re.compile(r"\.\.[0-9]{4}(_[0-9]{2}){5}\.[0-9]+")
"""The directories of kubelet and secrets-store CSI: one writer in two programs, so their names are alike."""
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
_KUBELET_MODE: Final = "`defaultMode: 0440` on the volume's secret"
_CSI_MODE: Final = "`filePermission: 0440` on the object of the SecretProviderClass, in quotes unless Vault provides it"
_AGENT_MODE: Final = '`perms = "0440"` on its template'
_MODE_MENDS: Final = {
    "kubelet": f"Set {_KUBELET_MODE}.",
    "csi": f"Set {_CSI_MODE}.",
    "kubelet or csi": f"Set {_KUBELET_MODE}; with CSI {_CSI_MODE}.",
    "agent": f"Set {_AGENT_MODE}.",
}
_READER_MENDS: Final = {
    "kubelet": f"Set `fsGroup: {{gid}}` in the pod's securityContext, and {_KUBELET_MODE}.",
    "csi": f"Set `supplementalGroups: [0]` in the pod's securityContext, and {_CSI_MODE}.",
    "kubelet or csi": "Set `fsGroup: {gid}` in the pod's securityContext; with CSI `supplementalGroups: [0]`.",
    "agent": f"Run the agent as the user {{uid}}, and set {_AGENT_MODE}.",
}
_EMPTYDIR_MODE: Final = 0o777


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo, as far as it matters here."""

    inside: str
    """The directory of the file system that is mounted."""
    point: str


def projector(path: str, generation: str | None, mode: int) -> str:
    """Name who writes the root: `publish`, `kubelet`, `csi`, `kubelet or csi`, `agent`, or `flat` for anybody."""
    if generation is not None:
        if GENERATION.fullmatch(generation):
            return "publish"
        if not KUBELET.fullmatch(generation):
            return "linked"
        for part, name in (("kubernetes.io~csi", "csi"), ("kubernetes.io~secret", "kubelet")):
            if part in path:
                return name
        return "kubelet or csi"
    return "agent" if stat.S_IMODE(mode) & _EMPTYDIR_MODE == _EMPTYDIR_MODE else "flat"


def mode_mend(writer: str, path: str) -> str:
    """Return what gives a file mode 0440: the writer's own setting where it has one, otherwise a command."""
    return _MODE_MENDS.get(writer) or f"chmod 0440 {quoted(path)}"


def reader_mend(writer: str, path: str) -> str:
    """Return what lets this user read a file: the writer's own setting where it has one, otherwise commands."""
    own = _READER_MENDS.get(writer)
    if own is not None:
        return own.format(uid=os.geteuid(), gid=os.getegid())
    return f"chgrp {os.getegid()} {quoted(path)}; chmod 0440 {quoted(path)}"


def mounts() -> list[Mount]:
    """Return the mounts of this process. Raises OSError."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        fields = [line.split(" ", 5) for line in table]
    return [Mount(_plain(parts[3]), _plain(parts[4])) for parts in fields]


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), text)


def mount_findings(path: str) -> list[Finding]:
    """Return what is wrong with the mounts at and below a root."""
    real = os.path.realpath(path)
    found = []
    for mount in mounts():
        if mount.point.startswith(f"{real}/"):
            cause = "something is mounted inside the root, as `subPath` does; serve never crosses into it"
            mend = "Mount the whole volume at the root, without subPath and items."
            found.append(Finding("mount_inside", mount.point, cause, mend))
        elif mount.point == real and "/.." in mount.inside:
            cause = "the root is mounted from one generation, as `subPath` does, and never rotates"
            found.append(Finding("mount_subpath", path, cause, "Mount the whole volume, without subPath.", "warning"))
    if not os.statvfs(path).f_flag & os.ST_RDONLY and os.access(path, os.W_OK, effective_ids=True):
        cause = "this user may write to the root: its mount is writable here"
        mend = "Mount it read-only for the sidecar (`readOnly: true`), or run the sidecar as another user."
        found.append(Finding("mount_writable", path, cause, mend, "warning"))
    return found
