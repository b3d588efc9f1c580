"""Running a coroutine that must not suspend."""

from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def finish(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run `coroutine` to its end without a loop. Raises AssertionError when it suspends, else what it raises."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    coroutine.close()
    raise AssertionError("the coroutine suspended")
