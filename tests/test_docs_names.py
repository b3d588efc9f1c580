"""Every variable, metric, answer and alert that a document names is one that the program has (issue 8)."""

import ast
import re
from itertools import chain
from pathlib import Path
from typing import Final

import pytest

from provider.outcomes import Code
from sidecar.metrics import PREFIX, Metrics
from sidecar.variables import BY_NAME
from tests.tools.doctext import ROOT, documents, name

DOCUMENTS: Final = documents()
ELSEWHERE: Final = re.compile(r"QL3_WORKER_(SECRET_VAULT|ARTIFACT)_|QL3_SECRET_SIDECAR_$|QL3_WORKER_[A-Z]+_$|QL3_?$")
"""Prefixes, and names of QL3 that we speak of because we do not have them."""
SUFFIXES: Final = ("_total", "_bucket", "_sum", "_count", "_info")
ANSWERS: Final = {(str(code.value.status), code.value.code) for code in Code}


def registered(module: Path) -> set[str]:
    """The metrics that a module registers: by a call on `metrics`, or as a constant that such a call is given."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            given = node.args[:1] if node.func.attr in ("gauge", "counter", "labelled") else []
        elif isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Tuple):
            given = node.value.elts[:1]
        else:
            given = []
        found |= {each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    return found


def metrics() -> set[str]:
    """The names of all families, without the suffixes that the text format adds."""
    own = {family.name.removeprefix(f"{PREFIX}_") for family in Metrics().collect()}
    return own | set(chain.from_iterable(registered(path) for path in (ROOT / "sidecar").glob("*.py")))


METRICS: Final = metrics()


def test_the_metrics_of_the_program_are_found() -> None:
    """The list that documents are held against has those of process, store, provider and either database."""
    assert {"requests", "build", "ready", "store_sessions", "store_bytes", "drift", "shield_peers"} <= METRICS
    assert "no_such" not in METRICS


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_metric_exists(document: Path) -> None:
    """A metric that a document names is registered, under the suffix of its kind."""
    for found in re.findall(rf"\b{PREFIX}_([a-z_]+)", document.read_text(encoding="utf-8")):
        suffix = next((each for each in SUFFIXES if found.endswith(each)), "")
        assert found in METRICS or found.removesuffix(suffix) in METRICS, found


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_variable_exists(document: Path) -> None:
    """A variable that a document names is one of the table."""
    for found in re.findall(r"\bQL3?_[A-Z0-9_]*", document.read_text(encoding="utf-8")):
        assert found in BY_NAME or ELSEWHERE.match(found), found


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_answer_has_its_status(document: Path) -> None:
    """An answer that a document names with its status has that status."""
    found = set(re.findall(r"\b([1-5]\d\d) `([a-z_]+)`", document.read_text(encoding="utf-8")))
    assert found - {("78", "")} <= ANSWERS
