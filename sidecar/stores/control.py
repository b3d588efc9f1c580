"""The embedded control plane: workers and runs, for a deployment without QL3 (contract 6).

Each function is one step inside the caller's transaction (`ControlDb.transaction`), portable between the stores. It
checks before it writes and raises ControlRefused with nothing changed. Times are the store's. States that it writes:

- run: `dispatching`, `running`, then `released`, or `cancelled` when it was cancelled before it was released;
- attempt: `starting`, `running`, then `released` or `cancelled` as its run;
- lease: `leased`, then `released`; session: `online`, then `draining`;
- credential: `active`, then `superseded` by the next version, or `revoked`.

A release says that the worker has given the attempt back, not whether its task went well: that is not known here.
"""

from sidecar.stores.control_db import ControlDb, ControlRefused, Tx, Wrong
from sidecar.stores.control_rules import LONGEST_TTL_MS, TERMINAL, Until
from sidecar.stores.control_runs import cancel, dispatch, release, renew, start
from sidecar.stores.control_show import show
from sidecar.stores.control_workers import drain, enroll, open_session, revoke_credential
from sidecar.stores.plans import Plan, PlanFaults, make_plan

__all__ = [
    "ControlDb",
    "ControlRefused",
    "LONGEST_TTL_MS",
    "Plan",
    "PlanFaults",
    "TERMINAL",
    "Tx",
    "Until",
    "Wrong",
    "cancel",
    "dispatch",
    "drain",
    "enroll",
    "make_plan",
    "open_session",
    "release",
    "renew",
    "revoke_credential",
    "show",
    "start",
]
