"""docs/operations.md holds: every alert has its runbook, tables are the code's, lines of shell run (issue 8)."""

import os
import re
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
import yaml

from provider import limits
from provider.outcomes import DELIVERED, Close, Code, Reason
from sidecar.events import EVENTS, FIELDS
from sidecar.metrics import UNANSWERED
from sidecar.stores.faults import StoreFaultKind
from sidecar.variables import BY_NAME
from tests.kit.stand import Stand, make_stand
from tests.kit.waiting import wait_for
from tests.tools.doctext import ROOT, blocks

TEXT: Final = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
RULES: Final = (ROOT / "k8s" / "overlays" / "monitoring" / "rules.yaml").read_text(encoding="utf-8")
PARTS: Final = {
    part.partition("\n")[0]: part.partition("\n")[2] for part in re.split(r"^#{2,3} ", TEXT, flags=re.MULTILINE)[1:]
}
SHELL: Final = {
    heading: [block for language, block in blocks(part) if language == "sh"] for heading, part in PARTS.items()
}


def alerts() -> dict[str, dict[str, str]]:
    """Every alert with its annotations."""
    groups = yaml.safe_load(RULES)["spec"]["groups"]
    return {rule["alert"]: rule["annotations"] for group in groups for rule in group["rules"]}


def first_cells(part: str, header: str) -> list[str]:
    """The names between backquotes in the first cells of the table of a part that begins with a header."""
    rows = part[part.index(f"| {header} |") :].partition("\n\n")[0].splitlines()[2:]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]


# --- alerts ------------------------------------------------------------------------------------------------------
def test_every_alert_has_its_runbook_and_every_runbook_its_alert() -> None:
    """The sections below `Alerts` are the alerts of the overlay, in its order, and each alert leads to its own."""
    below = re.findall(r"^### (SecretSidecar\w+)$", TEXT, re.MULTILINE)
    assert below == list(alerts())
    assert len(below) == 9
    for alert, annotations in alerts().items():
        assert annotations["runbook"] == f"docs/operations.md#{alert.lower()}"
        assert len(PARTS[alert].split()) > 15, alert


def test_alerts_name_what_there_is() -> None:
    """No alert's text promises a field or an event that does not exist."""
    for annotations in alerts().values():
        for word in re.findall(r"\b[a-z]+_[a-z_]+\b", annotations["description"]):
            assert word in EVENTS or word in RULES.replace(annotations["description"], "") or word.endswith("_total"), (
                word
            )


# --- formulas ----------------------------------------------------------------------------------------------------
def test_every_formula_can_be_asked(tmp_path: Path) -> None:
    """Each formula is balanced, and a running sidecar shows each of its metrics with each label value it names."""
    formulas = [block for language, block in blocks(TEXT) if language == "promql"]
    assert len(formulas) >= 8
    with make_stand(tmp_path) as stand:
        stand.start()
        shown = stand.get("/metrics", port=stand.metrics_port)[1]
    for formula in formulas:
        assert all(formula.count(opening) == formula.count(closing) for opening, closing in ("()", "{}", "[]")), formula
        named = re.findall(r"(secret_sidecar_[a-z_]+)(?:\{([a-z]+)[=!]~?\"([a-z_|]+)\"\})?", formula)
        assert named and formula.count("secret_sidecar_") == len(named)
        for metric, label, members in named:
            assert re.search(rf"^{metric}[ {{]", shown, re.MULTILINE), metric
            for member in members.split("|") if label else ():
                assert f'{metric}{{{label}="{member}"}}' in shown, member


# --- tables ------------------------------------------------------------------------------------------------------
def test_events_are_those_of_the_white_list() -> None:
    """The table of events has every event once, and the text names no field that an event may not have."""
    part = PARTS["Reading an incident"]
    assert sorted(first_cells(part, "event")) == sorted(EVENTS)
    fixed = {"schemaVersion", "component", "level", "event", "replicaId", "timestamp"}
    named = set(re.findall(r"`([a-z]+[A-Z]\w*)`", part))
    assert named <= FIELDS | fixed
    assert {"requestId", "traceId", "providerCode", "providerReason", "durationMs"} <= named


def test_codes_are_those_of_the_outcome_table() -> None:
    """Whoever reads an event's code finds it in the table, once."""
    codes = [DELIVERED, UNANSWERED, *(code.value.code for code in Code)]
    assert sorted(first_cells(PARTS["Reading an incident"], "code")) == sorted(set(codes))


def test_reasons_and_causes_exist() -> None:
    """A reason, cause or store fault that the page names is one that is counted."""
    for reason in re.findall(r"reason `([a-z_]+)`", TEXT):
        assert reason in {each.name.lower() for each in Reason}, reason
    named = re.findall(r"`([a-z_]+_limit)`", PARTS["Capacity"])
    assert set(named) <= {close.value for close in Close} | {each.name.lower() for each in Reason}
    for kind in re.findall(r"`store_([a-z]+)`", TEXT):
        assert kind in {each.value for each in StoreFaultKind}, kind


def test_checks_are_those_of_readiness() -> None:
    """The table of checks has those of the contract, in its order."""
    assert first_cells(PARTS["Health"], "check") == ["admission", "authority", "root", "tls", "crl", "drain"]


def test_capacity_is_reckoned_from_the_limits() -> None:
    """What a request holds, and all of them together, follow from the limits and the default."""
    values = limits.BATCH_BYTES + limits.BUNDLE_BYTES
    answer = limits.RESPONSE_BYTES_V2
    text = PARTS["Capacity"]
    assert f"{values:,} bytes of values and {answer:,} of answer" in text
    in_flight = int(str(BY_NAME["QL3_WORKER_INGRESS_MAX_IN_FLIGHT"].default))
    assert f"{round((values + answer) * in_flight / 2**20)} MiB with {in_flight} in flight" in text


