"""Rows: what the PostgreSQL store promises."""

from typing import Final

from tests.mutants.mutant import Mutant, named

_STORE: Final = "sidecar/stores/postgres.py"
_HOLD: Final = "sidecar/stores/postgres_hold.py"
_ALARM: Final = "sidecar/stores/alarm.py"
_SESSION: Final = "sidecar/stores/postgres_session.py"
_SQL: Final = "sidecar/stores/postgres_sql.py"
_TOGETHER: Final = "sidecar/stores/postgres_together.py"
_WAITS: Final = named("postgres_snapshot", "what_commits_while_a_delivery_waits_wins")


def _conformance(name: str) -> str:
    return f"tests/test_postgres_store.py::TestConformance::test_{name}"


STORING_POSTGRES: Final = (
    Mutant("P6", _SQL, 'BEGIN_READING: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY"',
           'BEGIN_READING: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"', _WAITS),
    Mutant("P6", _SQL, 'BEGIN_WRITING: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"',
           'BEGIN_WRITING: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ WRITE"', _WAITS),
    Mutant("P6", _SESSION, "self._connection._transport.write(run(opening) + run(LOCK, attempt_id))",
           "self._connection._transport.write(run(opening) + run(LOCK, ''))", _WAITS),
    Mutant("P6", _SESSION, "self._connection._transport.write(run(opening) + run(LOCK, attempt_id))",
           "self._connection._transport.write(run(opening)); rows = await self._statements[READ].fetch(*values);"
           " await self._statements[LOCK].fetch(attempt_id); return rows", _WAITS),
    Mutant("P6", _SQL, "SELECT 1 WHERE pg_advisory_xact_lock(hashtextextended('ql3-attempt-authority:' || $1::text, 0)) IS NULL",  # noqa: E501
           "SELECT 1 WHERE pg_advisory_lock(hashtextextended('ql3-attempt-authority:' || $1::text, 0)) IS NULL",
           named("postgres_snapshot", "a_writer_waits_for_a_delivery")),
    Mutant("P6", _SQL,
           "LEFT JOIN (SELECT * FROM ql3.worker_credentials WHERE credential_id = $2 ORDER BY version DESC LIMIT 1)"
           " AS c ON true",
           "LEFT JOIN (SELECT * FROM ql3.worker_credentials WHERE credential_id = $2 ORDER BY version LIMIT 1)"
           " AS c ON true", _conformance("the_newest_credential_counts_in_any_state")),
    Mutant("P3", _SQL,
           "SELECT * FROM ql3.worker_credentials AS w WHERE w.credential_id = asked.credential_id"
           " ORDER BY version DESC LIMIT 1",
           "SELECT * FROM ql3.worker_credentials AS w WHERE w.credential_id = asked.credential_id"
           " ORDER BY version LIMIT 1",
           _conformance("the_newest_credential_counts_in_any_state")),
    Mutant("P3", _SQL, "ORDER BY asked.place", "ORDER BY asked.place DESC",
           _conformance("many_at_once_are_told_apart")),
    Mutant("P3", _TOGETHER, "return rows if len(rows) == len(calls) else [None] * len(calls)",
           "return [*rows, *[rows[0]] * len(calls)][: len(calls)] if rows else [None] * len(calls)",
           named("postgres_together", "another_number_of_rows_is_no_answer")),
    Mutant("P1", _TOGETHER, "return [None] * len(calls)", "return [()] * len(calls)",
           named("postgres_together", "a_statement_that_fails")),
    Mutant("P1", _TOGETHER, "if text.count(SEPARATOR) != len(values) - 1:", "if False:",
           named("postgres_together", "a_value_is_one_value")),
    Mutant("P1", _SQL, "FROM {_LIST} AS v, generate_series(1, cardinality(v), 7) AS n",
           "FROM {_LIST} AS v, generate_series(1, 1, 7) AS n",
           _conformance("many_at_once_are_recorded")),
    Mutant("P11", _TOGETHER, "self._alarm.set(self._patient_until)", "pass", named("postgres_together", "patience")),
    Mutant("P11", _TOGETHER, "if self._patient_until == patient_until:", "if False:",
           named("postgres_together", "those_who_wait_go_together")),
    Mutant("P26", _TOGETHER, "self._sent -= 1", "pass", named("postgres_together", "any_order_of_things")),
    Mutant("P26", _TOGETHER, "if not call.answer.done():", "if True:",
           named("postgres_together", "who_leaves_takes_nobody_along")),
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
    Mutant("P11", _SESSION, "self._alarm.set(until)", "self._alarm.set(until + 6)",
           named("postgres_failures", "a_paused_server_holds_nobody")),
    Mutant("P11", _ALARM, "if timer.when() <= until:", "if timer.when() <= until + 60:",
           named("alarm", "a_limit_that_comes_sooner_is_kept")),
    Mutant("P11", _ALARM, "elif self.until < NEVER:", "elif self.until == NEVER:",
           named("alarm", "a_limit_that_moves_later_is_kept")),
    Mutant("P11", _ALARM, "if self.until <= at:", "if self.until:", named("alarm", "a_limit_that_is_lifted_is_none")),
    Mutant("P11", "sidecar/stores/places.py", "self._alarm.set(min(rest))", "self._alarm.set(max(rest))",
           named("places", "every_waiter_has_its_own_limit")),
    Mutant("P11", "sidecar/stores/places.py", "if until < alarm.until:", "if until > alarm.until:",
           named("places", "every_waiter_has_its_own_limit")),
    Mutant("P11", _HOLD, "return Reason.DEADLINE if late else Reason.AUTHORITY_STORE", "return Reason.AUTHORITY_STORE",
           named("postgres_failures", "a_deadline_during_silence_is_the_deadlines_answer")),
    Mutant("P11", _SESSION, '"lock_timeout": "1000",', '"lock_timeout": "0",',
           named("postgres_failures", "an_attempt_locked_by_another_replica_is_busy_for_itself_alone")),
    Mutant("P11", _STORE,
           "self._means = Means(self._pool, Places(transactions=size - 1, materials=max(1, size // 2)), receipts)",
           "self._means = Means(self._pool, Places(transactions=64, materials=64), receipts)",
           named("postgres_failures", "lock_waiters_leave_a_session_for_the_others")),
    Mutant("P17", _HOLD, "await session.fetch(RELEASE, self._until(), *receipt_rows(authority, receipts))", "pass",
           _conformance("receipts_are_released_with_the_commit")),
)  # fmt: skip
