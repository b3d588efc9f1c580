"""Process hardening, before the first secret (issue of the product: nothing of a value leaves by a side door).

There is no switch: what cannot be had is an error at start, except memory locks, which are a metric.
"""

import ctypes
import os
import resource
from typing import Final

_PR_SET_DUMPABLE: Final = 4
_PR_SET_NO_NEW_PRIVS: Final = 38


def widen() -> None:
    """Take every descriptor that the hard limit allows.

    The usual soft limit of 1024 is less than the default limits of connections need beside files and stores; it would
    bite in their place, and starve deliveries of the descriptors for their files.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def harden() -> None:
    """Make the process not dumpable, without core files, without new privileges, and its files private.

    Raises OSError when the kernel refuses.
    """
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)
    for option, value in ((_PR_SET_DUMPABLE, 0), (_PR_SET_NO_NEW_PRIVS, 1)):
        if libc.prctl(option, value, 0, 0, 0) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
