"""Writes what is generated in docs/ anew from the code: `make docs`. A test fails when it is stale.

docs/openapi.yaml is generated as a whole (tests/tools/openapi.py); everything else is a table in a document.

A table stands between two marks in a document that is otherwise written by hand:

    <!-- generated: outcomes -->
    ...
    <!-- end of generated -->
"""

import ast
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

from bench.tables import TABLES
from provider import limits
from provider.outcomes import Close, Code, Reason
from sidecar.variables import VARIABLES, Group, Only, Variable
from tests.mutants.failure import PREFIX, Failure, Seen, Silent
from tests.mutants.failure import Group as Section
from tests.mutants.failures import FAILURES, numbered
from tests.mutants.mechanisms import MECHANISMS
from tests.mutants.promises import PROMISES
from tests.mutants.showing import SHOWING
from tests.mutants.table import MUTANTS
from tests.tools import openapi

ROOT: Final = Path(__file__).resolve().parents[2]
_BLOCK: Final = re.compile(r"(<!-- generated: ([a-z -]+) -->\n)(.*?)(<!-- end of generated -->)", re.DOTALL)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; a bar inside a cell is escaped."""
    shown = [[cell.replace("|", r"\|") for cell in row] for row in (header, ["---"] * len(header), *rows)]
    return "".join(f"| {' | '.join(row)} |\n" for row in shown)


def variables(group: Group) -> str:
    """The variables of one group."""
    rows = [
        (f"`{variable.name}`", default_of(variable), variable.rule.wants, meaning_of(variable), origin_of(variable))
        for variable in VARIABLES
        if variable.group is group
    ]
    return table(("Variable", "Default", "Value", "Meaning", "Origin"), rows)


def default_of(variable: Variable) -> str:
    """What holds when the variable is not set."""
    if variable.default is not None:
        return f"`{variable.default}`"
    return "required" if variable.required else "unset"


def meaning_of(variable: Variable) -> str:
    """The meaning, and the choice with which the variable counts unless its group says it."""
    if variable.only is Only.ALWAYS or variable.group is Group.POSTGRES:
        return variable.meaning
    return f"{variable.meaning} Only with `{variable.only.value}`."


def origin_of(variable: Variable) -> str:
    """Whether QL3 has the same variable with the same bounds."""
    return "ours" if variable.ours else "QL3"


def outcomes() -> str:
    """Every refusal in the order in which it is looked for."""
    rows = [
        (
            str(reason.value.order),
            reason.value.stage.value,
            reason.value.condition,
            f"{reason.value.code.value.status} `{reason.value.code.value.code}`",
            "yes" if reason.value.closes else "",
        )
        for reason in Reason
    ]
    return table(("", "Stage", "Condition", "Answer", "Closes"), rows)


def problems() -> str:
    """The fixed texts of every code."""
    rows = [(f"`{code.value.code}`", str(code.value.status), code.value.title, code.value.detail) for code in Code]
    return table(("`code`", "`status`", "`title`", "`detail`"), rows)


def closes() -> str:
    """The labels of the closes without an answer."""
    return ", ".join(f"`{close.value}`" for close in Close) + ".\n"


def fixed_limits() -> str:
    """Every number of `provider/limits.py` with the reason that stands below it."""
    tree = ast.parse(Path(limits.__file__).read_text(encoding="utf-8")).body
    reasons = {
        named.target.id: stated.value.value
        for named, stated in pairwise(tree)
        if isinstance(named, ast.AnnAssign) and isinstance(named.target, ast.Name)
        if isinstance(stated, ast.Expr) and isinstance(stated.value, ast.Constant)
    }
    rows = [
        (f"`{name}`", f"{getattr(limits, name):g}" if name.endswith("_S") else str(getattr(limits, name)), str(reason))
        for name, reason in reasons.items()
    ]
    return table(("Limit", "Value", "Reason"), rows)


def promises() -> str:
    """Every promise with what makes it true, the metric that shows it, and the tests and mutants that prove it."""
    rows = []
    for name, promise in PROMISES.items():
        mutants = [mutant for mutant in MUTANTS if mutant.promise == name]
        tests = dict.fromkeys(mutant.test.partition("[")[0] for mutant in mutants)
        rows.append((name, promise, MECHANISMS[name], metrics(SHOWING[name]), _tests(tests), str(len(mutants))))
    return table(("", "Promise", "Mechanism", "Metric", "Fails when it is broken", "Mutants"), rows)


def metrics(shown: tuple[str, ...] | Silent) -> str:
    """Metrics by their full names, or why there is none."""
    if isinstance(shown, Silent):
        return shown.value
    return "<br>".join(f"`{PREFIX}{name}`" for name in shown)


def _tests(names: Iterable[str]) -> str:
    return "<br>".join(f"`{name.removeprefix('tests/')}`" for name in names)


def failures(section: Section) -> str:
    """The failures of one section: what is seen, where it shows, what to do."""
    rows = [
        (
            number,
            failure.happens,
            "<br>".join(map(_answer, failure.seen)),
            failure.metrics.value if isinstance(failure.metrics, Silent) else _codes(failure.shown()),
            _codes(failure.told()) or "none",
            failure.do,
        )
        for number, failure in numbered().items()
        if failure in FAILURES[section]
    ]
    return table(("", "What happens", "A worker sees", "Metric", "Event", "Do"), rows)


def proofs() -> str:
    """Each failure's tests, and the broken lines under which they fail."""
    return table(("", "Shown by", "Fails when"), [(number, *_proof(one)) for number, one in numbered().items()])


