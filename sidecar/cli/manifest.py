"""`secret-sidecar manifest`: what Kubernetes needs for the refs of a manifest."""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Final

from provider.limits import BUNDLE_BYTES
from provider.refs import SecretRef
from sidecar import kubernetes
from sidecar.cli.common import Exit, Fault, lines
from sidecar.cli.reports import report, verdict
from sidecar.findings import Finding
from sidecar.publish import Inputs, Source, read_manifest
from sidecar.publish.base64_view import encode_into, encoded_size
from sidecar.publish.sources import BadValue

_STDOUT: Final = 1
_KINDS: Final = {
    "secret": "a Secret whose keys are the files' names",
    "csi": "a SecretProviderClass for secrets-store CSI",
    "vault-agent": "a patch of the Deployment for the Vault Agent injector",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the three kinds."""
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    for name, summary in _KINDS.items():
        kind = kinds.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}, as YAML.")
        kind.add_argument("--manifest", required=True, metavar="M.json", help="the manifest of `publish`")
        kind.add_argument(
            "--with-values", action="store_true", help="write the values too, to standard output (secret alone)"
        )
        kind.epilog = f"example:\n  secret-sidecar manifest {name} --manifest secrets.json"
    parser.epilog = lines(
        (
            "Values are written to standard output alone, and only with --with-values; do not keep them in a file:",
            "no Secret object is ever committed. Ends with 65, with nothing on standard output, for a faulty manifest.",
            "",
            "example:",
            "  secret-sidecar manifest secret --manifest secrets.json --with-values | kubectl apply --server-side -f -",
        )
    )


def run(args: argparse.Namespace) -> int:
    """Write the YAML; 65 for a faulty manifest or value."""
    if args.with_values and args.kind != "secret":
        raise Fault(Exit.USAGE, f"{args.kind} takes values from its own store.", "Leave out --with-values.")
    sources, found = read_manifest(args.manifest, sources=args.with_values)
    with Inputs(sources if args.with_values else ()) as inputs:
        found += inputs.check() if verdict(found) is Exit.DONE else []
        if verdict(found) is not Exit.DONE:
            return _refused(found)
        if args.kind != "secret":
            return _refs_alone(args.kind, _refs(sources))
        sys.stdout.flush()
        return _with_values(inputs) if args.with_values else _without_values(_refs(sources))


def _refs(sources: Sequence[Source]) -> list[SecretRef]:
    return [source.ref for source in sources if source.ref is not None]


def _refs_alone(kind: str, refs: Sequence[SecretRef]) -> int:
    """Print what names the refs alone. Its length, a little more than what is stored, must not be refused later."""
    if kind == "csi":
        shown = list(kubernetes.provider_class(refs))
        counted, limit, what = shown, kubernetes.CLASS_BYTES, "one SecretProviderClass"
    else:
        shown = list(kubernetes.agent_patch(refs))
        counted, limit, what = (
            [line for line in shown if kubernetes.VAULT in line],
            kubernetes.ANNOTATION_BYTES,
            "a pod",
        )
    if sum(map(len, counted)) > limit:
        mend = "Name fewer refs; projects that share no run may have deployments of their own."
        return _refused(
            [Finding("refs_too_many", "secrets", f"the refs take more than the {limit} bytes of {what}", mend)]
        )
    print("\n".join(shown))
    return Exit.DONE


def _without_values(refs: Sequence[SecretRef]) -> int:
    print(kubernetes.secret_head(), end="")
    for ref in refs:
        print(f'{kubernetes.secret_key(ref)}""')
    print("# No value was asked for: the keys are empty, and serve refuses empty files. Add --with-values to apply it.")
    return Exit.DONE


def _with_values(inputs: Inputs) -> int:
    """Write each value from its buffer, Base64 in a buffer of its own; nothing of it becomes bytes or str."""
    total = 0
    for source in inputs.sources:
        with inputs.value(source) as view:
            total += len(view)
    if total > kubernetes.SECRET_BYTES:
        mend = "Split the refs over more than one Secret and project them into one volume."
        cause = f"the values together have {total} bytes; one Secret holds {kubernetes.SECRET_BYTES}"
        return _refused([Finding("secret_too_large", "secrets", cause, mend)])
    _write(kubernetes.secret_head().encode())
    try:
        with inputs.pool.take(encoded_size(BUNDLE_BYTES)) as room:
            for source, ref in zip(inputs.sources, _refs(inputs.sources), strict=True):
                with inputs.value(source) as view, room.view[: encoded_size(len(view))] as encoded:
                    encode_into(view, encoded)
                    _write(kubernetes.secret_key(ref).encode())
                    _write(encoded)
                _write(b"\n")
    except BadValue:
        raise Fault(Exit.FAILED, "A value changed while it was read.", "Discard this output and run again.") from None
    return Exit.DONE


def _write(content: bytes | memoryview) -> None:
    with memoryview(content) as view:
        done = 0
        while done < len(view):
            done += os.write(_STDOUT, view[done:])


def _refused(found: list[Finding]) -> int:
    with redirect_stdout(sys.stderr):
        return report("manifest", found, {}, as_json=False)
