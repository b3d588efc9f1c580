"""Rows: the serving edge on its worst day, as a whole process shows it."""

from typing import Final

from tests.mutants.mutant import Mutant, named

_LISTENER: Final = "sidecar/listener.py"
_CONNECTION: Final = "sidecar/connection.py"
_PROCESS: Final = "sidecar/process.py"

_DESCRIPTORS: Final = named("process", "running_out_of_descriptors")
_HANDSHAKES: Final = named("bounds", "handshakes_of_an_address_and_of_all")

WORST_DAY: Final = (
    # --- values in memory at a suspension
    Mutant("P12", "provider/memory.py", "self._mapping[: self._size] = _ZEROS[: self._size]", "pass",
           named("wiping", "no_value_is_left_of_a_request_that_was_caught_with_values_in_memory"), timeout_s=120.0),
    # --- revocation and the clock
    Mutant("P23", "sidecar/exchange.py", "judge(self._connection.peer, self._app.identity(), time.time())", "pass",
           named("revocation", "revoked_while_its_request_waits_for_the_lock"), timeout_s=120.0),
    Mutant("P23", "sidecar/reload.py", "changed = noticed or seen != tried", "changed = False",
           named("revocation", "a_revoked_worker_is_cut_within_a_second"), timeout_s=120.0),
    Mutant("P23", "sidecar/peer.py", "if not peer._good_from <= now < peer._good_until:",
           "if peer._good_until < peer._good_from:", named("clock", "trust_follows_the_wall_clock")),
    Mutant("P22", _PROCESS,
           "return Application(ports, limits, lambda: holder.current, Shield(window, time.monotonic), metrics, events)",
           "return Application(ports, limits, lambda: holder.current, Shield(window, time.time), metrics, events)",
           named("clock", "bounds_do_not_see_the_wall_clock")),
    # --- bounds at their defaults
    Mutant("P26", _LISTENER,
           "self._evict(self._limits.per_address, key)", "pass",
           _HANDSHAKES),
    Mutant("P26", _LISTENER, "self._evict(self._limits.connections)", "pass", _HANDSHAKES),
    Mutant("P26", _PROCESS, "widen()", "pass",
           named("hardening", "a_serving_process_takes_every_descriptor_that_it_may")),
    # --- what is counted, and what is said
    Mutant("P42", _LISTENER, "self._metrics.accept_pauses += 1", "pass",
           named("listener", "running_out_of_descriptors_stops_nobody")),
    Mutant("P42", _CONNECTION, "self._listener.count_used_up()", "pass", named("bounds", "requests_of_a_connection")),
    Mutant("P42", _CONNECTION, "self._listener.count_refused_head(block)", "pass", named("bounds", "heads")),
    Mutant("P29", _PROCESS, "loop.set_exception_handler(lambda _, context: _unexpected(context, metrics))", "pass",
           _DESCRIPTORS),
    Mutant("P29", _PROCESS,
           'sys.stderr.write(f"secret-sidecar serve: unexpected in the event loop: {name}\\n")',
           'sys.stderr.write(f"secret-sidecar serve: unexpected in the event loop: {context}\\n")',
           named("process", "what_the_loop_meets_is_told_by_its_type_alone")),
)  # fmt: skip
