"""The frame holds what it promises: import rules, docstrings, sizes, lock files, and the commands in documents."""

import ast
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement

ROOT: Final = Path(__file__).resolve().parent.parent
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PRODUCT: Final = sorted(path for package in ("provider", "sidecar") for path in (ROOT / package).rglob("*.py"))
PROVIDER: Final = [path for path in PRODUCT if path.is_relative_to(ROOT / "provider")]
FOLDERS: Final = ("provider", "sidecar", "tests", "bench", "requirements")
SOURCES: Final = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
LOCKS: Final = ("build", "tools", "runtime", "dev")
# What the deciding half must not know (architecture, "The house"); asyncpg and psycopg stand for every database driver.
FORBIDDEN: Final = (
    "sidecar",
    "aiohttp",
    "prometheus_client",
    "ssl",
    "sqlite3",
    "asyncpg",
    "psycopg",
    "cryptography",
    "watchfiles",
)
MODULE_LINES: Final = 300
PROVIDER_EXCEPTED_LINES: Final = 5


def name_of(path: Path) -> str:
    """The path as a test's id."""
    return str(path.relative_to(ROOT))


def parsed(path: Path) -> ast.Module:
    """The module's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported(tree: ast.Module) -> Iterator[str]:
    """The top-level name of every import, wherever it stands, also inside a function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." if node.level else (node.module or "").partition(".")[0]


def public_definitions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Public functions and classes, and the public methods and classes inside public classes."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node.body)


def pins(name: str) -> dict[str, str]:
    """Distribution and version of each line of requirements/`name`."""
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9-]+)==([A-Za-z0-9.]+)", text, re.MULTILINE))


@pytest.mark.parametrize("path", PROVIDER, ids=name_of)
def test_provider_names_only_itself_and_the_standard_library(path: Path) -> None:
    """A module of provider/ imports only provider and the standard library, and of that neither TLS nor a database."""
    allowed = (sys.stdlib_module_names | {"provider"}) - set(FORBIDDEN)
    assert set(imported(parsed(path))) <= allowed


def test_provider_runs_where_nothing_else_can_be_imported() -> None:
    """Every module of provider/ can be imported in a process in which each forbidden module is barred."""
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in PROVIDER]
    program = (
        "import importlib, sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        # An import of a name that is None here raises ImportError; asyncio alone copes with a Python without ssl.
        f"sys.modules.update(dict.fromkeys({FORBIDDEN!r}))\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        f"print([name for name in {FORBIDDEN!r} if sys.modules[name] is not None])\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("[]", "", 0)


@pytest.mark.parametrize("path", PRODUCT, ids=name_of)
def test_a_module_says_what_it_is_and_stays_small(path: Path) -> None:
    """Every module of the product begins with a docstring and has at most 300 lines."""
    assert (ast.get_docstring(parsed(path)) or "").strip()
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= MODULE_LINES


@pytest.mark.parametrize("path", PROVIDER, ids=name_of)
def test_what_provider_offers_is_documented(path: Path) -> None:
    """Every public function, class and method of provider/ has a docstring."""
    assert [node.name for node in public_definitions(parsed(path).body) if not ast.get_docstring(node)] == []


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_nothing_is_left_to_be_done(path: Path) -> None:
    """No source holds a note of unfinished work or a placeholder for it."""
    words = "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "NotImplemented" + "Error"))
    assert re.findall(rf"\b(?:{words})\b", path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("test_*.py")), ids=name_of)
def test_every_test_states_its_rule(path: Path) -> None:
    """Every test has a docstring: the rule that it holds."""
    tests = (
        node
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )
    assert [node.name for node in tests if not ast.get_docstring(node)] == []


