"""A clean prefix as the image has it: the locked packages of the runtime and the product, copied from where we run."""

import compileall
import importlib.metadata
import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PLACE: Final = Path("/opt/secret-sidecar")
"""Where it is seen by what runs from it."""
BASE: Final = Path(os.path.realpath(sys.base_prefix))
PYTHON: Final = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
_SCRIPT: Final = "import sys\nfrom sidecar.__main__ import main\nsys.exit(main())\n"


def locked() -> dict[str, str]:
    """Every distribution of the runtime lock for this interpreter, and its version."""
    text = (ROOT / "requirements" / "runtime.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9-]+)==([A-Za-z0-9.]+)", text, re.MULTILINE))


def packages(prefix: Path) -> Path:
    """Where its packages are."""
    return prefix / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"


def make(prefix: Path) -> None:
    """Make it in a new directory. Raises importlib.metadata.PackageNotFoundError when a locked package is missing."""
    target = packages(prefix)
    target.mkdir(parents=True)
    origin = Path(sysconfig.get_path("purelib"))
    for name in locked():
        for file in importlib.metadata.distribution(name).files or ():
            # Programs lie outside, and the image has none of them that is used.
            if ".." not in file.parts and (origin / file).is_file():
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(origin / file, target / file)
    for name in ("provider", "sidecar"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    _program(prefix)
    compileall.compile_dir(target, quiet=2)
    for path in (prefix, *prefix.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)


def _program(prefix: Path) -> None:
    (prefix / "bin").mkdir()
    (prefix / "bin" / "python").symlink_to(PYTHON)
    (prefix / "pyvenv.cfg").write_text(f"home = {PYTHON.parent}\n", encoding="utf-8")
    program = prefix / "bin" / "secret-sidecar"
    program.write_text(f"#!{PLACE}/bin/python -I\n{_SCRIPT}", encoding="utf-8")


def size(prefix: Path) -> int:
    """The bytes of all files in it."""
    return sum(path.lstat().st_size for path in prefix.rglob("*") if not path.is_dir())


def names(prefix: Path) -> set[str]:
    """The distributions that are in it."""
    return {path.name.split("-")[0].lower().replace("_", "-") for path in packages(prefix).glob("*.dist-info")}
