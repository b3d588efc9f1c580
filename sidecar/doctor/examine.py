"""A whole root: its layout, its generations, and every file in force."""

import errno
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from provider.limits import MATERIAL_S
from provider.memory import BufferPool
from provider.outcomes import Refused
from provider.readers import within
from provider.refs import SecretRef
from provider.rootfs import DIRECTORY, Descriptors, Opener, choose_opener, is_root_path
from sidecar.doctor.files import Facts, Place, examine_file
from sidecar.doctor.place import KUBELET, mount_findings, projector
from sidecar.findings import Finding, quoted
from sidecar.publish.manifest import HASH
from sidecar.publish.target import DATA, GENERATION, NEW, STAGED

_MAKE: Final = "Make it: install -d -m 0755 {}"


@dataclass(frozen=True, slots=True)
class Known:
    """A ref that somebody asks for."""

    ref: SecretRef
    bundle: bool | None = None
    """None: it is not known whether it is one."""


@dataclass(slots=True)
class Examination:
    """What was found."""

    findings: list[Finding] = field(default_factory=list)
    writer: str = "nobody"
    generations: dict[str, tuple[bool, float]] = field(default_factory=dict)
    """Each generation's directory: whether it is in force, and its age in seconds."""
    files: dict[str, Facts | None] = field(default_factory=dict)
    """Every name in force that is a hash; None for one that could not be opened."""


def examine(path: str, known: Mapping[str, Known] | None) -> Examination:
    """Look at everything and change nothing. `known` maps file names to the refs that must be there."""
    result = Examination()
    cause = _root_finding(path)
    if cause is not None:
        result.findings.append(cause)
        return result
    status = os.stat(path)
    result.findings += mount_findings(path)
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not os.statvfs(path).f_flag & os.ST_RDONLY:
        mend = f"chmod go-w {quoted(path)}; or mount it a second time, read-only, as the root."
        result.findings.append(Finding("root_writable", path, "others than its owner may write to the root", mend))
    with Descriptors() as held:
        held.append(os.open(path, DIRECTORY))
        try:
            names = os.listdir(path)
        except OSError:
            mend = f"chmod a+rx {quoted(path)}, or run as a user who may list it."
            result.findings.append(Finding("root_unlistable", path, "this user may not list the root", mend))
            return result
        opener = choose_opener()
        target = _target(path)
        result.writer = "nobody" if not names else projector(os.path.realpath(path), target, status.st_mode)
        generation = _layout(path, target, held, opener, result)
        _generations(path, names, target, result)
        if DATA in names and generation is None:
            return result
        anchor, shown = (held[0], path) if generation is None else (generation, f"{path}/{DATA}")
        try:
            inside = sorted(name for name in os.listdir(shown) if not name.startswith(".."))
        except OSError:
            mend = f"chmod 0750 {quoted(f'{path}/{target}')}, and give it this user's group."
            cause_text = "this user may not list the generation in force"
            result.findings.append(Finding("generation_unlistable", shown, cause_text, mend))
            return result
        changed = os.stat(shown).st_mtime_ns
        place = Place(anchor, shown, opener, result.writer, BufferPool(), changed)
        _names(place, inside, known, result)
        if generation is not None:
            _beside(path, names, set(inside), result)
        _missing(path, known, result)
    return result


def _root_finding(path: str) -> Finding | None:
    if not is_root_path(path):
        return Finding("root_invalid", path, "the path cannot be a root", "Name a normal absolute path, not `/`.")
    found: list[Finding] = []
    try:
        within(MATERIAL_S, lambda: found.extend(_kind(path)))
    except Refused:
        mend = "Look at the mount: its server does not answer."
        return Finding("root_hangs", path, "the root's file system does not answer", mend)
    return found[0] if found else None


def _kind(path: str) -> list[Finding]:
    try:
        mode = os.lstat(path).st_mode
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return [Finding("root_missing", path, "the root is not there", _MAKE.format(quoted(path)))]
        mend = "Let this user pass the directories above it."
        return [Finding("root_unreachable", path, "the root cannot be reached", mend)]
    if stat.S_ISLNK(mode):
        return [Finding("root_link", path, "the root is a link", "Name the directory itself; links above it may be.")]
    if not stat.S_ISDIR(mode):
        return [Finding("root_not_directory", path, "the root is no directory", _MAKE.format(quoted(path)))]
    return []


