"""What is to be published: a manifest, or a directory whose files are named by hash already.

Every fault is found at once. No finding shows an invalid ref or a value; a place in the document names the entry.
"""

import os
import re
from typing import Final

from provider.limits import BUNDLE_BYTES, VALUE_BYTES
from provider.outcomes import Refused
from provider.refs import InvalidRef, SecretRef
from provider.strictjson import Number, parse
from sidecar.findings import Finding
from sidecar.publish.sources import Source

HASH: Final = re.compile("[0-9a-f]{64}")
"""The name of a projected file (contract 1)."""
MANIFEST_BYTES: Final = 16 << 20
"""Largest manifest: room for tens of thousands of secrets."""
_KEYS: Final = {"ref", "project", "name", "version", "file", "stdin", "bundle"}
_INTEGER: Final = re.compile("[1-9][0-9]{0,9}")


def read_manifest(path: str, *, sources: bool = True) -> tuple[list[Source], list[Finding]]:
    """Return the sources that a manifest names and everything that is wrong with it; files are relative to it.

    With `sources` false an entry needs neither `file` nor `stdin`. No value is read.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(MANIFEST_BYTES + 1)
    except (OSError, ValueError):
        return [], [Finding("manifest_unreadable", path, "the manifest cannot be read", "Look at its name and rights.")]
    try:
        document = parse(text) if len(text) <= MANIFEST_BYTES else None
    except Refused:
        mend = "Write strict JSON: UTF-8, no comment, no key twice."
        return [], [Finding("manifest_not_json", path, "the manifest is not strict JSON", mend)]
    if not isinstance(document, dict) or document.keys() != {"schemaVersion", "secrets"}:
        return [], [_shape(path, "the manifest is no object of exactly schemaVersion and secrets")]
    if document["schemaVersion"] != Number("1"):
        return [], [_shape(path, "the manifest is of another schemaVersion than 1")]
    if not isinstance(document["secrets"], list):
        return [], [_shape(path, "secrets is no list")]
    return _entries(document["secrets"], os.path.dirname(path), sources)


def _shape(where: str, cause: str) -> Finding:
    return Finding("manifest_invalid", where, cause, 'Write {"schemaVersion":1,"secrets":[{"ref":...,"file":...}]}.')


def _entries(secrets: list[object], folder: str, need_source: bool) -> tuple[list[Source], list[Finding]]:
    found: list[Source] = []
    faults: list[Finding] = []
    seen: dict[str, str] = {}
    stdin: str | None = None
    for index, entry in enumerate(secrets):
        where = f"secrets[{index}]"
        if not isinstance(entry, dict):
            faults.append(Finding("entry_invalid", where, "the entry is no object", "Write an object."))
            continue
        wrong = _entry_faults(entry, where, need_source)
        ref = _ref(entry)
        if ref is None:
            wrong.append(_ref_fault(entry, where))
        elif ref.file_name in seen:
            wrong.append(Finding("ref_twice", where, f"the ref is that of {seen[ref.file_name]}", "Keep one of them."))
        else:
            seen[ref.file_name] = where
            if entry.get("bundle") is True and ref.version is None:
                wrong.append(Finding("bundle_unversioned", where, "a bundle has no version", "Give it a version."))
        if entry.get("stdin") is True:
            if stdin is not None:
                wrong.append(Finding("stdin_twice", where, f"standard input is {stdin}'s", "Give this one a file."))
            stdin = stdin or where
        faults += wrong
        if ref is not None and not wrong:
            limit = BUNDLE_BYTES if entry.get("bundle") is True else VALUE_BYTES
            file = entry.get("file")
            path = os.path.join(folder, file) if isinstance(file, str) else None
            found.append(Source(ref.file_name, where, path, limit, ref))
    return found, faults


def _entry_faults(entry: dict[str, object], where: str, need_source: bool) -> list[Finding]:
    faults = []
    if not entry.keys() <= _KEYS:
        mend = f"Keep only {', '.join(sorted(_KEYS))}."
        faults.append(Finding("entry_key_unknown", where, "the entry has a key that means nothing here", mend))
    if "file" in entry and entry.get("stdin", False) is not False:
        faults.append(Finding("source_twice", where, "the entry has both file and stdin", "Keep one of them."))
    elif need_source and "file" not in entry and entry.get("stdin") is not True:
        faults.append(Finding("source_missing", where, "the entry has no source", 'Give it "file" or "stdin":true.'))
    if "file" in entry and not _is_path(entry["file"]):
        faults.append(Finding("source_invalid", where, "file is no path", "Write the path relative to the manifest."))
    faults += [
        Finding("entry_invalid", where, f"{key} is neither true nor false", "Write true or false without quotes.")
        for key in ("stdin", "bundle")
        if type(entry.get(key, False)) is not bool
    ]
    return faults


def _is_path(file: object) -> bool:
    return isinstance(file, str) and file != "" and "\0" not in file


def _ref(entry: dict[str, object]) -> SecretRef | None:
    parts = entry.keys() & {"project", "name", "version"}
    try:
        if "ref" in entry:
            text = entry["ref"]
            return SecretRef.parse(text) if isinstance(text, str) and not parts else None
        version = entry.get("version")
        if "version" in entry:
            if not isinstance(version, Number) or not _INTEGER.fullmatch(version.lexeme):
                return None
            version = int(version.lexeme)
        project, name = entry.get("project"), entry.get("name")
        if not isinstance(project, str) or not isinstance(name, str) or not isinstance(version, int | None):
            return None
        return SecretRef.of(project, name, version)
    except InvalidRef:
        return None


def _ref_fault(entry: dict[str, object], where: str) -> Finding:
    if "ref" in entry and entry.keys() & {"project", "name", "version"}:
        return Finding("ref_ambiguous", where, "the entry has both ref and parts of one", "Keep one of the two.")
    mend = "Make it with `secret-sidecar ref encode`, or give project, name and, where it has one, version."
    return Finding("ref_invalid", where, "the entry names no canonical ref", mend)


def read_directory(path: str) -> tuple[list[Source], list[Finding]]:
    """Return a source for each file of a directory that is named by hash, and everything that is wrong.

    Names that begin with `..` are a projector's own and left alone. An empty directory is a fault: it is what a volume
    that was not mounted looks like.
    """
    try:
        names = sorted(name for name in os.listdir(path) if not name.startswith(".."))
    except OSError:
        return [], [Finding("directory_unreadable", path, "the directory cannot be read", "Look at name and rights.")]
    if not names:
        mend = "Look whether it is mounted; to drop every value use a manifest without secrets and --prune."
        return [], [Finding("directory_empty", path, "the directory holds nothing", mend)]
    mend = "Name it by `secret-sidecar ref filename REF`, or move it out."
    faults = [
        Finding("name_not_hash", os.path.join(path, name), "the file's name is no hash of a ref", mend)
        for name in names
        if not HASH.fullmatch(name)
    ]
    whole = [name for name in names if HASH.fullmatch(name)]
    return [Source(name, os.path.join(path, name), os.path.join(path, name), BUNDLE_BYTES) for name in whole], faults
