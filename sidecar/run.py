"""From a good configuration to an exit code: the event loop, what stands against a start (contract 9)."""

import asyncio
import sys

from sidecar.compose import StartFaults
from sidecar.config import Config
from sidecar.events import Events
from sidecar.process import serve


def run(config: Config) -> int:
    """Run the process to its end and return its exit code: 0 after a signal, 78 for start faults, 1 for a failure."""
    events = Events(config.replica_id)
    events.emit("process_starting")
    try:
        asyncio.run(serve(config, events))
    except StartFaults as faults:
        for fault in faults.faults:
            events.emit("start_fault", level="error", variable=fault.variable, fault=fault.code)
            _say(f"{fault.variable}: {fault.wrong}. {fault.mend}")
        return _end(events, 78)
    except OSError as error:
        _say(f"the system refused ({error.strerror}). Check that the ports are free and that this user may bind them.")
        return _end(events, 1)
    return _end(events, 0)


def _say(text: str) -> None:
    sys.stderr.write(f"secret-sidecar serve: {text}\n")


def _end(events: Events, code: int) -> int:
    events.emit(
        "process_stopped" if code == 0 else "process_failed", level="info" if code == 0 else "error", exitCode=code
    )
    events.close()
    return code
