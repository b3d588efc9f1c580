"""System calls of Linux that Python 3.11 has no function for: namespaces, mounts, capabilities."""

import ctypes
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.kit.mounting import MS_BIND, MS_RDONLY, MS_REMOUNT, mount, unmount

CLONE_NEWNS: Final = 0x0002_0000
CLONE_NEWUTS: Final = 0x0400_0000
CLONE_NEWIPC: Final = 0x0800_0000
CLONE_NEWPID: Final = 0x2000_0000
CLONE_NEWNET: Final = 0x4000_0000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x8, 0x4000, 0x4_0000
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 24, 38
_PIVOT_ROOT: Final = {"x86_64": 155, "aarch64": 41}
_libc = ctypes.CDLL(None, use_errno=True)

__all__ = ["MS_BIND", "MS_RDONLY", "MS_REMOUNT", "mount", "unmount"]


def _checked(result: int) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def unshare(kinds: int) -> None:
    """Leave these namespaces for new ones; a new process namespace is the children's. Raises OSError."""
    _checked(_libc.unshare(kinds))


def enter(pid: int, kind: str) -> None:
    """Enter a namespace of that process, `net` or `mnt`. Raises OSError."""
    descriptor = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _checked(_libc.setns(descriptor, 0))
    finally:
        os.close(descriptor)


def keep_mounts_private() -> None:
    """Let no mount of this mount namespace show in another. Raises OSError."""
    mount("none", "/", "none", MS_REC | MS_PRIVATE)


def bind(source: Path, target: Path, *, writable: bool = False) -> None:
    """Show a directory at another place, read-only unless told otherwise. Raises OSError."""
    mount(str(source), target, "none", MS_BIND)
    if not writable:
        mount("none", target, "none", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def pivot(root: Path) -> None:
    """Make a mounted directory the root, and let go of the old one. Raises OSError."""
    os.chdir(root)
    _checked(_libc.syscall(_PIVOT_ROOT[os.uname().machine], b".", b"."))
    # Both are at the same place now; the one that is found there is the old.
    unmount(".")
    os.chdir("/")


def leave_ipv6() -> None:
    """Have no IPv6 in this network namespace, whose own chatter would hide what is looked for. Raises OSError."""
    with suppress(FileNotFoundError):  # a kernel that has none
        Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1", encoding="ascii")


def die_with_parent() -> None:
    """Be killed when the parent ends, however it ends. Raises OSError."""
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))


def drop_privileges(uid: int) -> None:
    """Become that user and group, for good: no capability is left to regain. Raises OSError."""
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text(encoding="ascii"))
    for capability in range(last + 1):
        _checked(_libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0))
    os.setgroups([uid])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
