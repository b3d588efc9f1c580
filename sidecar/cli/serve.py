"""`secret-sidecar serve`: the profile gate first, then configuration, then the process (contract 8 and 9)."""

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from sidecar.cli.common import Exit, Fault, lines
from sidecar.config import ConfigFaults, Gate, gate, load
from sidecar.events import Events
from sidecar.hardening import harden


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command; everything is configured by the environment."""
    parser.epilog = lines((
        "Configuration is read from the environment alone; docs/configuration.md lists every variable.",
        "Ends with 0 after SIGTERM, or at once while the ingress is disabled; with 78 for faulty configuration.",
        "",
        "example:",
        "  QL_DEPLOYMENT_PROFILE=cluster-control QL3_WORKER_INGRESS_ENABLED=true ... secret-sidecar serve",
    ))  # fmt: skip


def run(_: argparse.Namespace) -> int:
    """Serve until a signal. Nothing but the gate's two variables is read before the gate has opened."""
    with _signals_wait():
        return _run()


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Keep the signals that end us until the process handles them: it takes a moment to import what handles them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run() -> int:
    try:
        if gate() is Gate.DISABLED:
            events = Events("")
            events.emit("process_disabled")
            events.close()
            return Exit.DONE
        _harden()
        config = load()
    except ConfigFaults as faults:
        events = Events("")
        for fault in faults.faults:
            events.emit("configuration_fault", level="error", variable=fault.variable)
        events.close()
        print(f"secret-sidecar serve: the configuration does not hold:\n{faults}", file=sys.stderr)
        return Exit.CONFIGURATION
    # Only now is anything of the serving half imported; what `lean` needs of TLS is part of it.
    lean = import_module("sidecar.lean")
    lean.keep_one_heap()
    with lean.without_system_authorities():
        serving = import_module("sidecar.run")
    return int(serving.run(config))


def _harden() -> None:
    """Protect the process before the configuration, which holds its first secret, is read."""
    try:
        harden()
    except OSError as error:
        wrong = f"The kernel refuses to protect this process ({error.strerror})."
        raise Fault(Exit.FAILED, wrong, "Allow it prctl and setrlimit.") from None
