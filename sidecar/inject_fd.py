"""Mode `fd`: one sealed memfd a secret, `NAME_FILE=/proc/self/fd/N`.

Nothing stands on any file system, nothing in the environment, and the kernel takes the memory back when the last
descriptor closes, whatever dies. Who may read: the command and what it starts with its descriptors open; root and the
same user through /proc/PID/fd.
"""

import fcntl
import os
from typing import Final

from sidecar.cli.common import Exit, Fault
from sidecar.inject import Injection, Values

_MFD_NOEXEC_SEAL: Final = 8
_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class Descriptors(Injection):
    """Makes the memfds; the stage inherits them under their own numbers."""

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}

    def fill(self, values: Values) -> None:
        """Make, write and seal one memfd for each value."""
        try:
            for name, value in values:
                self._descriptors[name] = descriptor = _memfd()
                os.fchmod(descriptor, 0o400)
                written = 0
                while written < len(value):
                    # At an offset of its own, so that the command reads from the start.
                    written += os.pwrite(descriptor, value[written:], written)
                fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        except OSError as error:
            wrong = f"A memory file could not be made ({error.strerror})."
            raise Fault(Exit.TARGET_REFUSED, wrong, "Raise the limit of open files, or use another --inject.") from None

    def variables(self) -> dict[str, str]:
        """As `Injection`."""
        return {f"{name}_FILE": f"/proc/self/fd/{descriptor}" for name, descriptor in self._descriptors.items()}

    def child(self) -> None:
        """Let the command have the descriptors."""
        for descriptor in self._descriptors.values():
            os.set_inheritable(descriptor, True)

    def forked(self) -> None:
        """Close ours; the stage has its own."""
        self.close()

    def close(self) -> None:
        """As `Injection`."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])


def _memfd() -> int:
    try:
        return os.memfd_create("secret", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | _MFD_NOEXEC_SEAL)
    except OSError:
        # Before Linux 6.3 the flag is not known.
        return os.memfd_create("secret", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