def test_lines_excepted_from_coverage_are_few_and_explained() -> None:
    """At most five lines of provider/ are excepted from branch coverage, each with its reason on the line."""
    lines = [line for path in PROVIDER for line in path.read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if "pragma: no" in line]
    assert len(lines) <= PROVIDER_EXCEPTED_LINES
    assert [line for line in lines if not re.search(r"# pragma: no (?:cover|branch) - \S+ \S+", line)] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_fixes_versions_and_hashes_and_no_place(lock: str) -> None:
    """A lock file holds exact versions with SHA-256 hashes and comments, and names no index, host or path."""
    text = (ROOT / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")
    pin = r"[a-z0-9-]+==[A-Za-z0-9.]+(?: ; [a-zA-Z_0-9 .<>=!'-]+)?"
    entry = rf"^{pin} \\\n(?:    --hash=sha256:[0-9a-f]{{64}} \\\n)*    --hash=sha256:[0-9a-f]{{64}}\n"
    rest = re.sub(entry, "", text, flags=re.MULTILINE)
    assert [line for line in rest.splitlines() if not re.fullmatch(r" +#[-a-z0-9.() ]*", line)] == []
    assert len(re.findall(entry, text, re.MULTILINE)) == len(pins(f"{lock}.txt")) > 0


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_is_made_from_its_input(lock: str) -> None:
    """Each version asked for in an input file is the one in its lock; `make lock` was not forgotten."""
    assert pins(f"{lock}.in").items() <= pins(f"{lock}.txt").items()


def test_tests_run_with_what_is_shipped() -> None:
    """The development lock holds everything of the runtime lock at the same versions."""
    assert pins("runtime.txt").items() <= pins("dev.txt").items()


def test_the_metadata_admits_what_is_locked() -> None:
    """Each dependency of the distribution is locked at a version inside its range, and nothing else is asked for."""
    declared = {requirement.name: requirement for requirement in map(Requirement, PROJECT["project"]["dependencies"])}
    locked = pins("runtime.in")
    assert declared.keys() == locked.keys()
    assert [name for name, requirement in declared.items() if not requirement.specifier.contains(locked[name])] == []


def test_every_dependency_has_its_reason() -> None:
    """docs/dependencies.md has a row for each distribution that is shipped or asked for, and for no other."""
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    first_cells = re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE)
    explained = {name for cell in first_cells for name in re.findall(r"`([^`]+)`", cell)}
    wanted = pins("runtime.txt").keys() | pins("dev.in").keys() | pins("build.in").keys() | pins("tools.in").keys()
    assert explained == wanted


def test_the_build_backend_is_the_locked_one() -> None:
    """pyproject.toml builds with exactly the setuptools whose hash is locked."""
    assert PROJECT["build-system"]["requires"] == [f"setuptools=={pins('build.txt')['setuptools']}"]


def test_every_source_is_type_checked() -> None:
    """Each top-level folder with Python in it is under mypy's strict eye."""
    folders = {path.relative_to(ROOT).parts[0] for path in SOURCES}
    assert folders == set(PROJECT["tool"]["mypy"]["files"])


def test_documents_name_only_targets_that_exist() -> None:
    """Every `make` command in a document or in CI is one that `make help` lists; README shows the first two."""
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / ".ci" / "run"]
    text = {path: path.read_text(encoding="utf-8") for path in documents}
    command = r"(?:`|^ {4}|step \d+ \")make ([a-z-]+)"
    named = {(name_of(path), word) for path in text for word in re.findall(command, text[path], re.MULTILINE)}
    assert [(where, word) for where, word in sorted(named) if word not in targets] == []
    for needed in (("README.md", "demo"), ("README.md", "test"), (".ci/run", "demo"), (".ci/run", "test")):
        assert needed in named


def test_the_changelog_knows_the_version() -> None:
    """The version of the distribution is the changelog's newest, unless that is still unreleased."""
    newest = re.search(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] in ("Unreleased", PROJECT["project"]["version"])


def test_a_wheel_holds_the_whole_product(tmp_path: Path) -> None:
    """A built wheel contains every module, both typing marks and every schema file of the two packages, no more."""
    pinned = pins("build.txt")["setuptools"]
    try:
        present = importlib.metadata.version("setuptools")
    except importlib.metadata.PackageNotFoundError:
        present = "none"
    if present != pinned:
        pytest.skip(f"needs setuptools {pinned} (here: {present}); `make test` has it")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    for package in ("provider", "sidecar"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-I", "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps", "--no-index"]
    command = [*pip, "--no-build-isolation", "--no-cache-dir", "--wheel-dir", str(tmp_path / "out"), str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=110)
    (wheel,) = (tmp_path / "out").glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    kept = {".py", ".sql", ".typed"}
    files = [path for package in ("provider", "sidecar") for path in (ROOT / package).rglob("*")]
    wanted = {name_of(path) for path in files if path.suffix in kept}
    wanted |= {"provider/py.typed", "sidecar/py.typed"}
    assert held == wanted
