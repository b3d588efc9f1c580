"""What the documents say in a form that tests can hold against the code: their files, blocks, spans and commands."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]

_FENCED: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INDENTED: Final = re.compile(r"(?:^\n)(?:^(?: {4}|\t).*\n)+", re.MULTILINE)
_SPAN: Final = re.compile(r"`([^`\n]+)`")
_INNER: Final = re.compile(r"\$\(([^()]*)\)")
_HERE: Final = re.compile(r"<<-?'?(\w+)'?([^\n]*)\n.*?^\1$", re.DOTALL | re.MULTILINE)
_ENDS: Final = {"|", ";", "&", "&&", "||", "(", ")"}
_REDIRECTIONS: Final = {">", ">>", "<"}


def documents() -> list[Path]:
    """Every document of the repository that a person reads, the folders' own ones included."""
    own = [path for path in ROOT.glob("*.md") if path.is_file()]
    return sorted([*own, *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md"), *(ROOT / "k8s").rglob("*.md")])


def name(path: Path) -> str:
    """A document's path as people write it."""
    return str(path.relative_to(ROOT))


def blocks(text: str) -> list[tuple[str, str]]:
    """Every block of code with its language: fenced ones, then those that are indented by four."""
    fenced = [(match[1], match[2]) for match in _FENCED.finditer(text)]
    rest = _FENCED.sub("", text)
    indented = [match[0].lstrip("\n") for match in _INDENTED.finditer(rest)]
    return fenced + [("", re.sub(r"^(?: {4}|\t)", "", block, flags=re.MULTILINE)) for block in indented]


def spans(text: str) -> list[str]:
    """Everything between single backquotes outside of blocks."""
    return _SPAN.findall(_INDENTED.sub("\n", _FENCED.sub("", text)))


def words(script: str, program: str) -> Iterator[list[str]]:
    """The arguments of every call of a program in a shell script, those inside `$(...)` included.

    What a substitution would give stands as one word. Comments, here-documents and redirections are left out.
    """
    script = _HERE.sub(r"\2", script).replace("\\\n", " ").replace("2>&1", " ")
    while found := _INNER.search(script):
        yield from words(found[1], program)
        script = script[: found.start()] + "SUBSTITUTED" + script[found.end() :]
    for line in script.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        command: list[str] = []
        redirected = False
        for word in (*lexer, ";"):
            if word in _ENDS:
                yield from _arguments(command, program)
                command = []
            elif not redirected and word not in _REDIRECTIONS:
                command.append(word)
            redirected = word in _REDIRECTIONS


def _arguments(command: list[str], program: str) -> Iterator[list[str]]:
    """What follows the program's name; a name before `--` is somebody else's argument."""
    for place, word in enumerate(command):
        if word.rpartition("/")[2] == program and command[place + 1 : place + 2] != ["--"]:
            yield command[place + 1 :]
            return
