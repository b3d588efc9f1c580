"""Rows: what is lost, late or stuck is counted; what changes around the process is picked up by it."""

from typing import Final

from tests.mutants.mutant import Mutant, named

_PIPELINE: Final = "provider/pipeline.py"
_EXCHANGE: Final = "sidecar/exchange.py"
_CONNECTION: Final = "sidecar/connection.py"
_POSTGRES: Final = "sidecar/stores/postgres.py"
_WATCH: Final = "sidecar/stores/postgres_watch.py"
_LOST: Final = named("postgres_failures", "a_lost_server_shows_within_three_seconds")

COUNTING: Final = (
    # --- counted where it happens
    Mutant("P42", "sidecar/listener.py",
           "self._metrics.loop_lag_s = max(self._metrics.loop_lag_s, now - before - _SWEEP_S)", "pass",
           named("listener", "loop_lag_is_seen")),
    Mutant("P42", "sidecar/stores/sqlite_checkpoint.py", "self.failures += 1", "pass",
           named("sqlite_store", "a_failed_checkpoint_is_counted")),
    Mutant("P42", "sidecar/stores/sqlite.py", "self._full_disk_failures += 1", "pass",
           named("sqlite_store", "a_full_store_refuses_and_recovers")),
    Mutant("P42", "sidecar/stores/sqlite_lock.py", "self.waits += 1", "pass",
           named("sqlite_store", "the_loop_goes_on_while_another_process_writes")),
    Mutant("P42", _POSTGRES, "self._lost_acknowledgements += len(given)", "pass",
           named("postgres_failures", "an_acknowledgement_that_is_lost_is_counted")),
    Mutant("P42", "sidecar/stores/postgres_pool.py", "self._stats.broken += 1", "pass",
           named("postgres_failures", "a_paused_server_holds_nobody")),
    Mutant("P42", "sidecar/stores/postgres_pool.py", "self._stats.open_failures += 1", "pass",
           named("postgres_failures", "a_role_out_of_connections")),
    Mutant("P42", "sidecar/events.py", "self._overflowed += 1", "pass",
           named("events", "a_stalled_reader_stalls_nobody")),
    Mutant("P42", "sidecar/reload.py", "holder.watch_failures += 1", "pass",
           named("reload", "a_broken_watcher_is_told_once")),
    Mutant("P42", "provider/mounted.py", "self._count(drift=1, retries=retries)", "pass",
           named("drift", "drift_in_a_flat_root")),
    Mutant("P42", _EXCHANGE, "self._app.metrics.previous_pepper += 1", "pass",
           named("app", "a_credential_under_the_previous_pepper_is_counted")),
    Mutant("P42", _CONNECTION, "if self.framer.started or not self.requests:", "if not self.requests:",
           named("phases", "every_bound_holds_and_none_comes_early")),
    Mutant("P42", _CONNECTION, "if self.framer.pipelined:", "if False:",
           named("connection", "pipelined_requests_end_with_the_first_answer")),
    Mutant("P42", "sidecar/shield.py", "self.refused += 1", "pass",
           named("shield", "a_refused_peer_spends_nothing")),
    Mutant("P42", "sidecar/process.py", "metrics.accept_pauses += 1", "pass",
           named("process", "what_the_loop_meets_is_told_by_its_type_alone")),
    Mutant("P29", "sidecar/process.py", 'name = "no exception" if error is None else type(error).__name__',
           "name = repr(error)", named("process", "what_the_loop_meets_is_told_by_its_type_alone")),
    Mutant("P42", _CONNECTION, "if self.requests >= limits.REQUESTS_PER_CONNECTION:", "if False:",
           named("bounds", "requests_of_a_connection")),
    Mutant("P42", "sidecar/listener.py", "self._metrics.head_limits[limit] += 1", "pass", named("bounds", "heads")),
    Mutant("P25", _EXCHANGE, "or connection.requests >= limits.REQUESTS_PER_CONNECTION", "or False",
           named("bounds", "requests_of_a_connection")),
    # --- records go by their age
    Mutant("P45", "sidecar/stores/sqlite_control.py", "before = self._clock() - older_than_ms",
           "before = self._clock()", named("control", "prune_deletes_what_is_older_and_nothing_else")),
    # --- picked up without a restart
    Mutant("P43", "sidecar/stores/postgres_session.py", "if attempt == 1:", "if attempt == 0:",
           named("postgres_failures", "a_password_read_too_early_is_read_again")),
    Mutant("P43", "provider/mounts.py", "if self._descriptor is not None and self._changes.poll(0):", "if False:",
           named("mounts", "reused_id_is_judged_again"), root=True),
    Mutant("P43", _POSTGRES, "self._pool.retire()", "pass",
           named("postgres_failures", "a_session_in_use_when_rights_became_wrong_is_not_used_again")),
    # --- the database
    Mutant("P32", _WATCH, "_EVERY_S: Final = 0.8", "_EVERY_S: Final = 8.0", _LOST),
    Mutant("P32", _WATCH, "_PATIENCE_S: Final = 1.5", "_PATIENCE_S: Final = 15.0", _LOST),
    Mutant("P32", _POSTGRES, "elif became_wrong and self._opened:", "elif False:",
           named("postgres_failures", "the_first_answer_decides_also_when_it_comes_late")),
    Mutant("P24", _POSTGRES, "if became_wrong and self._settled:", "if False:",
           named("postgres_failures", "rights_that_become_wrong_stop_everything_until_they_are_right")),
    Mutant("P44", "sidecar/stores/postgres_connect.py", "context = _Named(ssl.PROTOCOL_TLS_CLIENT)",
           "context = _Named(ssl.PROTOCOL_TLS_CLIENT); context.check_hostname = False",
           named("postgres_tls", "a_certificate_that_is_not_good[another name]")),
    Mutant("P44", "sidecar/stores/postgres_connect.py", "context = _Named(ssl.PROTOCOL_TLS_CLIENT)",
           "context = _Named(ssl.PROTOCOL_TLS_CLIENT); context.check_hostname = False;"
           " context.verify_mode = ssl.CERT_NONE",
           named("postgres_tls", "a_certificate_that_is_not_good[another CA]")),
    Mutant("P6", "sidecar/stores/postgres_session.py", '"default_transaction_read_only": "off",',
           '"default_transaction_deferrable": "off",',
           named("postgres_failures", "settings_of_server_database_and_role_do_not_matter")),
    # --- the rest of the table
    Mutant("P27", _PIPELINE, "if ports.provider is None:", "if False:",
           named("surface", "a_disabled_provider_and_its_neighbours")),
    Mutant("P28", _EXCHANGE, "if app.gate in (Gate.STARTING, Gate.WITHDRAWN):", "if app.gate is Gate.STARTING:",
           named("app", "admission_opens_and_closes")),
)  # fmt: skip
