"""JSON lines on stdout, from a white list (contract 9). Never a message text, stack, path, ref, name, token or value.

Lines are handed to a writer thread: a stalled reader of our output must not stall requests. When its queue is full,
lines are dropped and counted.
"""

import json
import os
import select
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Final

from sidecar.answers import timestamp

EVENTS: Final = frozenset((
    "process_disabled", "process_starting", "process_ready", "process_stopping", "process_stopped", "process_failed",
    "configuration_fault", "start_fault", "request_completed", "identity_reloaded", "identity_rejected",
    "identity_watch_failed", "authority_rights_wrong", "events_dropped",
))  # fmt: skip
"""Every event there is."""

FIELDS: Final = frozenset((
    "requestId", "traceId", "instance", "code", "reason", "stage", "status", "durationMs", "providerCode",
    "providerReason", "variable", "fault", "role", "generation", "exitCode", "dropped", "version",
    "port", "healthPort", "metricsPort",
))  # fmt: skip
"""Every field beside the fixed ones; a value is a number, a member of a closed set, or an id that the contract logs."""

_QUEUE_LINES: Final = 10_000
_BATCH_S: Final = 0.1
_NEWLINE: Final = 0x0A
_write: Final = json.JSONEncoder(separators=(",", ":")).encode


class Events:
    """Writes events to a descriptor. One per process; `close` flushes what it can within its time."""

    def __init__(self, replica_id: str, component: str = "secret-sidecar", descriptor: int = 1) -> None:
        """`replica_id` names this process in every line."""
        self._fixed = {"schemaVersion": 1, "component": component}
        self._replica_id = replica_id
        self._descriptor = descriptor
        self._lines: deque[tuple[str, str, int, Mapping[str, object]]] = deque()
        self._wake = threading.Event()
        self._ending = False
        self._thread: threading.Thread | None = None
        # One number for each thread that counts.
        self._overflowed = 0
        self._lost = 0
        self._told = 0
        self._torn = b""

    @property
    def dropped(self) -> int:
        """Lines lost to a full queue or a broken output. Once lines flow again, an event tells the number, too."""
        return self._overflowed + self._lost

    def emit(self, event: str, level: str = "info", **fields: object) -> None:
        """Queue one line. Raises ValueError for an event or field outside the white list."""
        if event not in EVENTS or not fields.keys() <= FIELDS:
            raise ValueError("event or field outside the white list")
        if len(self._lines) >= _QUEUE_LINES:
            self._overflowed += 1
            return
        # Written out by the thread: on the request path an event costs its moment and no more.
        self._lines.append((event, level, time.time_ns(), fields))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="events", daemon=True)
            self._thread.start()
        if not self._wake.is_set():
            self._wake.set()

    def _line(self, event: str, level: str, now_ns: int, fields: Mapping[str, object]) -> str:
        return _write({
            **self._fixed,
            "level": level,
            "event": event,
            "replicaId": self._replica_id,
            "timestamp": timestamp(now_ns),
            **fields,
        })  # fmt: skip

    def _run(self) -> None:
        while True:
            self._wake.wait()
            if not self._ending:
                # A little patience makes one write of many lines.
                time.sleep(_BATCH_S)
            self._wake.clear()
            self._write()
            if self._ending and not self._lines:
                return

    def _write(self) -> None:
        batch = []
        dropped = self.dropped
        while self._lines:
            batch.append(self._line(*self._lines.popleft()))
        emitted = len(batch)
        if batch and dropped > self._told:
            batch.append(self._line("events_dropped", "error", time.time_ns(), {"dropped": dropped}))
        whole = self._torn + "".join(f"{line}\n" for line in batch).encode()
        left = memoryview(whole)
        try:
            while left:
                try:
                    left = left[os.write(self._descriptor, left) :]
                except BlockingIOError:  # whoever shares our output has made it non-blocking
                    select.select((), (self._descriptor,), ())
        except OSError:
            # What follows the torn line, if anything ever does, begins a line of its own.
            written = len(whole) - len(left)
            if written:
                self._torn = b"" if whole[written - 1] == _NEWLINE else b"\n"
            self._lost += min(bytes(left).count(_NEWLINE), emitted)
        else:
            self._torn, self._told = b"", dropped

    def close(self, timeout_s: float = 1.0) -> None:
        """Flush and stop the thread; gives up on a stalled output after `timeout_s`."""
        if self._thread is not None:
            self._ending = True
            self._wake.set()
            self._thread.join(timeout_s)
