"""The stage: a forked process that waits for our word and then becomes the command.

`posix_spawn` and `subprocess` return when the command may have run for a while, and then its environment still stands
in our memory. A stage gives the parent a moment of its own: everything is laid out, the process is forked, the parent
wipes, and only then says go. The stage's copy goes with its memory when `execve` replaces it, which is before the
command's first instruction. Nothing secret passes through Python objects on the way: argument and environment vectors
are C arrays, made before the fork.
"""

import ctypes
import os
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, NoReturn

from sidecar.inject import Injection

_GO: Final = b"g"
_FAILED: Final = 127
# Python ignores these for itself; the command gets what every program starts with.
_RESTORED: Final = (signal.SIGPIPE, signal.SIGXFSZ)

_libc: Final = ctypes.CDLL(None, use_errno=True)


class Stage:
    """A forked process that has not become the command yet."""

    def __init__(self, command: Sequence[str], injection: Injection, mask: Iterable[int]) -> None:
        """Fork. `mask` is the signal mask of the command. Raises OSError."""
        arguments = _vector([ctypes.c_char_p(os.fsencode(argument)) for argument in command])
        environment = _environment(injection)
        self._command = os.fsencode(command[0])
        gate, self._gate = os.pipe()
        self._outcome, outcome = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._gate)
                _become(self._command, arguments, environment, injection, mask, gate, outcome)
            finally:
                os._exit(_FAILED)
        os.close(gate)
        os.close(outcome)

    def go(self) -> int:
        """Let it become the command. Return 0, or the errno for which it could not; it has ended then."""
        os.write(self._gate, _GO)
        os.close(self._gate)
        said = os.read(self._outcome, 1)
        os.close(self._outcome)
        if not said:
            return 0
        os.waitpid(self.pid, 0)
        return said[0]


def _vector(strings: Sequence[ctypes.c_char_p | int]) -> ctypes.Array[ctypes.c_void_p]:
    """Return a NULL-terminated array of pointers, which keeps the strings of its `c_char_p` alive."""
    vector = (ctypes.c_void_p * (len(strings) + 1))()
    for index, string in enumerate(strings):
        vector[index] = string if isinstance(string, int) else ctypes.cast(string, ctypes.c_void_p)
    vector._strings = strings  # type: ignore[attr-defined]
    return vector


def _environment(injection: Injection) -> ctypes.Array[ctypes.c_void_p]:
    """Our own environment, with the injection's variables and strings in place of any of the same name."""
    plain = {os.fsencode(name): os.fsencode(value) for name, value in injection.variables().items()}
    secret = {name.encode() for name in injection.secret_names()}
    merged = {name: value for name, value in os.environb.items() if name not in secret} | plain
    strings: list[ctypes.c_char_p | int] = [ctypes.c_char_p(b"%s=%s" % pair) for pair in merged.items()]
    return _vector([*strings, *injection.secret_strings()])


def _become(
    command: bytes,
    arguments: ctypes.Array[ctypes.c_void_p],
    environment: ctypes.Array[ctypes.c_void_p],
    injection: Injection,
    mask: Iterable[int],
    gate: int,
    outcome: int,
) -> NoReturn:
    """In the stage: wait for the word, take what the injection has, become the command. Never returns."""
    with suppress(BaseException):
        # Without the word there is no command: the parent has ended, and its end of the gate with it.
        if os.read(gate, 1) == _GO:
            injection.child()
            for number in _RESTORED:
                signal.signal(number, signal.SIG_DFL)
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            _libc.execvpe(command, arguments, environment)
            os.write(outcome, bytes([ctypes.get_errno()]))
    os._exit(_FAILED)
