"""`secret-sidecar retention`: only old versions that nothing names go, and what is asked for meanwhile comes back."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provider.refs import SecretRef
from sidecar import retention as rules
from sidecar.__main__ import main
from sidecar.cli import retention
from sidecar.publish import How, Inputs, Source, publish
from sidecar.stores.references import Named, References
from tests.kit import projector
from tests.kit.shelf import DAY_MS, Shelf, quick_path, shelf

__all__ = ["quick_path", "shelf"]

CURRENT = SecretRef.of("shop", "db-url")
VERSIONS = [SecretRef.of("shop", "api", number) for number in range(1, 6)]
UNKNOWN = SecretRef.of("shop", "unknown", 1)


def fill(shelf: Shelf) -> None:
    """Five versions of a secret, the last one in use; an unversioned one that nothing names; a stranger."""
    for number, ref in enumerate(VERSIONS, 1):
        shelf.revise("task", number, [ref, CURRENT] if number == 1 else [ref])
        shelf.file(ref, f"canary-{number}".encode(), age_days=100 - number)
    shelf.file(CURRENT, age_days=100)
    shelf.file(UNKNOWN, age_days=100)


def plan(shelf: Shelf, *options: str) -> dict[str, Any]:
    """Plan, and return the plan."""
    out = shelf.folder / "plan.json"
    code, _ = shelf.call("retention", "plan", str(shelf.root), "--out", str(out), *options)
    assert code == 0 and out.stat().st_mode & 0o077 == 0
    document: dict[str, Any] = json.loads(out.read_text())
    return document


def apply(shelf: Shelf) -> tuple[int, dict[str, Any]]:
    """Apply the plan."""
    return shelf.call("retention", "apply", str(shelf.folder / "plan.json"))


def names(shelf: Shelf) -> set[str]:
    """The files of a root."""
    return {path.name for path in shelf.root.iterdir() if path.is_file()}


def test_plan_gives_a_reason_for_each_that_stays(shelf: Shelf) -> None:
    """Dropped: old, versioned, unnamed. Kept, each with its reason: live, startable, unversioned, unknown, young."""
    fill(shelf)
    shelf.run("task", f"qltd:v1:2:{'5' * 64}", "running")
    shelf.file(VERSIONS[2], b"canary-3", age_days=2)
    document = plan(shelf, "--keep-for", "30d", "--keep-versions", "2")
    assert [one["ref"] for one in document["drop"]] == [VERSIONS[0].text]
    assert {one["fileName"]: one["reason"].split(",")[0] for one in document["keep"]} == {
        VERSIONS[1].file_name: "named by a live run",
        VERSIONS[2].file_name: "younger than --keep-for",
        VERSIONS[3].file_name: "among the newest versions (--keep-versions)",
        VERSIONS[4].file_name: "named by the newest revision of a task",
        CURRENT.file_name: "it has no version",
        UNKNOWN.file_name: "no revision names it",
    }


def test_apply_drops_what_was_planned(shelf: Shelf) -> None:
    """The planned files go, all others stay as they were, and a second apply has nothing to do."""
    fill(shelf)
    assert len(plan(shelf, "--keep-for", "30d")["drop"]) == 4
    code, document = apply(shelf)
    assert code == 0 and document["summary"]["dropped"] == 4
    assert names(shelf) == {VERSIONS[4].file_name, CURRENT.file_name, UNKNOWN.file_name}
    assert apply(shelf)[1]["summary"]["dropped"] == 0


def test_a_reference_between_plan_and_apply(shelf: Shelf) -> None:
    """What is named by now is not dropped: 1, and nothing was changed."""
    fill(shelf)
    plan(shelf, "--keep-for", "30d")
    shelf.run("task", f"qltd:v1:2:{'5' * 64}", "unheard of")
    before = names(shelf)
    since = shelf.root.stat().st_mtime_ns
    assert main(["retention", "apply", str(shelf.folder / "plan.json"), *shelf.options]) == 1
    assert names(shelf) == before and shelf.root.stat().st_mtime_ns == since


@pytest.mark.parametrize("layout", ["linked", "flat"])
def test_a_reference_during_apply(shelf: Shelf, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    """A reference that appears after the drop brings every value back, byte for byte: 1."""
    fill(shelf)
    sources = [Source(ref.file_name, ref.name, str(shelf.root / ref.file_name), ref=ref) for ref in VERSIONS]
    with Inputs(sources) as inputs:
        publish(str(shelf.root), inputs, How("linked" if layout == "linked" else "flat"))
    assert len(plan(shelf, "--keep-for", "30d")["drop"]) == 4
    whole = publish

    def publish_then_name(root: str, inputs: Inputs, how: How) -> object:
        done = whole(root, inputs, how)
        if how.drop:
            assert not (shelf.root / VERSIONS[0].file_name).exists()
            shelf.run("task", f"qltd:v1:2:{'5' * 64}", "queued")
        return done

    monkeypatch.setattr(retention, "publish", publish_then_name)
    assert main(["retention", "apply", str(shelf.folder / "plan.json"), *shelf.options]) == 1
    assert [(shelf.root / ref.file_name).read_bytes() for ref in VERSIONS] == [b"canary-%d" % n for n in range(1, 6)]


def test_a_file_written_since_is_not_dropped(shelf: Shelf) -> None:
    """A file that was written after the plan makes the plan untrue."""
    fill(shelf)
    plan(shelf, "--keep-for", "30d")
    shelf.file(VERSIONS[0], b"canary-new")
    assert main(["retention", "apply", str(shelf.folder / "plan.json"), *shelf.options]) == 1
    assert VERSIONS[1].file_name in names(shelf)


def test_publishing_keeps_ages(tmp_path: Path) -> None:
    """A value that is published again unchanged, or only kept, keeps its age; a new value is new."""
    root = tmp_path / "root"
    root.mkdir(mode=0o755)
    sources = []
    for index, ref in enumerate(VERSIONS[:3]):
        (tmp_path / str(index)).write_text(f"value-{index}")
        sources.append(Source(ref.file_name, "", str(tmp_path / str(index)), ref=ref))
    with Inputs(sources) as inputs:
        publish(str(root), inputs, How())
    before = [(root / ref.file_name).stat().st_mtime_ns for ref in VERSIONS[:3]]
    (tmp_path / "1").write_text("changed")
    with Inputs(sources[:2]) as inputs:
        publish(str(root), inputs, How())
    after = [(root / ref.file_name).stat().st_mtime_ns for ref in VERSIONS[:3]]
    assert after[0] == before[0] and after[1] > before[1] and after[2] == before[2]


def test_a_kubelets_root_is_told_by_key(shelf: Shelf) -> None:
    """For a Kubernetes Secret the keys to drop are printed, each with its command, and nothing is changed."""
    for number, ref in enumerate(VERSIONS, 1):
        shelf.revise("task", number, [ref])
    projector.publish(shelf.root, "2026_11_30_12_00_00.1", {ref.file_name: b"canary" for ref in VERSIONS})
    assert len(plan(shelf, "--keep-for", "1ms")["drop"]) == 4
    code, document = apply(shelf)
    assert code == 0 and sorted(document["summary"]["keys"]) == sorted(ref.file_name for ref in VERSIONS[:4])
    assert all(f"/data/{one['where']}" in one["mend"] for one in document["findings"])
    assert len(names(shelf)) == 5


def of_one(ref: SecretRef) -> str:
    """A plan that drops the file of CURRENT under this ref."""
    drop = {"ref": ref.text, "fileName": CURRENT.file_name, "writtenAtMs": 1}
    return json.dumps({"schemaVersion": 1, "root": "/x", "drop": [drop]})


@pytest.mark.parametrize(
    "text", ["", "{}", '{"schemaVersion":1,"root":"/x","drop":[1]}', of_one(CURRENT), of_one(UNKNOWN)]
)
def test_what_is_no_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    """A document that is no plan, names an unversioned ref or another file is 65, and is told as none."""
    (tmp_path / "p").write_text(text)
    assert main(["retention", "apply", str(tmp_path / "p"), "--file", "none"]) == 65
    assert "This is no plan." in capsys.readouterr().err


ALONE: dict[str, tuple[SecretRef, dict[str, bool], int, int]] = {
    "nothing": (VERSIONS[0], {}, 0, 1),
    "live": (VERSIONS[0], {"live": True}, 0, 1),
    "startable": (VERSIONS[0], {"startable": True}, 0, 1),
    "unversioned": (CURRENT, {}, 0, 1),
    "lost": (VERSIONS[0], {}, 1, 1),
    "young": (VERSIONS[0], {}, 0, 6),
}
"""What keeps a file: its ref, who names it, lost revisions, and the day on which it was written; now is the tenth."""


@pytest.mark.parametrize("why", ALONE)
def test_each_reason_alone_keeps_a_file(why: str) -> None:
    """A versioned file of nine days that nothing names goes after five; one reason against it is enough."""
    ref, named, lost, day = ALONE[why]
    references = References({ref.file_name: Named(ref, **named)}, [], lost)
    [judged] = rules.judge(references, {ref.file_name: day * DAY_MS}, 10 * DAY_MS, 5 * DAY_MS, 0)
    assert (judged.reason is None) is (why == "nothing")


seldom = st.sampled_from((False, False, False, True))
known = st.builds(
    Named,
    st.builds(SecretRef.of, st.just("p"), st.sampled_from("ab"), st.none() | st.integers(1, 5)),
    st.booleans(),
    seldom,
    seldom,
)
several = st.lists(known, min_size=4, unique_by=lambda one: one.ref.file_name)
written = st.lists(st.integers(0, 10), min_size=12, max_size=12)
"""The day on which each file was written, now being the tenth; zero for one that is not there."""


@given(several, written, st.integers(0, 1), seldom)
def test_never_unversioned_never_named(given_refs: list[Named], days: list[int | None], keep: int, lost: int) -> None:
    """Whatever there is: nothing unversioned, named or young is ever dropped, nor anything while a revision is lost."""
    references = References({one.ref.file_name: one for one in given_refs}, [], int(lost))
    files = {name: day * DAY_MS for name, day in zip(references.named, days, strict=False) if day}
    judged = rules.judge(references, files, 10 * DAY_MS, 5 * DAY_MS, keep)
    assert {one.file_name for one in judged} == files.keys()
    for one in judged:
        if one.reason is None:
            assert one.ref is not None and one.ref.version is not None and not lost
            assert not references.named[one.file_name].wanted and one.written_ms <= 5 * DAY_MS
