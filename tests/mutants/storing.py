"""Rows: what the authority store promises."""

from typing import Final

from tests.mutants.mutant import Mutant, named

_STORE: Final = "sidecar/stores/sqlite.py"
_HOLD: Final = "sidecar/stores/sqlite_hold.py"
_LOCK: Final = "sidecar/stores/sqlite_lock.py"
_PLACES: Final = "sidecar/stores/places.py"


def _conformance(name: str) -> str:
    return f"tests/test_sqlite_store.py::TestConformance::test_{name}"


STORING: Final = (
    Mutant("P6", _HOLD, "AND c.version = (SELECT max(version) FROM worker_credentials WHERE credential_id = ?2)",
           "AND c.version = (SELECT min(version) FROM worker_credentials WHERE credential_id = ?2)",
           _conformance("the_newest_credential_counts_in_any_state")),
    Mutant("P6", _HOLD, "second_row=len(rows) > 1,", "second_row=False,",
           _conformance("a_second_revision_is_the_stores_fault")),
    Mutant("P6", _HOLD, "AND t.task_revision = r.task_revision AND t.executor_type = 'remote_worker'",
           "AND t.task_revision = r.task_revision", _conformance("another_executors_revision_does_not_count")),
    Mutant("P3", _STORE, '" FROM worker_credentials WHERE credential_id = ? ORDER BY version DESC LIMIT 1"',
           '" FROM worker_credentials WHERE credential_id = ? ORDER BY version LIMIT 1"',
           _conformance("the_newest_credential_counts_in_any_state")),
    Mutant("P11", _HOLD, '_BEGIN: Final = "BEGIN IMMEDIATE"', '_BEGIN: Final = "BEGIN"',
           named("sqlite_store", "a_lock_that_comes_free_is_taken")),
    Mutant("P11", _HOLD, "if not means.lock.take_now(means.connection, _BEGIN):", "if False:",
           named("sqlite_store", "a_lock_that_comes_free_is_taken")),
    Mutant("P11", _HOLD, "now_ms = means.clock()", "now_ms = round(read_at * 1000)",
           _conformance("the_snapshot_holds_the_stores_clock")),
    Mutant("P11", _LOCK, "until = began + WRITE_LOCK_WAIT_S", "until = began + 5 * WRITE_LOCK_WAIT_S",
           named("sqlite_store", "the_loop_goes_on_while_another_process_writes")),
    Mutant("P11", _PLACES,
           "wanted = [attempt, self._transactions, self._materials]"
           " if slow_material else [attempt, self._transactions]",
           "wanted = [self._transactions, attempt]", named("places", "places_are_taken_in_the_contracts_order")),
    Mutant("P9", _HOLD, "if not self.tenure.open:", "if False:", _conformance("there_is_no_second_commit")),
    Mutant("P10", _HOLD, 'means.connection.execute("COMMIT")', "pass",
           _conformance("receipts_are_released_with_the_commit")),
    Mutant("P12", _HOLD, "roll_back(self._means.connection)", "pass", _conformance("a_roll_back_leaves_no_receipt")),
    Mutant("P17", _HOLD, 'insert_receipts(means.connection, "released", authority, receipts, means.clock())', "pass",
           _conformance("receipts_are_released_with_the_commit")),
)  # fmt: skip
