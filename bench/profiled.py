"""`python -m bench.profiled OUT`: `secret-sidecar serve` with a sampler in its main thread, for `bench.stages` alone.

Every few milliseconds of the main thread's processor time, in user code or in the kernel, the kernel sends SIGPROF. The
handler runs when the interpreter can next be interrupted, which is right after the call into C that took the time, with
the frame that made the call, so C code and system calls are charged to their caller. SIGUSR1 begins to count, SIGUSR2
writes OUT. A tracing profiler would charge each of some hundred small functions for its own bookkeeping instead.
"""

import ctypes
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

from sidecar.__main__ import main

EVERY_MS: Final = 1
"""Asked for; the kernel looks at its tick, which is every 4 ms on many machines."""
CLOCK_THREAD_CPUTIME_ID: Final = 3
NO_STAGE: Final = ""
RULES: Final = (
    # File, function (none: any), stage; the first that fits. Files without a rule are helpers: their caller decides.
    ("asyncio/sslproto.py", None, "TLS"),
    ("/ssl.py", None, "TLS"),
    ("sidecar/tlswire.py", None, "TLS"),
    ("sidecar/identity.py", None, "TLS"),
    ("sidecar/stores/sqlite.py", "record", "audit"),
    ("sidecar/stores/sqlite.py", "newest", "authentication"),
    ("sidecar/stores/sqlite.py", "acknowledge", "store"),
    ("sidecar/stores/sqlite_hold.py", None, "store"),
    ("sidecar/stores/postgres.py", "record", "audit"),
    ("sidecar/stores/postgres.py", "newest", "authentication"),
    ("sidecar/stores/postgres_hold.py", None, "store"),
    ("sidecar/stores/postgres_session.py", None, "store"),
    # What the driver's callbacks take belongs to no request that could be told.
    ("/asyncpg/", None, "store"),
    ("provider/authority.py", None, "store"),
    ("provider/credential.py", None, "authentication"),
    ("sidecar/shield.py", None, "authentication"),
    ("sidecar/peer.py", None, "authentication"),
    ("provider/mounted.py", None, "files"),
    ("provider/readers.py", None, "files"),
    ("provider/material.py", None, "files"),
    ("provider/wire.py", None, "encode"),
    ("provider/command.py", None, "command"),
    ("provider/strictjson.py", None, "command"),
    ("sidecar/events.py", None, "event"),
    ("sidecar/metrics.py", None, "event"),
    ("sidecar/framing.py", None, "HTTP"),
    ("sidecar/head.py", None, "HTTP"),
    ("sidecar/connection.py", None, "HTTP"),
    ("sidecar/exchange.py", None, "HTTP"),
    ("sidecar/answers.py", None, "HTTP"),
    ("sidecar/app.py", None, "HTTP"),
    ("sidecar/listener.py", None, "HTTP"),
    ("/aiohttp/", None, "HTTP"),
    ("asyncio/selector_events.py", None, "loop and sockets"),
    ("asyncio/base_events.py", None, "loop and sockets"),
    ("asyncio/events.py", None, "loop and sockets"),
    ("/selectors.py", None, "loop and sockets"),
)
REST: Final = "rest"
STAGES: Final = (*dict.fromkeys(stage for _, _, stage in RULES), "threads", REST)


def stage_of_code(filename: str, function: str) -> str:
    """Return the stage of a function, nothing when its caller decides."""
    for file, name, stage in RULES:
        if file in filename and name in (None, function):
            return stage
    return NO_STAGE


class Sampler:
    """Counts samples by stage."""

    def __init__(self, out: Path) -> None:
        """Prepare; nothing is counted before SIGUSR1."""
        self.counts: Counter[str] = Counter()
        self._out = out
        self._known: dict[CodeType, str] = {}
        self._counting = False

    def sample(self, _: int, frame: FrameType | None) -> None:
        """Charge one sample to the innermost function that bears a stage."""
        if self._counting:
            self.counts[self.stage_of(frame)] += 1

    def stage_of(self, frame: FrameType | None) -> str:
        """Return the stage of the innermost frame that has one."""
        while frame is not None:
            code = frame.f_code
            if code not in self._known:
                self._known[code] = stage_of_code(code.co_filename, code.co_name)
            if found := self._known[code]:
                return found
            frame = frame.f_back
        return REST

    def begin(self, *_: object) -> None:
        """Count from now on."""
        self.counts.clear()
        self._counting = True

    def write(self, *_: object) -> None:
        """Stop and write the counts, whole or not at all."""
        self._counting = False
        staged = self._out.with_suffix(".new")
        staged.write_text(json.dumps(self.counts))
        staged.replace(self._out)


class _Event(ctypes.Structure):
    # struct sigevent as far as SIGEV_SIGNAL (0) uses it; 64 bytes in all.
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_char * 48),
    )


def tick(every_ms: int) -> None:
    """Send SIGPROF after every so many milliseconds of this thread's processor time. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    timer = ctypes.c_void_p()
    event = _Event(signal=signal.SIGPROF, notify=0)
    # Interval and first time, each in seconds and nanoseconds.
    times = (ctypes.c_long * 4)(0, every_ms * 1_000_000, 0, every_ms * 1_000_000)
    made = libc.timer_create(CLOCK_THREAD_CPUTIME_ID, ctypes.byref(event), ctypes.byref(timer))
    if made != 0 or libc.timer_settime(timer, 0, ctypes.byref(times), None) != 0:
        raise OSError(ctypes.get_errno(), "no timer of the thread's processor time")


if __name__ == "__main__":
    sampler = Sampler(Path(os.path.abspath(sys.argv[1])))
    signal.signal(signal.SIGPROF, sampler.sample)
    signal.signal(signal.SIGUSR1, sampler.begin)
    signal.signal(signal.SIGUSR2, sampler.write)
    tick(EVERY_MS)
    sys.exit(main(["serve"]))
