"""The child program that becomes a sidecar: apart from everything, then without rights, then the product.

`python -m tests.evidence.launch DESCRIPTOR`; the descriptor is a socket on which it gets its `Spec` as a line of JSON,
says that it is apart, waits until its network is there, and says the process id of the sidecar.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tests.evidence import linux
from tests.evidence.prefix import BASE, PLACE

UID: Final = 10001
SECRETS: Final = "/var/run/secrets"
LINK: Final = "eth0"
_LINKS: Final = ("bin", "lib", "lib64")


@dataclass(frozen=True, slots=True)
class Spec:
    """What a sidecar is to get."""

    name: str
    root: str
    """An empty directory that becomes the root."""
    prefix: str
    mounts: dict[str, str]
    """What is mounted read-only beside the system: place inside to directory outside."""
    address: str
    api: str
    """An address where a cluster would have its API server."""
    groups: list[str]
    """Files of cgroups to join."""
    environment: dict[str, str]
    broken: str
    """What is to be wrong on purpose, empty for nothing."""

    def line(self) -> bytes:
        """Return it as it is sent."""
        return json.dumps(asdict(self)).encode() + b"\n"


def main(descriptor: int) -> int:
    """Launch, wait, and end as the sidecar ends."""
    linux.die_with_parent()
    control = socket.socket(fileno=descriptor)
    lines = control.makefile("r", encoding="utf-8")
    spec = Spec(**json.loads(lines.readline()))
    linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWNET | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS)
    linux.keep_mounts_private()
    socket.sethostname(spec.name)
    _build(spec)
    control.sendall(b"apart\n")
    lines.readline()
    _connect(spec)
    # Not before: the first child of all is the first process there, and when it ends no other can be.
    linux.unshare(linux.CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        _become(spec)
    control.sendall(f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _build(spec: Spec) -> None:
    """Make the root: the system's libraries, the interpreter, the prefix, and what is mounted."""
    root = Path(spec.root)
    linux.mount("root", root, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=0755")
    _show(root, "/usr", "/usr")
    for name in _LINKS:
        outside = Path("/", name)
        if outside.is_symlink():
            (root / name).symlink_to(os.readlink(outside))
        elif outside.is_dir():
            _show(root, str(outside), str(outside))
    if not BASE.is_relative_to("/usr"):
        _show(root, str(BASE), str(BASE))
    _show(root, str(PLACE), spec.prefix)
    for inside, outside_name in spec.mounts.items():
        _show(root, inside, outside_name, writable=spec.broken == "writable")
    (root / "proc").mkdir()
    (root / "etc").mkdir()
    # Where the loader finds an interpreter's own library outside the usual places.
    with suppress(FileNotFoundError):
        shutil.copy("/etc/ld.so.cache", root / "etc")


def _show(root: Path, inside: str, outside: str, *, writable: bool = False) -> None:
    place = root / inside.lstrip("/")
    place.mkdir(parents=True, exist_ok=True)
    linux.bind(Path(outside), place, writable=writable)


def _connect(spec: Spec) -> None:
    """Set the address of the only link; there is no route beyond its network."""
    linux.leave_ipv6()
    for command in ("link set lo up", f"addr add {spec.address} dev {LINK}", f"link set {LINK} up"):
        subprocess.run(["ip", *command.split()], check=True, capture_output=True)
    if spec.broken == "stray":
        with suppress(OSError):
            socket.create_connection((spec.api, 443), timeout=0.2).close()


def _become(spec: Spec) -> Any:
    """Go where the parent has prepared, as the first process there, and become the sidecar. Never returns."""
    try:
        for group in spec.groups:
            Path(group).write_text("0", encoding="ascii")
        flags = linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
        linux.mount("proc", f"{spec.root}/proc", "proc", flags)
        if spec.broken != "writable":
            flags = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
            linux.mount("none", spec.root, "none", flags)
        linux.pivot(Path(spec.root))
        if spec.broken != "capable":
            linux.drop_privileges(UID)
        linux.die_with_parent()
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        program = f"{PLACE}/bin/secret-sidecar"
        os.execve(program, [program, "serve"], spec.environment)  # noqa: S606 - the point of it
    except OSError as error:
        os.write(2, f"cannot become the sidecar: {error.strerror}\n".encode())
    finally:
        os._exit(70)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