def _proof(failure: Failure) -> tuple[str, str]:
    broken = dict.fromkeys(mutant for line in failure.mutants for mutant in line.mutants())
    shown = "<br>".join(f"`{one.file}`: `{one.before}` becomes `{one.after}`" for one in broken)
    return _tests(failure.proof()), shown


def _answer(seen: Reason | Close | Seen) -> str:
    if isinstance(seen, Reason):
        problem = seen.value.code.value
        return f"{problem.status} `{problem.code}`"
    return f"a close without an answer (`{seen.value}`)" if isinstance(seen, Close) else seen.value


def _codes(names: Iterable[str]) -> str:
    return "<br>".join(f"`{name}`" for name in names)


def figures(name: str) -> str:
    """A table of the benchmarks, out of their results."""
    found = TABLES[name]()
    return found if isinstance(found, str) else table(*found)


GENERATED: Final[dict[str, Callable[[], str]]] = {
    "outcomes": outcomes,
    "problems": problems,
    "closes": closes,
    "limits": fixed_limits,
    "promises": promises,
    "proofs": proofs,
    **{f"failures {section.value}": partial(failures, section) for section in Section},
    **{f"variables {group.name.lower()}": partial(variables, group) for group in Group},
    **{name: partial(figures, name) for name in TABLES},
}
"""Every table by the name in its mark."""


def renewed(text: str) -> str:
    """The document with every table as the code has it now. Raises KeyError for a mark that names no table."""
    return _BLOCK.sub(lambda block: f"{block[1]}{GENERATED[block[2]]()}{block[4]}", text)


def marks(text: str) -> list[str]:
    """The names of the tables of a document."""
    return [block[2] for block in _BLOCK.finditer(text)]


def documents() -> list[Path]:
    """Every document that may hold a table."""
    return sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md")])


def main() -> int:
    """Write what is stale and name it."""
    for document in documents():
        text = document.read_text(encoding="utf-8")
        fresh = renewed(text)
        if fresh != text:
            document.write_text(fresh, encoding="utf-8")
            print(f"written: {document.relative_to(ROOT)}")
    whole, fresh = ROOT / "docs" / "openapi.yaml", openapi.written()
    if not whole.exists() or whole.read_text(encoding="utf-8") != fresh:
        whole.write_text(fresh, encoding="utf-8")
        print(f"written: {whole.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
