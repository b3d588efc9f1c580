"""`secret-sidecar inventory` and the store's side of `doctor`: what is named against what is there, on both stores."""

import json
import os
import time
from pathlib import Path

import pytest

from provider.refs import SecretRef
from sidecar.__main__ import main
from tests.kit.shelf import Shelf, quick_path, shelf

__all__ = ["quick_path", "shelf"]

SERVED = SecretRef.of("shop", "db-url")
MISSING = SecretRef.of("shop", "api", 3)
OLD = SecretRef.of("shop", "api", 2)
OLDEST = SecretRef.of("shop", "api", 1)
GONE = SecretRef.of("shop", "gone")
BUNDLE = SecretRef.of("shop", "bundle", 1)
STRANGER = SecretRef.of("other", "stranger")


MOST_S = 10.0
"""What a command may take of the processor for 10,000 files; it takes about a tenth of it."""


def states(document: dict[str, object]) -> dict[str, str]:
    """State by file name."""
    secrets = document["summary"]["secrets"]  # type: ignore[index]
    return {one["fileName"]: one["state"] for one in secrets}


def test_every_state(shelf: Shelf) -> None:
    """Served, missing, superseded and orphaned are told apart; refs stand by project and name, strangers last."""
    first = shelf.revise("task", 1, [OLDEST, GONE])
    shelf.revise("task", 2, [OLD])
    shelf.revise("task", 3, [SERVED, MISSING], BUNDLE)
    shelf.run("task", first, "succeeded")
    for ref in (SERVED, OLD, GONE, STRANGER, BUNDLE):
        shelf.file(ref)
    code, document = shelf.call("inventory", str(shelf.root))
    assert code == 65
    assert list(states(document).items()) == [
        (OLD.file_name, "superseded"),
        (MISSING.file_name, "missing"),
        (BUNDLE.file_name, "served"),
        (SERVED.file_name, "served"),
        (GONE.file_name, "orphaned"),
        (STRANGER.file_name, "orphaned"),
    ]
    (missing,) = [one for one in document["findings"] if one["severity"] == "error"]
    assert missing["code"] == "missing" and f'"ref":"{MISSING.text}"' in missing["mend"]
    assert document["summary"]["secrets"][-1]["ref"] is None
    shelf.file(MISSING)
    assert shelf.call("inventory", str(shelf.root))[0] == 0


@pytest.mark.parametrize(
    ("status", "live"),
    [("dispatching", True), ("running", True), ("never heard of", True), (None, True)]
    + [(over, False) for over in ("released", "cancelled", "succeeded", "failed", "timed_out")],
)
def test_live_is_what_is_not_known_to_be_over(shelf: Shelf, status: str | None, live: bool) -> None:
    """An old revision counts while a run of it is not in the closed list of ends; an unknown status is live."""
    first = shelf.revise("task", 1, [OLD])
    shelf.revise("task", 2, [MISSING])
    shelf.run("task", first, status)
    shelf.file(OLD)
    shelf.file(MISSING)
    assert states(shelf.call("inventory", str(shelf.root))[1])[OLD.file_name] == ("served" if live else "superseded")


def test_ages_and_last_deliveries(shelf: Shelf) -> None:
    """A file's age and the last `delivered` receipt are shown; a `released` one alone is no delivery."""
    shelf.revise("task", 1, [SERVED, OLD])
    shelf.file(SERVED, age_days=3)
    shelf.file(OLD)
    shelf.receipt(SERVED, "delivered", "a" * 64, occurred_at_ms=1000)
    shelf.receipt(SERVED, "delivered", "a" * 64, occurred_at_ms=5000)
    shelf.receipt(OLD, "released", "a" * 64, occurred_at_ms=5000)
    _, document = shelf.call("inventory", str(shelf.root))
    shown = {one["fileName"]: one for one in document["summary"]["secrets"]}
    assert shown[SERVED.file_name]["lastDeliveryAtMs"] == 5000 and shown[OLD.file_name]["lastDeliveryAtMs"] is None
    assert 3 * 86_400 <= shown[SERVED.file_name]["ageSeconds"] < 3 * 86_400 + 600


