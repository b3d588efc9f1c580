"""Rows: what the PostgreSQL store promises."""

from typing import Final

from tests.mutants.mutant import Mutant, named

_STORE: Final = "sidecar/stores/postgres.py"
_HOLD: Final = "sidecar/stores/postgres_hold.py"
_SESSION: Final = "sidecar/stores/postgres_session.py"
_SQL: Final = "sidecar/stores/postgres_sql.py"
_WAITS: Final = named("postgres_snapshot", "what_commits_while_a_delivery_waits_wins")


def _conformance(name: str) -> str:
    return f"tests/test_postgres_store.py::TestConformance::test_{name}"


STORING_POSTGRES: Final = (
    Mutant("P6", _SQL, "f\"BEGIN ISOLATION LEVEL READ COMMITTED {'READ WRITE' if write else 'READ ONLY'};\"",
           "f\"BEGIN ISOLATION LEVEL REPEATABLE READ {'READ WRITE' if write else 'READ ONLY'};\"", _WAITS),
    Mutant("P6", _HOLD, "await self._session.tell(begin(self._asked[0], write=means.receipts), self._until())",
           "await self._session.tell(begin('', write=means.receipts), self._until())", _WAITS),
    Mutant("P6", _SQL,
           "LEFT JOIN (SELECT * FROM ql3.worker_credentials WHERE credential_id = $2 ORDER BY version DESC LIMIT 1)"
           " AS c ON true",
           "LEFT JOIN (SELECT * FROM ql3.worker_credentials WHERE credential_id = $2 ORDER BY version LIMIT 1)"
           " AS c ON true", _conformance("the_newest_credential_counts_in_any_state")),
    Mutant("P3", _SQL,
           "LEFT JOIN (SELECT * FROM ql3.worker_credentials WHERE credential_id = $1 ORDER BY version DESC LIMIT 1)"
           " AS c ON true",
           "LEFT JOIN (SELECT * FROM ql3.worker_credentials WHERE credential_id = $1 ORDER BY version LIMIT 1)"
           " AS c ON true", _conformance("the_newest_credential_counts_in_any_state")),
    Mutant("P6", _HOLD, "if not rows or rows[0][1]:", "if not rows:",
           named("postgres_failures", "a_server_in_recovery_is_unavailable_until_it_is_promoted")),
    Mutant("P6", _HOLD, "second_row=len(rows) > 1,", "second_row=False,",
           _conformance("a_second_revision_is_the_stores_fault")),
    Mutant("P10", _HOLD, 'tag = await session.tell("COMMIT", self._until())', 'tag = "COMMIT"',
           _conformance("receipts_are_released_with_the_commit")),
    Mutant("P10", _HOLD, 'if tag != "COMMIT":', "if False:",
           named("postgres_failures", "a_commit_that_rolls_back_is_no_commit")),
    Mutant("P9", _HOLD, "if not self.tenure.open or session is None:", "if session is None:",
           _conformance("there_is_no_second_commit")),
    Mutant("P11", _SESSION, "timer = asyncio.get_running_loop().call_at(until, self.close)",
           "timer = asyncio.get_running_loop().call_at(until + 6, self.close)",
           named("postgres_failures", "a_paused_server_holds_nobody")),
    Mutant("P11", _SESSION, '"lock_timeout": "1000",', '"lock_timeout": "0",',
           named("postgres_failures", "an_attempt_locked_by_another_replica_is_busy_for_itself_alone")),
    Mutant("P11", _STORE,
           "self._means = Means(self._pool, Places(transactions=size - 1, materials=max(1, size // 2)), receipts)",
           "self._means = Means(self._pool, Places(transactions=64, materials=64), receipts)",
           named("postgres_failures", "lock_waiters_leave_a_session_for_the_others")),
    Mutant("P17", _HOLD, "await session.fetch(RELEASE, self._until(), *receipt_rows(authority, receipts))", "pass",
           _conformance("receipts_are_released_with_the_commit")),
)  # fmt: skip
