"""Waiting for what other threads and processes do."""

import time
from collections.abc import Callable


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds. Raises AssertionError after 20 s."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)
