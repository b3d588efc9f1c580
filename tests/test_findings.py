"""sidecar/findings: one shape for every report, also where a command fails, and nothing in it that does harm."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.__main__ import main
from sidecar.cli.common import Exit, Fault
from sidecar.cli.reports import fault_document, report
from sidecar.findings import Finding, encodable, quoted

KEYS = ["code", "severity", "where", "cause", "mend"]


@settings(max_examples=30, deadline=None)
@given(st.binary(min_size=1, max_size=20).filter(lambda name: b"\0" not in name))
def test_a_path_in_a_mend_is_one_word_of_the_shell(name: bytes) -> None:
    """Whatever a file is called: pasted into a shell the quoted path is that file, and only characters show."""
    shown = quoted(os.fsdecode(name))
    assert shown.isprintable()
    done = subprocess.run(["bash", "-c", f"printf %s {shown}"], capture_output=True, timeout=30, check=True)
    assert done.stdout == name


def test_lines_and_document_hold_no_control_character(capsys: pytest.CaptureFixture[str]) -> None:
    """A name with an escape sequence or with bytes that are no text reaches neither terminal nor JSON as it is."""
    found = [Finding("a", "\x1b[2J", "\x1b]0;x\x07", "rm \udcff")]
    assert report("doctor", found, {}, as_json=False) == 65
    assert "\x1b" not in capsys.readouterr().out
    assert report("doctor", found, {}, as_json=True) == 65
    text = capsys.readouterr().out
    assert "\x1b" not in text and json.loads(text.encode())["findings"][0]["mend"] == "rm \\udcff"
    assert encodable("shop/käse") == "shop/käse"


@pytest.mark.parametrize("code", list(Exit))
def test_a_fault_is_a_document_too(code: Exit) -> None:
    """Each exit code has its own stable finding code, in the contracted keys."""
    document: Any = fault_document("retention apply", Fault(code, "It is so.", "Mend it."))
    (found,) = document["findings"]
    assert list(found) == KEYS and found["code"] == code.name.lower() and found["cause"] == "It is so"
    assert document["summary"]["exitCode"] == code


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("publish ROOT --manifest none --group no-such-group", 65),
        ("publish ROOT/none --from-dir none", 65),
        ("doctor ROOT/none", 65),
        ("inventory --file none", 78),
        ("inventory ROOT --file none", 78),
        ("inventory ROOT --admin-url-file none", 78),
        ("inventory ROOT/none --file none", 65),
        ("retention plan ROOT/none --keep-for 1d --out P --file none", 65),
        ("retention plan ROOT --keep-for 1d --out P --file none", 78),
        ("retention apply none --file none", 65),
        ("receipts list --ref x --file none", 65),
        ("receipts list --file none", 78),
        ("receipts list", 78),
        ("receipts prune --older-than 1d --file none", 78),
    ],
)
def test_every_way_to_fail_is_one_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, code: int
) -> None:
    """With --json a command that fails prints the contracted document alone, and its code says the same."""
    (tmp_path / "root").mkdir(mode=0o755)
    arguments = command.replace("ROOT", str(tmp_path / "root")).replace(" P ", f" {tmp_path / 'P'} ").split()
    assert main([*arguments, "--json"]) == code
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert shown.err == "" and list(document) == ["schemaVersion", "command", "findings", "summary"]
    assert document["schemaVersion"] == 1
    words = 2 if arguments[0] in ("retention", "receipts") else 1
    assert document["command"] == " ".join(arguments[:words])
    assert document["findings"] and all(list(found) == KEYS for found in document["findings"])
    assert {"errors", "warnings", "infos"} <= document["summary"].keys()
    assert not (tmp_path / "P").exists() and os.listdir(tmp_path / "root") == []
    capsys.readouterr()
    assert main(arguments) == code and capsys.readouterr().out.count("{") == 0


WITH_ACTIONS = ("manifest secret", "manifest csi", "manifest vault-agent", "retention plan", "retention apply")
COMMANDS = ("publish", "doctor", "inventory", "manifest", "retention", "receipts", "receipts list", "receipts prune")


@pytest.mark.parametrize("command", [*COMMANDS, *WITH_ACTIONS])
def test_help_shows_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--help of every command and action ends with 0 and shows a whole command line; a bad flag is 64."""
    with pytest.raises(SystemExit) as left:
        main([*command.split(), "--help"])
    assert left.value.code == 0
    assert f"example:\n  secret-sidecar {command}" in capsys.readouterr().out
    with pytest.raises(SystemExit) as left:
        main([*command.split(), "--no-such-flag"])
    assert left.value.code == 64 and capsys.readouterr().out == ""
