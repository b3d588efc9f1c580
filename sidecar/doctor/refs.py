"""Refs that a person gives: one on each line, or a manifest."""

from provider.refs import InvalidRef, SecretRef
from sidecar.findings import Finding
from sidecar.publish.manifest import MANIFEST_BYTES, read_manifest


def read_refs(path: str) -> tuple[dict[str, SecretRef], list[Finding]]:
    """Return the refs of a file by file name, and what is wrong with it. Blank lines and `#` lines mean nothing."""
    try:
        with open(path, "rb") as file:
            content = file.read(MANIFEST_BYTES + 1)
        text = content.decode()
    except (OSError, ValueError):
        cause, mend = "the file of refs cannot be read", "Look at its name and rights; it is UTF-8, one ref on a line."
        return {}, [Finding("refs_unreadable", path, cause, mend)]
    if text.lstrip().startswith("{"):
        sources, faults = read_manifest(path, sources=False)
        return {source.file_name: source.ref for source in sources if source.ref is not None}, faults
    refs: dict[str, SecretRef] = {}
    faults = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            ref = SecretRef.parse(line.strip())
        except InvalidRef:
            mend = "Make it with `secret-sidecar ref encode`."
            faults.append(Finding("ref_invalid", f"{path}:{number}", "the line is no canonical ref", mend))
        else:
            refs[ref.file_name] = ref
    return refs, faults
