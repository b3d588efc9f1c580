"""Rows: what the database's login may do, and who writes there."""

from typing import Final

from tests.mutants.mutant import Mutant, named

_RIGHTS: Final = "sidecar/stores/postgres_rights.py"
_CONTROL: Final = "sidecar/stores/postgres_control.py"
_FOUND: Final = named("postgres_rights", "each_right_too_much_is_found_and_mended")

KEEPING_POSTGRES: Final = (
    Mutant("P24", _RIGHTS, 'case "attribute":', 'case "no attribute":', _FOUND),
    Mutant("P24", _RIGHTS, 'case "member":', 'case "no member":', _FOUND),
    Mutant("P24", _RIGHTS, 'case "create" if not row.own:', 'case "no create":', _FOUND),
    Mutant("P24", _RIGHTS, 'case "right" | "sequence" if not row.own and (row.object, row.held) not in _ALLOWED:',
           'case "sequence" if not row.own:', _FOUND),
    Mutant("P24", _RIGHTS, 'case "right" | "sequence" if not row.own and (row.object, row.held) not in _ALLOWED:',
           'case "right" if not row.own and (row.object, row.held) not in _ALLOWED:', _FOUND),
    Mutant("P24", _RIGHTS, "for table, right in sorted(there - held):", "for table, right in ():",
           named("postgres_rights", "each_right_missing_is_found_and_mended")),
    Mutant("P24", _CONTROL, "await self.require_ours()", "pass",
           named("postgres_schema", "the_schema_of_ql3_is_not_written")),
    Mutant("P24", "sidecar/cli/authority_store.py", "if os.stat(path).st_mode & 0o077:", "if False:",
           named("postgres_authority", "an_admin_url_that_others_reach_is_refused")),
    Mutant("P6", _CONTROL, "await self._connection.execute(_LOCK, attempt_id)", "await self._connection.execute(_TURN)",
           named("postgres_authority", "a_change_waits_for_the_attempts_lock")),
)  # fmt: skip
