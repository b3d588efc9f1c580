"""Rows: who gets what, and in which order it is decided."""

from typing import Final

from tests.mutants.mutant import Mutant, named

_PIPELINE: Final = "provider/pipeline.py"
_AUTHORITY: Final = "provider/authority.py"
_PLAN: Final = "provider/plan.py"
_RECEIPTS: Final = "provider/receipts.py"
_OUTCOMES: Final = "provider/outcomes.py"

_ORDER: Final = named("pipeline", "every_step_comes_in_its_order")
_LATER: Final = named("pipeline", "nothing_later_is_touched")
_BROKEN_OFF: Final = named("pipeline", "broken_off_at_any_step_nothing_is_left")
_COLUMN: Final = named("authority", "a_changed_column_refuses")

_FENCES: Final = (
    "attempt.run_id == command.run_id",
    "and lease.run_id == command.run_id",
    "and run.project_id == command.project_id",
    "and run.task_id == command.task_id",
    "and run.task_revision == command.task_revision",
    'and run.status == "dispatching"',
    'and run.execution_owner == "runtime"',
    "and run.cancel_requested_at_ms is None",
    'and attempt.status == "starting"',
    'and attempt.executor_type == "remote_worker"',
    "and attempt.worker_id == principal.worker_id",
    "and lease.worker_id == principal.worker_id",
    "and attempt.worker_session_id == session_id",
    "and lease.worker_session_id == session_id",
    "and session.session_id == session_id",
    "and attempt.worker_generation == command.worker_generation",
    "and lease.worker_generation == command.worker_generation",
    "and session.generation == command.worker_generation",
    "and attempt.lease_generation == command.lease_generation",
    "and lease.lease_generation == command.lease_generation",
    "and attempt.lease_version == command.expected_lease_version",
    "and lease.version == command.expected_lease_version",
    "and attempt.offer_id == command.offer_id",
    "and lease.offer_id == command.offer_id",
    "and _same_digest(attempt.lease_token_digest, command.lease_token_digest)",
    "and _same_digest(lease.lease_token_digest, command.lease_token_digest)",
    'and session.status in ("online", "draining")',
    'and lease.status == "leased"',
    "and credential.version == principal.credential_version",
    'and credential.state == "active"',
    "and credential.worker_id == principal.worker_id",
    "and credential.not_before_at_ms <= now",
    "and all(isinstance(expiry, int) and expiry > now for expiry in expiries)",
)
"""Each line of the contract's step 3."""


def _fence(line: str) -> Mutant:
    return Mutant("P6", _AUTHORITY, line, "and True" if line.startswith("and ") else "True", _COLUMN)


