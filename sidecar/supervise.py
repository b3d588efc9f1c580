"""The parent of a command: it forwards signals, stops and goes on with it, and ends as it ended.

The command stays in our process group and keeps the terminal. So what the terminal sends (interrupt, quit, suspend,
hang-up, a new window size) reaches it without us, and forwarding it would deliver it twice; the kernel marks such
signals, and only those that a process sent are forwarded.
"""

import os
import signal
from typing import Final

# Faults of our own, the two that cannot be caught, and the one that is the news of the command.
_OURS: Final = {
    signal.SIGKILL,
    signal.SIGSTOP,
    signal.SIGCHLD,
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGSYS,
    signal.SIGABRT,
}
_FORWARDED: Final = signal.valid_signals() - _OURS
_JOB_CONTROL: Final = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
_SENT_BY_THE_KERNEL: Final = 0
"""`si_code` of a signal that a process sent is this or less."""


def hold_signals() -> set[int]:
    """Hold back what `supervise` will take, and return the mask as it was, which the command gets.

    From here no signal but SIGKILL ends us before we have cleaned up.
    """
    # A parent that ignores SIGCHLD would make the kernel forget the command's status.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, {*_FORWARDED, signal.SIGCHLD}))


def supervise(pid: int) -> int:
    """Wait for the command, with signals held. Return its status, or 128 + the signal that ended it."""
    while True:
        came = signal.sigwaitinfo({*_FORWARDED, signal.SIGCHLD})
        if came.si_signo == signal.SIGCHLD:
            code = _reap(pid)
            if code is not None:
                return code
        elif came.si_code <= _SENT_BY_THE_KERNEL:
            os.kill(pid, came.si_signo)


def _reap(pid: int) -> int | None:
    """Take every change there is: as the first process of a container we inherit orphans too."""
    while True:
        changed, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        if changed == 0:
            return None
        if changed != pid:
            continue
        if os.WIFSTOPPED(status):
            if os.WSTOPSIG(status) in _JOB_CONTROL:
                # So that the shell sees its job stop, and takes the terminal back; its SIGCONT reaches both.
                os.kill(os.getpid(), signal.SIGSTOP)
            continue
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code
