"""Every command line in the documents is one that works: it parses, its target, module or path is there (issue 8)."""

import re
import shlex
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from sidecar.__main__ import COMMANDS
from sidecar.cli.common import Parser
from tests.tools.doctext import ROOT, blocks, documents, name, spans, words

DOCUMENTS: Final = documents()
SHELL: Final = ("", "sh", "bash", "shell", "console")
MAKEFILE: Final = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS: Final = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
FOLDERS: Final = ("docs/", "provider/", "sidecar/", "tests/", "k8s/", "bench/", "requirements/", ".ci/")


def scripts(path: Path) -> list[str]:
    """Every block of a document that is a shell's."""
    return [block for language, block in blocks(path.read_text(encoding="utf-8")) if language in SHELL]


def calls(path: Path) -> list[list[str]]:
    """The arguments of every call of the console command in a document's blocks."""
    return [call for script in scripts(path) for call in words(script, "secret-sidecar")]


def mentions(path: Path) -> list[list[str]]:
    """The words after the console command's name wherever a line of text names it."""
    found = (span.rstrip(":") for span in spans(path.read_text(encoding="utf-8")))
    return [shlex.split(span)[1:] for span in found if span.startswith("secret-sidecar ")]


def parse(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Parse a command line as the program does, and return what it says against it: nothing when it is good."""
    if arguments in (["--version"], ["--help"]):
        return ""
    if not arguments or arguments[0] not in COMMANDS:
        return "no such command"
    parser = Parser(prog="secret-sidecar")
    import_module(f"sidecar.cli.{arguments[0]}").configure(parser)
    try:
        parser.parse_args(arguments[1:])
    except SystemExit as end:
        return "" if end.code == 0 else capsys.readouterr().err
    return ""


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_command_line_parses(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every call of the console command in a block is taken by its own parser, with every argument that it needs."""
    for call in calls(document):
        assert parse(call, capsys) == "", call


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_mention_is_a_command(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A command that is named in a sentence parses, or is named alone, without the arguments that it would need."""
    for mention in mentions(document):
        said = parse(mention, capsys)
        bare = all(re.fullmatch("[a-z0-9-]+", word) for word in mention) and "following arguments are required" in said
        assert said == "" or bare, (mention, said)


def test_every_command_is_shown() -> None:
    """No command is without an example in some document."""
    shown = {call[0] for path in DOCUMENTS for call in calls(path) + mentions(path)}
    assert set(COMMANDS) <= shown


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_target_is_in_the_makefile(document: Path) -> None:
    """`make X` names a target, and its variables are those that the Makefile takes."""
    text = document.read_text(encoding="utf-8")
    asked = [call for script in scripts(document) for call in words(script, "make")]
    asked += [call for span in spans(text) if re.search(r"\bmake ", span) for call in words(span, "make")]
    for call in asked:
        for word in call:
            variable, given, _ = word.partition("=")
            assert (f"{variable} ?=" in MAKEFILE) if given else word in TARGETS | {"TARGET"}, word


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_module_is_there(document: Path) -> None:
    """`python -m x` names a module of ours, or one of Python's own installer and environments."""
    text = document.read_text(encoding="utf-8")
    modules = re.findall(r"python[0-9.]* -m ([a-z_.]+)", text)
    assert [module for module in modules if module not in ("venv", "pip") and find_spec(module) is None] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_path_is_there(document: Path) -> None:
    """A path of the repository that stands between backquotes, or in a block, leads to a file or folder.

    Results of a benchmark are left to the tests of the benchmarks: some are made on the spot.
    """
    text = document.read_text(encoding="utf-8")
    said = spans(text) + [word for _, block in blocks(text) for word in block.split()]
    for each in said:
        path = each.removeprefix("./").rstrip(".,:")
        if path.startswith(FOLDERS) and re.fullmatch(r"[\w./-]+", path) and "/results/" not in path:
            assert (ROOT / path).exists() or list(ROOT.glob(f"{path}.*")), path


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_link_leads_somewhere(document: Path) -> None:
    """Every relative link names a file or folder, and its fragment a heading there."""
    for target, fragment in re.findall(r"\]\(([^)#\s]*)(?:#([\w-]+))?\)", document.read_text(encoding="utf-8")):
        if target.startswith("https://"):
            continue
        path = (document.parent / target).resolve() if target else document
        assert path.exists(), target
        if fragment:
            headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert fragment in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_scripts_are_read_as_a_shell_does() -> None:
    """Calls are found behind pipes, in substitutions and over lines; comments, here-documents and targets are none."""
    script = (
        "cat <<'END' > a.txt\nx no call\nEND\n"
        "true | /opt/x one 2>&1 > out; x two \\\n  more # x none\n"
        'y "$(x three "$(x four)")" -c x -- x five &\n'
    )
    assert list(words(script, "x")) == [["four"], ["three", "SUBSTITUTED"], ["one"], ["two", "more"], ["five"]]


def test_a_wrong_command_line_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown command, an unknown flag and a missing argument are each told."""
    assert parse(["server"], capsys) != ""
    assert parse(["check", "--colour"], capsys) != ""
    assert "required" in parse(["ref", "encode"], capsys)
    assert parse(["ref", "encode", "--project", "p", "--name", "n"], capsys) == ""
