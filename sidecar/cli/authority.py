"""`secret-sidecar authority`: the embedded control plane (contract 6). Its actions are in `authority_*`."""

import argparse

from sidecar.cli import authority_audit, authority_file, authority_runs, authority_show, authority_workers
from sidecar.cli.authority_store import control_faults
from sidecar.cli.common import lines

_MODULES = (authority_file, authority_workers, authority_runs, authority_show, authority_audit)


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe every action."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for module in _MODULES:
        module.configure(actions)
    parser.epilog = lines(
        (
            "Every action takes --file STORE, or the variables that serve reads:",
            "QL3_WORKER_SECRET_AUTHORITY=sqlite and QL3_WORKER_SECRET_AUTHORITY_FILE.",
            "On PostgreSQL (QL3_WORKER_SECRET_AUTHORITY=postgres) all but show need --admin-url-file F besides,",
            "and work only on tables that init has made; init --receipts works beside QL3's own.",
            "Ends with 65 for bad input, 1 when things do not stand so, 78 when the store cannot be used.",
            "",
            "example, from nothing to an offer that a worker can fetch with:",
            "  secret-sidecar authority init --file store.db",
            "  secret-sidecar authority enroll worker-1 --token-file worker-1.token --file store.db",
            "  secret-sidecar authority open-session worker-1 --file store.db",
            "  secret-sidecar authority dispatch --worker worker-1 --project p --task t \\",
            "    --secret API_TOKEN=$(secret-sidecar ref encode --project p --name api-token) \\",
            "    --offer-file worker-1.offer --file store.db",
        )
    )


def run(args: argparse.Namespace) -> int:
    """Do the action."""
    with control_faults():
        return int(args.act(args))
