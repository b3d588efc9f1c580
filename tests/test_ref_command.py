"""`secret-sidecar ref` writes, reads and hashes refs, and never shows input that is none (contract 1 and 9)."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provider.refs import InvalidRef, SecretRef
from sidecar.__main__ import main

VECTORS: Final[dict[str, Any]] = json.loads((Path(__file__).parent / "vectors.json").read_text(encoding="utf-8"))
REF: Final = VECTORS["secretRefs"][0]["ref"]
CANARY: Final = "canary-9b2f"


@pytest.mark.parametrize("vector", VECTORS["secretRefs"], ids=lambda vector: vector["fileName"][:8])
def test_a_ref_is_written_read_and_hashed(vector: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """encode, decode and filename agree with every vector, as lines and as JSON."""
    version = [] if vector["version"] is None else ["--version", str(vector["version"])]
    parts = ["--project", vector["projectId"], "--name", vector["name"], *version]
    assert main(["ref", "encode", *parts]) == 0
    assert capsys.readouterr().out == vector["ref"] + "\n"
    assert main(["ref", "filename", vector["ref"]]) == 0
    assert capsys.readouterr().out == vector["fileName"] + "\n"
    assert main(["ref", "decode", vector["ref"]]) == 0
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert shown == {
        "project": vector["projectId"],
        "name": vector["name"],
        "version": str(vector["version"] or "current"),
        "file": vector["fileName"],
    }
    for action, arguments in (("encode", parts), ("decode", [vector["ref"]]), ("filename", [vector["ref"]])):
        assert main(["ref", action, *arguments, "--json"]) == 0
        expected = {"schemaVersion": 1, "command": f"ref {action}", **vector}
        assert json.loads(capsys.readouterr().out) == expected


@pytest.mark.parametrize("vector", VECTORS["refusedSecretRefs"], ids=lambda vector: vector["why"])
@pytest.mark.parametrize("action", ["decode", "filename"])
def test_a_refused_ref_is_bad_input(action: str, vector: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Every refused vector ends with 65, one fixed line and no output."""
    assert main(["ref", action, vector["ref"]]) == 65
    out, error = capsys.readouterr()
    assert out == ""
    assert error == (
        "secret-sidecar ref: This is not a canonical SecretRef."
        " Copy the whole ref, or make it with `secret-sidecar ref encode`.\n"
    )


@pytest.mark.parametrize(
    ("project", "name", "version"),
    [
        ("", CANARY, None),
        (CANARY, "", None),
        (CANARY, "a\nb", None),
        (CANARY, "\x7f", None),
        (CANARY, "\udcff", None),
        (CANARY, "n" * 129, None),
        ('"' * 128, '"' * 128, "1"),
        (CANARY, "n", "0"),
        (CANARY, "n", "01"),
        (CANARY, "n", "2147483648"),
        (CANARY, "n", "1.0"),
        (CANARY, "n", "٣"),
        (CANARY, "n", CANARY),
        (CANARY, "n", ""),
    ],
)
def test_parts_that_make_no_ref_are_bad_input(
    project: str, name: str, version: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parts and versions that make no ref end with 65 and one line that shows none of them."""
    arguments = ["--project", project, "--name", name, *([] if version is None else ["--version", version])]
    assert main(["ref", "encode", *arguments]) == 65
    out, error = capsys.readouterr()
    assert out == "" and CANARY not in error and error.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [[], ["print", REF], ["decode"], ["decode", REF, REF], ["encode", "--name", "n"], ["encode", "--proj", "p"]],
)
def test_wrong_usage_is_told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong usage ends with 64 and says how it is used."""
    with pytest.raises(SystemExit) as left:
        main(["ref", *arguments])
    assert left.value.code == 64
    assert capsys.readouterr().err.startswith("usage: secret-sidecar ref")


@pytest.mark.parametrize("arguments", [[], ["encode"], ["decode"], ["filename"]])
def test_help_shows_an_example_that_works(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Each help ends with an example, and every line of it runs."""
    with pytest.raises(SystemExit) as left:
        main(["ref", *arguments, "--help"])
    assert left.value.code == 0
    examples = capsys.readouterr().out.split("example:\n")[1].splitlines()
    assert examples
    for line in examples:
        program, *command = line.split()
        assert program == "secret-sidecar"
        assert main(command) == 0


def test_decode_shows_no_control_character(capsys: pytest.CaptureFixture[str]) -> None:
    """What a terminal might obey, and a ref may hold all the same, is shown as an escape."""
    assert main(["ref", "decode", SecretRef.of("p\x9b31m", "n\u202e\u2028").text]) == 0
    out = capsys.readouterr().out
    assert r"p\x9b31m" in out and r"n\u202e\u2028" in out
    assert all(line.isprintable() for line in out.split("\n"))


@given(text=st.text().filter(lambda text: not text.startswith("-")))
def test_any_text_is_a_ref_or_bad_input(text: str) -> None:
    """Whatever is given as a ref, decode ends with 0 or 65, as the parser decides."""
    try:
        SecretRef.parse(text)
        expected = 0
    except InvalidRef:
        expected = 65
    assert main(["ref", "decode", text]) == expected
