"""All that an exception says, for tests that look for a canary in it."""


def said(error: BaseException) -> str:
    """Text, repr, arguments, notes and attributes of the exception and of every exception that it refers to."""
    parts: list[str] = []
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        attributes = [getattr(one, name, None) for name in ("__notes__", "__dict__", "doc", "object", "name", "obj")]
        parts += [str(one), repr(one), repr(one.args), *map(repr, attributes)]
        waiting += [one.__cause__, one.__context__]
    return "\n".join(parts)
