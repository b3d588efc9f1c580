"""The closed set of what an audit can find."""

from enum import StrEnum
from typing import Final

from sidecar.findings import Finding, Severity

_PREFIX: Final = "SECRET_SIDECAR_KUBERNETES_"


class Fault(StrEnum):
    """What is wrong. The value, behind a prefix, is the code of the finding."""

    SECRET_COMMITTED = "SECRET_COMMITTED"  # noqa: S105 - a code, no secret
    INLINE_CREDENTIAL = "INLINE_CREDENTIAL"
    PROVIDER = "PROVIDER"
    ROOT = "ROOT"
    VALUES_MODE = "VALUES_MODE"
    SUBPATH = "SUBPATH"
    ITEMS = "ITEMS"
    NOT_READ_ONLY = "NOT_READ_ONLY"
    HOST_PATH = "HOST_PATH"
    GROUP_ACCESS = "GROUP_ACCESS"
    TOKEN_MOUNTED = "TOKEN_MOUNTED"  # noqa: S105 - a code, no token
    SECURITY_CONTEXT = "SECURITY_CONTEXT"
    REPLICAS = "REPLICAS"
    ROLLOUT = "ROLLOUT"
    PDB = "PDB"
    PROBE = "PROBE"
    RESOURCES = "RESOURCES"
    NETWORK_POLICY = "NETWORK_POLICY"
    MERGED_SECRETS = "MERGED_SECRETS"
    UNKNOWN_VARIABLE = "UNKNOWN_VARIABLE"
    SERVICE_LINKS = "SERVICE_LINKS"
    GRACE_PERIOD = "GRACE_PERIOD"
    PORT_CLASH = "PORT_CLASH"
    DOCUMENT_INVALID = "DOCUMENT_INVALID"

    @property
    def code(self) -> str:
        """The code that a program reads."""
        return _PREFIX + self.value

    def at(self, where: str, cause: str, mend: str, severity: Severity | None = None) -> Finding:
        """Return a finding of this kind, with its usual severity unless another is named."""
        return Finding(self.code, where, cause, mend, severity or _USUAL.get(self, "error"))


_USUAL: Final[dict[Fault, Severity]] = {
    # The sidecar serves, safely, but less available or less fenced off than it could be.
    Fault.ROLLOUT: "warning",
    Fault.PDB: "warning",
    Fault.PROBE: "warning",
    Fault.RESOURCES: "warning",
    Fault.NETWORK_POLICY: "warning",
    Fault.SERVICE_LINKS: "warning",
}
