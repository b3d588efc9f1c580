"""The documents say what the code does: generated tables are fresh, and the list of departures agrees (contract 11)."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from provider import limits
from provider.outcomes import Close, Code, Reason
from sidecar.variable_rules import Whole
from sidecar.variables import BY_NAME, VARIABLES
from tests.tools import docgen

ROOT: Final = docgen.ROOT
DEPARTURES: Final = (ROOT / "docs" / "departures.md").read_text(encoding="utf-8")
CONTRACT: Final = (ROOT / "docs" / "wire-contract.md").read_text(encoding="utf-8")
OWN: Final = DEPARTURES.index("## What is QL3's own")
DROPPED: Final = {
    "invalid_content_length",
    "admission_draining",
    "response_too_large",
    "invalid_response",
    "authentication_shield_unavailable",
}
ANSWERS: Final = {(code.value.status, code.value.code) for code in Code}
LIMITS: Final = {name: value for name, value in vars(limits).items() if name.isupper()}


def rows(text: str) -> Iterator[list[str]]:
    """The cells of every row of every table, heads and rules left out."""
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        for line in block.splitlines()[2:]:
            yield [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def facts(text: str) -> list[str]:
    """Everything between backquotes that is written as a fact."""
    return [fact for fact in re.findall(r"`([^`]+)`", text) if re.match(r"\d{3} |limits\.|QL", fact)]


def answers(text: str) -> set[tuple[int, str]]:
    """The facts about answers."""
    return {(int(fact[:3]), fact[4:]) for fact in facts(text) if fact[0].isdigit()}


def numbers(text: str) -> dict[str, float]:
    """The facts about fixed numbers."""
    named = (fact.removeprefix("limits.").split(" = ") for fact in facts(text) if fact.startswith("limits."))
    return {name: float(value) for name, value in named}


def variable_facts(text: str) -> dict[str, str]:
    """The facts about variables, each by its name."""
    return {fact.split(" ")[0]: fact for fact in facts(text) if fact.startswith("QL")}


def written(name: str) -> set[str]:
    """The ways in which the facts of a variable may be written."""
    variable = BY_NAME[name]
    value = "" if variable.default is None else f" = {variable.default}"
    rule = variable.rule
    bounds = f" ({rule.low}..{rule.high})" if isinstance(rule, Whole) else ""
    return {name + value + bounds}


@pytest.mark.parametrize("document", docgen.documents(), ids=lambda path: path.name)
def test_generated_tables_are_fresh(document: Path) -> None:
    """Every generated table is what the code says now; `make docs` was not forgotten."""
    text = document.read_text(encoding="utf-8")
    assert docgen.renewed(text) == text
    assert text.count("<!-- generated:") == text.count("<!-- end of generated -->") == len(docgen.marks(text))


def test_every_table_is_in_a_document() -> None:
    """Every table that can be generated stands in exactly one document."""
    shown = [mark for path in docgen.documents() for mark in docgen.marks(path.read_text(encoding="utf-8"))]
    assert sorted(shown) == sorted(docgen.GENERATED)


def test_a_stale_table_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The generator replaces what stands between the marks and leaves the rest as it is."""
    (tmp_path / "docs").mkdir()
    document = tmp_path / "docs" / "a.md"
    document.write_text("before\n<!-- generated: closes -->\nold\n<!-- end of generated -->\nafter\n", encoding="utf-8")
    monkeypatch.setattr(docgen, "ROOT", tmp_path)
    assert docgen.main() == 0
    text = document.read_text(encoding="utf-8")
    assert text == f"before\n<!-- generated: closes -->\n{docgen.closes()}<!-- end of generated -->\nafter\n"


def test_the_tables_show_everything() -> None:
    """Every reason, code, limit, close and variable has its line, with its number beside it."""
    shown = list(rows(CONTRACT))
    for reason in Reason:
        code = reason.value.code.value
        closes = "yes" if reason.value.closes else ""
        stage, condition = reason.value.stage.value, reason.value.condition
        assert [str(reason.value.order), stage, condition, f"{code.status} `{code.code}`", closes] in shown
    for name, value in LIMITS.items():
        (row,) = (row for row in shown if row[0] == f"`{name}`")
        assert float(row[1]) == value and len(row[2]) > 5
    assert all(f"`{close.value}`" in CONTRACT for close in Close)
    configured = [row[0] for row in rows((ROOT / "docs" / "configuration.md").read_text(encoding="utf-8"))]
    assert configured == [f"`{variable.name}`" for variable in VARIABLES]


def test_a_bar_in_a_cell_is_escaped() -> None:
    """A bar inside a cell does not end it."""
    assert list(rows(docgen.table(("head",), [("a|b",)]))) == [["a|b"]]


def test_every_departure_has_a_reason() -> None:
    """Every row of the list names what we do and why, and no row stands twice."""
    listed = list(rows(DEPARTURES[:OWN]))
    assert len({row[0] for row in listed}) == len(listed) > 0
    assert [row for row in listed if len(row) != 3 or len(row[0]) < 10 or len(row[1]) < 20] == []


def test_departures_name_answers_as_they_are() -> None:
    """Every answer in the list has the status that the code has; every code is on one of the two lists."""
    assert answers(DEPARTURES) == ANSWERS
    ours = {"malformed_request", "expectation_failed", "length_required", "body_timeout", "invalid_worker_request"}
    assert ours <= {code for _, code in answers(DEPARTURES[:OWN])}
    assert ours.isdisjoint(code for _, code in answers(DEPARTURES[OWN:]))


def test_departures_name_limits_as_they_are() -> None:
    """Every fixed number has its value in the list and is on exactly one of the two sides."""
    ours, theirs = numbers(DEPARTURES[:OWN]), numbers(DEPARTURES[OWN:])
    assert ours.keys().isdisjoint(theirs)
    assert ours | theirs == LIMITS


def test_departures_name_variables_as_they_are() -> None:
    """The list has exactly the variables that are ours, with the default and the bounds that the table has."""
    listed = variable_facts("".join(row[2] for row in rows(DEPARTURES[:OWN])))
    assert set(listed) == {variable.name for variable in VARIABLES if variable.ours}
    assert [fact for name, fact in listed.items() if fact not in written(name)] == []


def test_dropped_codes_stay_dropped() -> None:
    """The codes of QL3 that we dropped are named in the list and are no codes of ours."""
    assert all(f"`{code}`" in DEPARTURES for code in DROPPED)
    assert DROPPED.isdisjoint(code for _, code in ANSWERS)


def test_the_contract_names_answers_as_they_are() -> None:
    """Every answer that the contract's prose names with its status has it in the code."""
    prose = docgen._BLOCK.sub("", CONTRACT)
    named = {(int(status), code) for status, code in re.findall(r"(\d{3}) `([a-z_]+)`", prose)}
    assert named <= ANSWERS and named
