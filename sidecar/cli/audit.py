"""`secret-sidecar audit k8s`: what in rendered manifests stands against serving secrets safely (contract 10)."""

import argparse
import sys

from sidecar.audit import audit, read_path
from sidecar.cli.common import lines, print_table
from sidecar.cli.reports import report
from sidecar.findings import counted


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    kinds = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    k8s = kinds.add_parser("k8s", help="rendered Kubernetes manifests", description=parser.description)
    k8s.add_argument("path", metavar="PATH", help="a file, a directory of manifests, or - for standard input")
    k8s.add_argument("--strict", action="store_true", help="end with 65 for warnings, too")
    k8s.add_argument("--json", action="store_true", help="print one JSON document instead of lines")
    parser.epilog = k8s.epilog = lines(
        (
            "Each finding has a code, its cause and the patch that mends it. Nothing is changed, no cluster is asked.",
            "Ends with 0, or with 65 for any finding of severity error.",
            "",
            "example:",
            "  kubectl kustomize k8s/base | secret-sidecar audit k8s - --strict",
        )
    )


def run(args: argparse.Namespace) -> int:
    """Audit and print; 65 for a finding of severity error."""
    documents, findings = read_path(args.path)
    found, sidecars = audit(documents)
    findings += found
    numbers = counted(findings)
    summary = {"documents": len(documents), "sidecars": sidecars, **numbers}
    code = report("audit k8s", findings, summary, as_json=args.json, strict=args.strict)
    if not args.json and not findings and sys.stdout.isatty():
        print_table([("sound", f"{len(documents)} documents, {sidecars} sidecars")])
    return int(code)
