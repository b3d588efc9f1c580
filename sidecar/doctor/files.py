"""One file of a root: everything that serve would refuse it for, and what is most likely a mistake (contract 7)."""

import errno
import os
import stat
from dataclasses import dataclass
from typing import Final

from provider.limits import BUNDLE_BYTES, VALUE_BYTES
from provider.memory import BufferPool
from provider.mounted import FORBIDDEN_MODE
from provider.rootfs import FILE, Opener
from sidecar.doctor.place import mode_mend, reader_mend
from sidecar.findings import Finding, quoted
from sidecar.publish.sources import BadValue, large_finding, value_finding, value_of

_SPACE: Final = frozenset(b" \t\r\n\v\f")
_BOM: Final = b"\xef\xbb\xbf"
_DEFAULT_MODE: Final = 0o644
_LATER_NS: Final = 1_000_000_000
"""A file that was written this long after the last change of names in its directory was written in place."""
_OPEN_CAUSES: Final = {
    errno.ENOENT: ("link_dangling", "the name is a link to nothing", "Publish again, or remove the link."),
    errno.EXDEV: (
        "leaves_root",
        "the name leads out of the root or its generation, or into another mount",
        "Put the file itself there; mount the whole volume, without subPath.",
    ),
    errno.ELOOP: ("leaves_root", "the name is a link out of the root, or in a circle", "Put the file itself there."),
    errno.ENXIO: ("not_regular", "it is no regular file", "Put a file there."),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file is looked for, and by what rules."""

    anchor: int
    shown: str
    """The path of the anchor, for mends."""
    opener: Opener
    writer: str
    pool: BufferPool
    names_changed_ns: int
    """When a name in the anchor's directory changed last."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a file that could be opened."""

    kind: str
    """`regular`, `directory`, or `other`: a device, a FIFO."""
    mode: int
    uid: int
    gid: int
    links: int
    size: int
    modified_ns: int


def examine_file(place: Place, name: str, bundle: bool | None) -> tuple[Facts | None, list[Finding]]:
    """Return facts and findings of one file. `bundle` None: it is not known whether it is one.

    Opens and reads as serve does; the value passes through wipeable memory and is gone when this returns.
    """
    path = f"{place.shown}/{name}"
    try:
        descriptor = place.opener(place.anchor, os.fsencode(name), FILE)
    except OSError as error:
        return None, [_unopened(place.writer, path, error)]
    try:
        status = os.fstat(descriptor)
        facts = Facts(
            "regular" if stat.S_ISREG(status.st_mode) else "directory" if stat.S_ISDIR(status.st_mode) else "other",
            stat.S_IMODE(status.st_mode),
            status.st_uid,
            status.st_gid,
            status.st_nlink,
            status.st_size,
            status.st_mtime_ns,
        )
        if not stat.S_ISREG(status.st_mode):
            return facts, [Finding("not_regular", path, "it is no regular file", "Put a file there.")]
        return facts, _outside(place, path, facts) + _inside(place.pool, descriptor, path, bundle)
    finally:
        os.close(descriptor)


def _unopened(writer: str, path: str, error: OSError) -> Finding:
    if error.errno in (errno.EACCES, errno.EPERM):
        cause = f"this user ({os.geteuid()}) may not read it"
        return Finding("not_readable", path, cause, reader_mend(writer, path))
    code, cause, mend = _OPEN_CAUSES.get(
        error.errno or 0, ("unreadable", f"it cannot be opened ({error.strerror})", "Look at the volume.")
    )
    return Finding(code, path, cause, mend)


def _outside(place: Place, path: str, facts: Facts) -> list[Finding]:
    found = []
    if facts.mode == _DEFAULT_MODE:
        cause = "its mode is 0644, the default of most projectors; serve refuses what others may read"
        found.append(Finding("mode_default", path, cause, mode_mend(place.writer, path)))
    elif facts.mode & FORBIDDEN_MODE:
        cause = f"its mode is {facts.mode:04o}; serve allows 0640 and less"
        found.append(Finding("mode_open", path, cause, mode_mend(place.writer, path)))
    if facts.links > 1:
        cause = f"it has {facts.links} hard links, so another name reaches the same bytes"
        old, new = quoted(path), quoted(f"{path}.new")
        mend = f"cp -p {old} {new}; mv {new} {old}; and turn off the writer's backup."
        found.append(Finding("hard_linked", path, cause, mend))
    if facts.modified_ns > place.names_changed_ns + _LATER_NS:
        cause = "it was written in place; a reader can meet half of it"
        mend = "Let its writer replace files by rename, as `secret-sidecar publish` does."
        found.append(Finding("written_in_place", path, cause, mend, "warning"))
    return found


def _inside(pool: BufferPool, descriptor: int, path: str, bundle: bool | None) -> list[Finding]:
    limit = VALUE_BYTES if bundle is False else BUNDLE_BYTES
    try:
        with value_of(pool, descriptor, limit) as view:
            found = [large_finding(path)] if bundle is None and len(view) > VALUE_BYTES else []
            return found + _likely_mistakes(view, path)
    except BadValue as bad:
        return [value_finding(bad.code, path, limit)]


def _likely_mistakes(view: memoryview, path: str) -> list[Finding]:
    found = []
    if view[-1] == ord("\n"):
        mend = f"Write it without one (printf %s); in place of the file: truncate -s -1 {quoted(path)}"
        found.append(Finding("trailing_newline", path, "the value ends with a newline", mend, "warning"))
    elif view[-1] in _SPACE or view[0] in _SPACE:
        cause = "the value begins or ends with white space"
        found.append(Finding("surrounding_space", path, cause, "Write it without, unless it is meant.", "warning"))
    if bytes(view[:3]) == _BOM:
        mend = "Save it as UTF-8 without byte order mark."
        found.append(Finding("byte_order_mark", path, "the value begins with a byte order mark", mend, "warning"))
    return found
