"""`secret-sidecar receipts`: who has the value that is mounted now, told by marks alone, on both stores."""

from typing import Any

import pytest

from provider.credential import Pepper
from provider.receipts import identify
from provider.refs import SecretRef
from sidecar.__main__ import main
from sidecar.publish import How, Inputs, Source, publish
from sidecar.receipts import mark
from tests.kit.shelf import Shelf, quick_path, shelf
from tests.kit.world import PEPPER_TEXT

__all__ = ["quick_path", "shelf"]

REF = SecretRef.of("shop", "db-url")
OTHER = SecretRef.of("shop", "api", 3)
NOW, OLD = b"canary-now", b"canary-old"
PRESENT = Pepper.parse(PEPPER_TEXT)
PREVIOUS_TEXT = PEPPER_TEXT.swapcase()
GONE = Pepper(b"\x07" * 31 + b"\x08")


def drawn(value: bytes, pepper: Pepper = PRESENT, ref: SecretRef = REF) -> str:
    """The mark of a value."""
    return mark(pepper.receipt_key(), ref.file_name, memoryview(value))


@pytest.fixture(autouse=True)
def peppers(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of serve name two peppers, and the root is compared with."""
    previous = shelf.folder / "previous"
    previous.write_text(PREVIOUS_TEXT)
    previous.chmod(0o400)
    monkeypatch.setenv("QL3_WORKER_CREDENTIAL_PEPPER", PEPPER_TEXT)
    monkeypatch.setenv("QL3_SECRET_SIDECAR_PREVIOUS_PEPPER_FILE", str(previous))


def shown(shelf: Shelf, *options: str) -> dict[str, Any]:
    """List the receipts."""
    code, document = shelf.call("receipts", "list", "--root", str(shelf.root), *options)
    assert code == 0 and document["findings"] == []
    summary: dict[str, Any] = document["summary"]
    return summary


def held(summary: dict[str, Any], ref: SecretRef = REF) -> dict[str, str]:
    """What each worker has of a ref."""
    return {one["workerId"]: one["value"] for one in summary["workers"] if one["fileName"] == ref.file_name}


@pytest.mark.parametrize("layout", ["flat", "linked"])
def test_who_has_what_is_mounted_now(shelf: Shelf, layout: str) -> None:
    """`now` and `before` under either pepper; `unknown`, and never another value, for a mark made under neither."""
    shelf.file(REF, NOW)
    if layout == "linked":
        source = Source(REF.file_name, "", str(shelf.root / REF.file_name), ref=REF)
        with Inputs([source]) as inputs:
            publish(str(shelf.root), inputs, How())
    shelf.receipt(REF, "delivered", drawn(OLD), worker_id="turned", occurred_at_ms=1)
    shelf.receipt(REF, "delivered", drawn(NOW), worker_id="turned", occurred_at_ms=2)
    shelf.receipt(REF, "delivered", drawn(NOW, Pepper.parse(PREVIOUS_TEXT)), worker_id="previous", occurred_at_ms=3)
    shelf.receipt(REF, "delivered", drawn(OLD), worker_id="late", occurred_at_ms=4)
    for worker, pepper in (("late-previous", Pepper.parse(PREVIOUS_TEXT)), ("gone", GONE)):
        row_id = identify(pepper.receipt_key())
        shelf.receipt(REF, "delivered", drawn(OLD, pepper), worker_id=worker, occurred_at_ms=5, receipt_id=row_id)
    same = identify(GONE.receipt_key())
    shelf.receipt(REF, "delivered", drawn(NOW, GONE), worker_id="same", occurred_at_ms=6, receipt_id=same)
    assert held(shown(shelf)) == {
        "turned": "now",
        "previous": "now",
        "late": "before",
        "late-previous": "before",
        "gone": "unknown",
        "same": "unknown",
    }


def test_without_root_or_pepper_nothing_is_claimed(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that is not mounted, and a command without pepper, show `unknown`."""
    shelf.receipt(REF, "delivered", drawn(NOW))
    assert held(shown(shelf)) == {"worker-1": "unknown"}
    shelf.file(REF, NOW)
    monkeypatch.delenv("QL3_WORKER_CREDENTIAL_PEPPER")
    assert held(shown(shelf)) == {"worker-1": "unknown"}


def test_filters(shelf: Shelf) -> None:
    """`--ref`, `--worker` and `--since` choose rows; the newest stands last; lines are for people."""
    for index, (ref, worker) in enumerate(((REF, "a"), (OTHER, "a"), (REF, "b"))):
        shelf.receipt(ref, "delivered", "0" * 64, worker_id=worker, occurred_at_ms=1_000 * (index + 1))
    assert [one["occurredAtMs"] for one in shown(shelf)["receipts"]] == [1000, 2000, 3000]
    assert [one["workerId"] for one in shown(shelf, "--ref", REF.text)["receipts"]] == ["a", "b"]
    assert [one["fileName"] for one in shown(shelf, "--worker", "a")["receipts"]] == [REF.file_name, OTHER.file_name]
    assert len(shown(shelf, "--since", "1970-01-01T00:00:02Z")["receipts"]) == 2
    assert shown(shelf, "--since", "1d")["receipts"] == []
    assert main(["receipts", "list", *shelf.options]) == 0
    assert "holds" in shelf.capsys.readouterr().out


def test_prune(shelf: Shelf) -> None:
    """Rows older than some time go, in batches, and no others."""
    for index in range(3):
        shelf.receipt(REF, "delivered", "0" * 64, occurred_at_ms=index)
    shelf.receipt(REF, "delivered", "1" * 64)
    assert main(["receipts", "prune", "--older-than", "90d", *shelf.options]) == 0
    assert "deleted 3 " in shelf.capsys.readouterr().out
    assert [one["mark"] for one in shown(shelf)["receipts"]] == ["1" * 64]
    code, document = shelf.call("receipts", "prune", "--older-than", "90d")
    assert code == 0 and document["command"] == "receipts prune" and document["summary"]["deleted"] == 0


def test_what_cannot_be_read(shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    """A bad ref is 65, a bad time 64, and PostgreSQL without the owner's URL, or no store, 78."""
    assert main(["receipts", "list", "--ref", "x", *shelf.options]) == 65
    with pytest.raises(SystemExit) as left:
        main(["receipts", "list", "--since", "yesterday", *shelf.options])
    assert left.value.code == 64
    assert main(["receipts", "list"]) == 78
    assert main(["receipts", "prune", "--older-than", "1d"]) == 78
    shelf.execute(f"DROP TABLE {shelf.receipts}", ())
    assert main(["receipts", "list", *shelf.options]) == 78
    assert main(["receipts", "prune", "--older-than", "1d", *shelf.options]) == 78