def _target(path: str) -> str | None:
    try:
        return os.readlink(f"{path}/{DATA}")
    except OSError:
        return None


def _layout(path: str, target: str | None, held: Descriptors, opener: Opener, result: Examination) -> int | None:
    """Open the generation in force; None in the flat layout and for a `..data` that serve would refuse."""
    where = f"{path}/{DATA}"
    if target is None:
        if os.path.lexists(where):
            mend = f"Remove it: rm -r {quoted(where)}"
            result.findings.append(Finding("data_not_link", where, "`..data` is no link; serve refuses it", mend))
        return None
    try:
        held.append(opener(held[0], DATA.encode(), DIRECTORY))
    except FileNotFoundError:
        mend = "Publish again, or let the projector write its volume anew."
        result.findings.append(Finding("data_dangling", where, "`..data` names nothing; every delivery fails", mend))
        return None
    except OSError:
        mend = "Let it name a directory beside itself; publish again."
        result.findings.append(Finding("data_leaves_root", where, "`..data` leads out of the root", mend))
        return None
    return held[-1]


def _generations(path: str, names: list[str], target: str | None, result: Examination) -> None:
    now = time.time()
    for name in sorted(names):
        if GENERATION.fullmatch(name) or KUBELET.fullmatch(name) or name == target:
            try:
                age = max(0.0, now - os.lstat(f"{path}/{name}").st_mtime)
            except OSError:
                continue
            result.generations[name] = (name == target, age)
        if name in (target, DATA):
            continue
        if name in result.generations or name == STAGED or name.startswith(NEW):
            mend = "Publish again, which removes it; or, when nobody writes here, remove it by hand."
            where, cause = f"{path}/{name}", "a writer that was killed, or is at work now, left it"
            result.findings.append(Finding("leftover", where, cause, mend, "warning"))


def _names(place: Place, names: list[str], known: Mapping[str, Known] | None, result: Examination) -> None:
    for name in names:
        if not HASH.fullmatch(name):
            mend = "Name it by `secret-sidecar ref filename REF`, or leave it out; serve never reads it."
            where = f"{place.shown}/{name}"
            result.findings.append(Finding("name_not_hash", where, "the name is no hash of a ref", mend, "warning"))
            continue
        asked = None if known is None else known.get(name)
        facts, found = examine_file(place, name, None if asked is None else asked.bundle)
        result.files[name] = facts
        result.findings += found
        if known is not None and asked is None:
            mend = "Leave it, or drop it: `secret-sidecar publish --prune`."
            cause = "none of the refs given has this name"
            result.findings.append(Finding("not_asked_for", f"{place.shown}/{name}", cause, mend, "info"))


def _beside(path: str, names: list[str], inside: set[str], result: Examination) -> None:
    """Judge what stands beside `..data`: links for people and other programs; serve reads only through `..data`."""
    for name in sorted(names):
        if name.startswith("..") or name in inside:
            continue
        where = f"{path}/{name}"
        if os.path.islink(where):
            cause, mend = "the link names nothing in the generation in force", f"rm {quoted(where)}"
            result.findings.append(Finding("link_dangling", where, cause, mend, "warning"))
        else:
            cause = "serve reads only through `..data`, and it is not there"
            result.findings.append(
                Finding("beside_data", where, cause, f"Publish it, or: rm {quoted(where)}", "warning")
            )


def _missing(path: str, known: Mapping[str, Known] | None, result: Examination) -> None:
    for name, asked in (known or {}).items():
        if name not in result.files:
            entry = f'{{"ref":"{asked.ref.text}","file":"..."}}'
            where, mend = f"{path}/{name}", f"Add to the manifest, and publish: {entry}"
            result.findings.append(Finding("missing", where, f"there is no file for {label(asked.ref)}", mend))


def label(ref: SecretRef) -> str:
    """Write a ref for a person: project/name@version."""
    return f"{ref.project_id}/{ref.name}" + ("" if ref.version is None else f"@{ref.version}")