DECIDING: Final = (
    # --- the order of the pipeline
    Mutant("P1", _PIPELINE, 'await ports.audit.record(AuditRecord(exchange.request_id, "allowed", principal))', "pass",
           _ORDER),
    Mutant("P1", _PIPELINE, "admitted = await admit(exchange, ports)",
           "body = await exchange.body(None); admitted = await admit(exchange, ports)", _LATER),
    Mutant("P1", _PIPELINE, "if seal is not _SEAL:", "if False:", named("pipeline", "admitted_is_made_by_admit_alone")),
    Mutant("P2", _PIPELINE, "with nullcontext() if rejected else suppress(Refused):", "with suppress(Refused):",
           named("pipeline", "an_unrecorded_rejection_is_not_told")),
    Mutant("P2", _PIPELINE, "with nullcontext() if rejected else suppress(Refused):", "with nullcontext():",
           named("pipeline", "an_unavailable_store_is_recorded_at_best")),
    Mutant("P2", _PIPELINE, "exchange.authentication_ended(failed=rejected)", "pass",
           named("pipeline", "an_unrecorded_rejection_is_not_told")),
    Mutant("P5", _PIPELINE, "del body, document  # they hold the lease token", "pass",
           named("pipeline", "the_provider_sees_no_lease_token")),
    Mutant("P8", _PIPELINE, "_hold_to(authority, batch)", "pass",
           named("pipeline", "a_provider_that_brings_something_else_delivers_nothing")),
    Mutant("P10", _PIPELINE, "permit = await commit(hold, authority, given)",
           "permit = await commit(hold, authority, given); await exchange.send(permit, response)", _ORDER),
    Mutant("P12", _PIPELINE, "with await _material(ports.provider, authority, exchange.deadline, slow=slow) as batch:",
           "for batch in [await _material(ports.provider, authority, exchange.deadline, slow=slow)]:",
           named("pipeline", "values_are_wiped_before_commit_is_waited_for")),
    Mutant("P12", _PIPELINE, "with await _material(ports.provider, authority, exchange.deadline, slow=slow) as batch:",
           "for batch in [await _material(ports.provider, authority, exchange.deadline, slow=slow)]:", _LATER),
    Mutant("P12", _PIPELINE,
           "with exchange.occupy(admitted.principal), wire.Response(ports.pool) as response:",
           "response = wire.Response(ports.pool)\n    with exchange.occupy(admitted.principal):", _BROKEN_OFF),
    Mutant("P16", _PIPELINE, "async with asyncio.timeout(limits.MATERIAL_S):", "async with asyncio.timeout(None):",
           named("pipeline", "a_provider_that_hangs_is_given_up[resolving]")),
    Mutant("P17", _PIPELINE, "await exchange.send(permit, response)",
           "await ports.authority.acknowledge(permit, given); await exchange.send(permit, response)", _ORDER),
    Mutant("P17", _PIPELINE, "permit = await commit(hold, authority, given)",
           "permit = await commit(hold, authority, ())",
           named("pipeline", "receipts_are_committed_and_then_acknowledged")),
    # --- authority
    *map(_fence, _FENCES),
    Mutant("P6", _AUTHORITY, "if snapshot.second_row or not _typed(attempt, run, lease, session, credential):",
           "if not _typed(attempt, run, lease, session, credential):",
           named("authority", "a_second_row_is_the_stores_fault")),
    Mutant("P6", _AUTHORITY, "if snapshot.second_row or not _typed(attempt, run, lease, session, credential):",
           "if snapshot.second_row:", named("authority", "a_wrong_type_in_a_compared_column_is_the_stores_fault")),
    Mutant("P6", _AUTHORITY, "and all(isinstance(expiry, int) and expiry > now for expiry in expiries)",
           "and all(isinstance(expiry, int) and expiry >= now for expiry in expiries)",
           named("authority", "equal_is_expired")),
    Mutant("P7", _AUTHORITY, "# 3. the fences", "plan_refs(revision, command.project_id)",
           named("authority", "a_stranger_learns_nothing_of_the_plan")),
    Mutant("P8", _AUTHORITY, "and command.secret_refs == secret_refs",
           "and set(command.secret_refs) <= set(secret_refs)",
           named("authority", "a_changed_field_of_the_command_refuses")),
    Mutant("P8", _AUTHORITY, "and command.bundle_refs == bundle_refs", "and True",
           named("authority", "a_changed_field_of_the_command_refuses")),
    Mutant("P8", _AUTHORITY, "_same_digest(revision.content_digest, command.execution_digest)", "True", _COLUMN),
    Mutant("P8", _PLAN, "if any(ref.project_id != project_id for ref in secret_refs + bundle_refs):", "if False:",
           named("plan", "every_fault_is_the_stores")),
    Mutant("P8", _PLAN, "if not isinstance(name, str) or name in names:", "if not isinstance(name, str):",
           named("plan", "every_fault_is_the_stores")),
    Mutant("P9", _AUTHORITY, 'raise TypeError("only verify makes an Authority")', "pass",
           named("authority", "an_authority_is_made_by_verify_alone")),
    Mutant("P9", _AUTHORITY, "if not self._tenure.open:", "if False:",
           named("authority", "an_authority_is_dead_outside_its_hold")),
    Mutant("P9", _AUTHORITY, "hold.tenure.open = False", "pass",
           named("authority", "commit_gives_a_permit_and_ends_the_hold")),
    Mutant("P10", _AUTHORITY, 'raise TypeError("only commit makes a Permit")', "pass",
           named("authority", "a_permit_is_made_by_commit_alone")),
    Mutant("P10", _AUTHORITY, "await hold.commit(authority, receipts)", "pass",
           named("authority", "without_a_confirmed_commit_there_is_no_permit")),
    Mutant("P10", _AUTHORITY, "if self._now_ms + (monotonic - self._read_at) * 1000 >= self._expires_at_ms:",
           "if False:",
           named("authority", "a_permit_is_fenced_by_elapsed_time")),
    Mutant("P10", _AUTHORITY, "expires_at_ms = min(expiry for expiry in expiries if isinstance(expiry, int))",
           "expires_at_ms = max(expiry for expiry in expiries if isinstance(expiry, int))",
           named("authority", "the_earliest_expiry_fences_the_delivery")),
    Mutant("P14", _PLAN,
           "if any(ref.version is None for ref in bundle_refs) or len(secret_refs) > limits.SECRET_REFS:",
           "if any(ref.version is None for ref in bundle_refs):",
           named("plan", "64_refs_are_allowed_and_65_are_not")),
    # --- receipts and refusals
    Mutant("P17", _RECEIPTS, 'mark = hmac.new(key, slot.ref.file_name.encode("ascii") + b"\\0", "sha256")',
           'mark = hmac.new(key, b"\\0", "sha256")', named("receipts", "a_mark_depends_on_value_ref_and_pepper")),
    Mutant("P18", _OUTCOMES, "if not isinstance(reason, Reason):", "if False:",
           named("outcomes", "refused_takes_a_reason_only")),
    Mutant("P18", _PLAN, "refused = Refused(Reason.AUTHORITY_STORE)", "raise Refused(Reason.AUTHORITY_STORE) from None",
           named("plan", "every_fault_is_the_stores")),
)  # fmt: skip
