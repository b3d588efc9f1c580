"""The three operations of JSON Patch (RFC 6902) that our findings use, applied as a cluster would."""

import json
import re
from typing import Any

Manifest = dict[str, Any]


def follow(found: list[Manifest], mend: str) -> None:
    """Do what a finding's mend says: patch the object that it names, or add the one that it shows."""
    named = re.fullmatch(r"Patch ([A-Za-z]+)/(\S+) with (\[.*\])", mend, re.DOTALL)
    added = re.fullmatch(r"Add (\{.*\})", mend)
    removed = re.match(r"Remove it; in an overlay, as a patch: (\{.*\})|Remove ([A-Za-z]+)/([^ ]+)\.$", mend)
    if named is not None:
        (body,) = [each for each in found if (each["kind"], each["metadata"]["name"]) == (named[1], named[2])]
        for operation in json.loads(named[3]):
            _apply(body, operation)
    elif added is not None:
        found.append(json.loads(added[1]))
    elif removed is not None:
        body = json.loads(removed[1]) if removed[1] else {"kind": removed[2], "metadata": {"name": removed[3]}}
        key = (body["kind"], body["metadata"]["name"])
        found[:] = [each for each in found if (each["kind"], each["metadata"]["name"]) != key]
    else:
        raise AssertionError(f"no exact mend: {mend}")


def _apply(body: Any, operation: Manifest) -> None:
    *parents, last = [step.replace("~1", "/").replace("~0", "~") for step in operation["path"].split("/")[1:]]
    node = body
    for step in parents:
        node = node[int(step) if isinstance(node, list) else step]
    kind = operation["op"]
    if kind == "remove":
        del node[int(last) if isinstance(node, list) else last]
    elif isinstance(node, list) and kind == "add":
        node.insert(len(node) if last == "-" else int(last), operation["value"])
    elif kind == "add":
        node[last] = operation["value"]
    else:
        assert kind == "replace"
        at: Any = int(last) if isinstance(node, list) else last
        assert node[at] is not None
        node[at] = operation["value"]
