"""One target under atheris, in a process of its own: libFuzzer ends it when its time is over or the target fails."""

import sys

import atheris

with atheris.instrument_imports(include=["provider", "sidecar"]):
    from tests.fuzz import targets


def main() -> None:
    """Fuzz the target named first; what follows is libFuzzer's."""
    name, *rest = sys.argv[1:]
    one = atheris.instrument_func(targets.planted) if name == "planted" else targets.TARGETS[name].one
    atheris.Setup([sys.argv[0], *rest], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
