"""What an object leads to, for tests that look for something that must not be there."""

import gc
import types

_SHARED = type | types.ModuleType | types.FunctionType | types.BuiltinFunctionType
"""What every object reaches, and through it all the program."""


def reachable(root: object) -> list[object]:
    """Every object that can be reached from `root` by attributes, items and the collector's references."""
    seen: dict[int, object] = {}
    waiting = [root]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, _SHARED):
            continue
        seen[id(one)] = one
        waiting += gc.get_referents(one)
        waiting += [getattr(one, name) for name in getattr(type(one), "__slots__", ()) if hasattr(one, name)]
    return list(seen.values())


def leads_to(root: object, *hidden: str) -> bool:
    """Tell whether one of these texts, as text or bytes, or inside a longer one, can be reached."""
    texts = [str(one) for one in reachable(root) if isinstance(one, str | bytes | bytearray)]
    return any(secret in text for secret in hidden for text in texts)