def test_a_login_without_receipts_says_unknown(
    shelf: Shelf, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL the login of serve reads the refs, and the last delivery is `unknown`; SQLite shows it."""
    shelf.revise("task", 1, [SERVED])
    shelf.file(SERVED)
    shelf.receipt(SERVED, "delivered", "a" * 64, occurred_at_ms=5000)
    if shelf.options[0] == "--file":
        monkeypatch.setenv("QL3_WORKER_SECRET_AUTHORITY", "sqlite")
        monkeypatch.setenv("QL3_WORKER_SECRET_AUTHORITY_FILE", shelf.options[1])
    monkeypatch.setenv("QL3_WORKER_SECRET_ROOT_DIRECTORY", str(shelf.root))
    assert main(["inventory", "--json"]) == 0
    (only,) = json.loads(capsys.readouterr().out)["summary"]["secrets"]
    assert only["lastDeliveryAtMs"] == (5000 if shelf.options[0] == "--file" else "unknown")
    assert main(["inventory"]) == 0
    assert "shop/db-url" in capsys.readouterr().out


def test_a_plan_that_serve_refuses_is_told_and_its_refs_count(shelf: Shelf) -> None:
    """A plan that is none is a warning; whatever looks like a ref in it counts as named."""
    shelf.revise("task", 1, [SERVED])
    shelf.execute("UPDATE task_execution_revisions SET plan_schema = ?", ("another",))
    shelf.run("lost", "qltd:v1:9:x", "running")
    code, document = shelf.call("inventory", str(shelf.root), "--strict")
    assert code == 65 and states(document) == {SERVED.file_name: "missing"}
    assert [one["code"] for one in document["findings"]] == ["missing", "plan_unreadable", "revision_lost"]


def test_doctor_asks_the_store(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --refs doctor asks the store that the variables name: what is missing, and what may be a bundle."""
    shelf.revise("task", 1, [SERVED, MISSING], BUNDLE)
    if shelf.options[0] == "--file":
        monkeypatch.setenv("QL3_WORKER_SECRET_AUTHORITY", "sqlite")
        monkeypatch.setenv("QL3_WORKER_SECRET_AUTHORITY_FILE", shelf.options[1])
    shelf.file(SERVED, b"x" * 16_385)
    shelf.file(BUNDLE, b"x" * 98_304)
    assert main(["doctor", str(shelf.root), "--json"]) == 65
    found = json.loads(shelf.capsys.readouterr().out)["findings"]
    errors = {(one["code"], os.path.basename(one["where"])) for one in found if one["severity"] == "error"}
    assert errors == {("value_too_large", SERVED.file_name), ("missing", MISSING.file_name)}


def test_what_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No root, a missing root and a missing store are told in a line, with the contract's codes."""
    assert main(["inventory", "--file", "none"]) == 78
    assert main(["inventory", str(tmp_path / "none"), "--file", "none"]) == 65
    assert main(["inventory", str(tmp_path), "--file", str(tmp_path / "none")]) == 78
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("shelf", ["sqlite"], indirect=True)
def test_ten_thousand(shelf: Shelf) -> None:
    """10,000 files and 10,000 revisions are compared, planned and looked at in seconds."""
    refs = [SecretRef.of("shop", f"name-{number}", 1) for number in range(10_000)]
    shelf.execute("PRAGMA synchronous = OFF", ())
    plans = "INSERT INTO task_execution_revisions VALUES " + ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?)"] * 1000)
    for start in range(0, len(refs), 1000):
        rows: list[object] = []
        for number, ref in enumerate(refs[start : start + 1000], start):
            entry = {"name": "S", "kind": "secret", "secretRef": ref.text}
            rows += ["shop", f"task-{number}", 1, "remote_worker", f"r{number}", "d"]
            rows += ["qinglong/command-execution@v1", json.dumps({"command": {}, "environment": [entry]}), "e"]
        shelf.execute(plans, rows)
    for ref in refs:
        (shelf.root / ref.file_name).write_bytes(b"v")
    plan = ("retention", "plan", str(shelf.root), "--keep-for", "1d", "--out", str(shelf.folder / "plan.json"))
    for command in (("inventory", str(shelf.root)), plan):
        begin = time.process_time()
        code, document = shelf.call(*command)
        took = time.process_time() - begin
        assert code == 0 and took < MOST_S
        assert document["summary"].get("served", document["summary"].get("keep")) == len(refs)
    begin = time.process_time()
    assert main(["doctor", str(shelf.root), "--json"]) == 65  # the files of this test are open to others
    assert time.process_time() - begin < MOST_S
    assert len(json.loads(shelf.capsys.readouterr().out)["summary"]["files"]) == len(refs)
