"""What is looked at from outside: namespaces, rights, mounts, routes, traffic, receipts. Each raises Failed."""

import errno
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from tests.evidence import linux
from tests.evidence.cell import HEALTH_PORT, METRICS_PORT, WORKER_PORT, Cell
from tests.evidence.gates import Failed, require
from tests.evidence.launch import LINK, SECRETS
from tests.evidence.limits import Limit
from tests.evidence.prefix import BASE, PLACE
from tests.evidence.witness import Witness

T = TypeVar("T")
_KINDS: Final = ("net", "mnt", "pid", "ipc", "uts")
_PATIENCE_S: Final = 20.0


def since(moment: float) -> float:
    """Seconds since a moment of the monotonic clock."""
    return time.monotonic() - moment


def until(look: Callable[[], T], good: Callable[[T], bool]) -> T:
    """Look until it is good, or for a while; return what was seen last."""
    end = time.monotonic() + _PATIENCE_S
    while True:
        seen = look()
        if good(seen) or time.monotonic() > end:
            return seen
        time.sleep(0.05)


def apart(pids: Sequence[int]) -> None:
    """No namespace is shared with another sidecar or with us."""
    for kind in _KINDS:
        seen = [os.stat(f"/proc/{pid}/ns/{kind}").st_ino for pid in (os.getpid(), *pids)]
        require(len(set(seen)) == len(seen), f"a {kind} namespace is shared")


def limited(pid: int, limits: Iterable[Limit], wanted: dict[str, int]) -> None:
    """The process is in a group of each controller, whose limit is the one wanted."""
    found = {limit.controller: limit for limit in limits}
    for controller, value in wanted.items():
        limit = found.get(controller)
        if limit is None:
            raise Failed(f"there is no limit of {controller} here")
        members = Path(limit.procs).read_text(encoding="ascii").split()
        require(str(pid) in members, f"the process is not in its group of {controller}")
        require(limit.value == value, f"the limit of {controller} is {limit.value}")


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return {name: rest.strip() for name, _, rest in (line.partition(":") for line in lines)}


def powerless(pid: int, uid: int) -> None:
    """User and group are that one, every set of capabilities is empty, and no program can give it more."""
    status = _status(pid)
    require(status["Uid"].split() == [str(uid)] * 4, "it runs as another user")
    require(status["Gid"].split() == [str(uid)] * 4, "it runs as another group")
    require(status["Groups"].split() == [str(uid)], "it has other groups")
    sets = {name: int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
    require(not any(sets.values()), "it has capabilities")
    require(status["NoNewPrivs"] == "1", "it may get new privileges")


def _mounts(pid: int) -> dict[str, list[str]]:
    """Mount points and their options, of mount and file system together."""
    mounts: dict[str, list[str]] = {}
    for line in Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8").splitlines():
        fields = line.split(" ")
        mounts[fields[4]] = fields[5].split(",")
    return mounts


def read_only(pid: int) -> None:
    """Every mount says so, and none lets even root make a file."""
    mounts = _mounts(pid)
    writable = [place for place, options in mounts.items() if "ro" not in options]
    require(not writable, f"mounted so that it may be written: {', '.join(writable)}")
    refused = _tried(pid, [place for place in mounts if place != "/proc"])
    require(set(refused) <= {errno.EROFS}, "a file could be made")


def _tried(pid: int, places: Sequence[str]) -> list[int]:
    """Try to make a file in each place, in that process's mounts, as root; return the errors, 0 for none."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            linux.enter(pid, "mnt")
            os.write(writer, bytes(_make_file(place) for place in places))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as results:
        seen = list(results.read())
    os.waitpid(child, 0)
    require(len(seen) == len(places), "its mounts could not be entered")
    return seen


def _make_file(place: str) -> int:
    try:
        os.close(os.open(f"{place}/.written", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def no_token(pid: int, mounted: set[str]) -> None:
    """Nothing is mounted beside the system and what is named, no place of a token exists, no variable names one."""
    system = {"/", "/usr", "/bin", "/lib", "/lib64", "/proc", str(PLACE), str(BASE)}
    more = _mounts(pid).keys() - system - mounted
    require(not more, f"mounted besides: {', '.join(sorted(more))}")
    below = sorted(os.listdir(f"/proc/{pid}/root{SECRETS}"))
    require(below == ["qinglong3"], "there are secrets of somebody else")
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    require(not [each for each in environment if b"TOKEN" in each.partition(b"=")[0]], "a variable names a token")


def traffic(cell: Cell, witness: Witness, database_port: int) -> None:
    """It opened connections to the database alone, was asked on its three ports alone, and has one route."""
    database = (cell.inside, cell.outside, database_port)
    require(witness.opened[database], "the witness saw no connection to the database, so it proves nothing")
    strays = [f"{target}:{port}" for source, target, port in witness.opened if source == cell.inside]
    strays = [each for each in strays if each != f"{cell.outside}:{database_port}"]
    require(not strays, f"{cell.name} opened a connection to {', '.join(strays)}")
    asked = {(target, port) for source, target, port in witness.opened if source != cell.inside}
    allowed = {(cell.inside, port) for port in (WORKER_PORT, HEALTH_PORT, METRICS_PORT)}
    require(asked <= allowed, f"{cell.name} was asked on another port")
    require(not witness.other, f"frames of other protocols: {', '.join(witness.other)}")
    routes = [line.split()[:3] for line in cell.proc("net/route").splitlines()[1:]]
    require(len(routes) == 1 and routes[0][0] == LINK and int(routes[0][2], 16) == 0, "it has a route beyond its link")
    counters = (line.partition(":") for line in cell.proc("net/dev").splitlines()[2:])
    used = {name.strip() for name, _, numbers in counters if any(map(int, numbers.split()))}
    require(used == {LINK}, "another interface than its link was used")


def receipts(execute: Callable[[str], list[tuple[Any, ...]]], refs: int, generations: int) -> None:
    """Each generation has one mark a ref, released and delivered by both replicas; no two generations share one."""
    wanted = 2 * refs * generations

    def marks(kind: str) -> Counter[tuple[str, str]]:
        rows = execute("SELECT file_name, mark, kind FROM secret_sidecar.receipts")
        return Counter((name, mark) for name, mark, found in rows if found == kind)

    for kind in ("released", "delivered"):
        # The second kind is written after the last byte.
        seen = until(partial(marks, kind), lambda found: found.total() >= wanted)
        require(len(seen) == refs * generations, f"there are {len(seen)} different marks of {kind}")
        require(set(seen.values()) == {2}, f"the replicas' marks of {kind} differ")


def memory(pid: int, limits: Iterable[Limit]) -> dict[str, object]:
    """The peak of resident memory, and the group's, with the file that tells it."""
    told: dict[str, object] = {"vm_hwm_bytes": int(_status(pid)["VmHWM"].split()[0]) << 10}
    for limit in limits:
        if limit.controller == "memory":
            told |= {"cgroup_version": limit.version, "cgroup_file": limit.peak_file, "cgroup_peak_bytes": limit.peak()}
    return told
