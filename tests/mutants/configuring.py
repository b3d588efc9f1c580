"""Rows: the gate before everything, and the variables and files that a person can get wrong."""

from typing import Final

from tests.mutants.mutant import Mutant, named

_CONFIG: Final = "sidecar/config.py"
_READING: Final = "sidecar/reading.py"

CONFIGURING: Final = (
    Mutant("P41", "sidecar/run.py", "except OSError as error:", "except ConnectionError as error:",
           named("process", "a_port_that_is_taken_is_a_failure")),
    Mutant("P41", _CONFIG, 'if enabled and profile != "cluster-control":', "if False:",
           named("config", "another_profile_cannot_enable_the_ingress")),
    Mutant("P41", _CONFIG, "if gate(environ) is Gate.DISABLED:", "if False:",
           named("config", "a_disabled_ingress_reads_two_variables")),
    Mutant("P41", _READING,
           "if name in BY_NAME or not name.startswith(OWN_PREFIXES) or is_service_link(name, value):", "if True:",
           named("reading", "an_unknown_variable_under_our_prefixes_is_a_fault")),
    Mutant("P41", _READING, "self._faults.setdefault(name, ConfigFault(name, wrong, mend))",
           "raise ConfigFaults([ConfigFault(name, wrong, mend)])",
           named("process", "every_fault_of_the_configuration_is_told_at_once")),
    Mutant("P41", "sidecar/secret_file.py", "_OPEN_TO_OTHERS: Final = stat.S_IWGRP | stat.S_IRWXO",
           "_OPEN_TO_OTHERS: Final = stat.S_IRWXO", named("secret_file", "a_secret_file_is_closed_to_others")),
    Mutant("P41", _CONFIG, "ours = (*OWN_PREFIXES, *BY_NAME)", "ours = tuple(BY_NAME)",
           named("config", "a_child_inherits_nothing_of_ours")),
    Mutant("P41", _CONFIG,
           "if one.port == other.port != 0 and (len(hosts) == 1 or hosts & _ANYWHERE):",
           "if one.port == other.port != 0 and len(hosts) == 1:", named("config", "listeners_do_not_share_a_port")),
    Mutant("P41", "sidecar/stores/sqlite_file.py", "if os.stat(name).st_mode & 0o077:", "if False:",
           named("sqlite_file", "what_is_no_good_store_is_refused_and_left_alone")),
    Mutant("P41", "sidecar/stores/sqlite_file.py",
           "if not os.access(path, os.R_OK | os.W_OK, effective_ids=True):", "if False:",
           named("sqlite_file", "what_this_user_may_not_write_is_refused")),
    Mutant("P41", "sidecar/stores/sqlite_file.py", 'if connection.execute(check).fetchone()[0] != "ok":', "if False:",
           named("sqlite_file", "what_is_no_good_store_is_refused_and_left_alone")),
)  # fmt: skip