# --- the lines of shell ------------------------------------------------------------------------------------------
class Operator:
    """Somebody with a shell in a folder of their own, beside a stand."""

    def __init__(self, stand: Stand) -> None:
        """Make the folder's tools; the variables of `serve` are the stand's."""
        self.stand = stand
        self.folder = stand.directory / "operator"
        programs = self.folder / "bin"
        programs.mkdir(parents=True)
        (programs / "secret-sidecar").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sidecar "$@"\n')
        (programs / "secret-sidecar").chmod(0o755)
        (programs / "python3").symlink_to(sys.executable)
        self.environment = stand.environment | {"PATH": f"{programs}:{os.defpath}", "PYTHONPATH": str(ROOT)}

    def enroll(self, store: Path) -> None:
        """Enroll the worker that the page speaks of, beside the stand's own."""
        command = ["secret-sidecar", "authority", "enroll", "worker-1", "--token-file", "worker-1.token"]
        subprocess.run(
            [*command, "--file", str(store)],
            env=self.environment, cwd=self.folder, check=True, capture_output=True, timeout=60,
        )  # fmt: skip

    def follow(self, heading: str, **variables: str) -> str:
        """Run every block of shell below a heading and return what it prints."""
        said = ""
        assert SHELL[heading]
        for block in SHELL[heading]:
            done = subprocess.run(
                ["sh", "-eu", "-c", block],
                env=self.environment | variables,
                cwd=self.folder, capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            assert done.returncode == 0, (block, done.stdout, done.stderr)
            said += done.stdout
        return said


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    """An operator whose folder holds the stand's store under the name that the page uses."""
    with make_stand(tmp_path / "stand") as stand:
        someone = Operator(stand)
        variable = "QL3_WORKER_SECRET_AUTHORITY_FILE"
        store = someone.folder / "store.sqlite3"
        Path(stand.environment[variable]).rename(store)
        stand.environment[variable] = someone.environment[variable] = str(store)
        yield someone


def rows(store: Path, query: str) -> list[tuple[object, ...]]:
    """What a store says."""
    with closing(sqlite3.connect(store)) as connection:
        return connection.execute(query).fetchall()


def run_of(store: Path) -> str:
    """The id of the stand's run."""
    return str(rows(store, "SELECT id FROM runs")[0][0])


def test_revoking_by_following_the_page(operator: Operator) -> None:
    """Served before, fenced after: the lines of the section take away what they say, while it serves."""
    stand, store = operator.stand, operator.folder / "store.sqlite3"
    operator.enroll(store)
    stand.start()
    assert stand.ask().code == "delivered"
    operator.follow("Revoking", RUN=run_of(store))
    assert stand.ask().code == "worker_secret_delivery_fenced"
    assert rows(store, "SELECT version, state FROM worker_credentials WHERE credential_id = 'worker-1' ORDER BY 1") == [
        (1, "revoked"),
        (2, "active"),
    ]
    assert (operator.folder / "worker-1.token.new").read_text().startswith("ql3w_worker-1_")


def test_the_embedded_store_is_kept_by_following_the_page(operator: Operator) -> None:
    """Migration and pruning run as written on a store that is served from."""
    operator.stand.start()
    said = operator.follow("The embedded store")
    assert "nothing was changed" in said
    assert "deleted 0 audit rows" in said


def test_a_store_is_backed_up_while_it_serves_and_restored(operator: Operator) -> None:
    """The copy is private and whole; once restored, `serve` serves from it, without what was revoked meanwhile."""
    stand = operator.stand
    stand.start()
    assert stand.ask().code == "delivered"
    operator.follow("Backing up")
    backup = operator.folder / "backup.sqlite3"
    assert backup.stat().st_mode & 0o077 == 0
    stand.stop()
    operator.enroll(backup)
    said = operator.follow("Restoring")
    assert "serve would start" in said
    assert not backup.exists()
    stand.start()
    assert stand.ask().code == "delivered"


def test_a_replaced_store_is_noticed(operator: Operator) -> None:
    """A store file that is put in place under a running sidecar fails the check `authority` until a restart."""
    stand = operator.stand
    stand.start()
    operator.follow("Backing up")
    store = operator.folder / "store.sqlite3"
    (operator.folder / "backup.sqlite3").replace(store)
    wait_for(lambda: stand.metric('ready{check="authority"}') == 0)
    stand.stop()
    for rest in ("-wal", "-shm"):
        Path(f"{store}{rest}").unlink(missing_ok=True)
    stand.start()
    assert stand.ask().code == "delivered"


def test_an_audit_row_is_as_large_as_the_page_says(operator: Operator) -> None:
    """The bytes that audit rows add to a store, divided among them, are the figure of the page within a quarter."""
    count, subject = 2000, ("worker", "worker-1", "worker_credential:worker-1:1")
    with closing(sqlite3.connect(operator.folder / "store.sqlite3")) as connection:
        before = connection.execute("PRAGMA page_count").fetchone()[0]
        for _ in range(count):
            ids = (str(uuid.uuid4()), str(uuid.uuid4()))
            connection.execute(
                "INSERT INTO security_audit_events (event_id, request_id, operation_id, outcome, subject_type,"
                " subject_id, authentication_id, reasons, occurred_at_ms)"
                " VALUES (?, ?, 'worker.secrets', 'allowed', ?, ?, ?, ?, ?)",
                (*ids, *subject, '["worker_credential"]', time.time_ns() // 1_000_000),
            )
        added = connection.execute("PRAGMA page_count").fetchone()[0] - before
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    told = re.search(r"about (\d+) bytes each", PARTS["Capacity"])
    assert told is not None
    assert 0.75 < added * size / count / int(told[1]) < 1.25
