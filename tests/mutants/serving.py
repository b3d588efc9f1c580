"""Rows: the edge, from the accepted socket to the last byte, and the end of the process."""

from typing import Final

from tests.mutants.mutant import Mutant, named

_CONNECTION: Final = "sidecar/connection.py"
_LISTENER: Final = "sidecar/listener.py"
_TLSWIRE: Final = "sidecar/tlswire.py"
_EXCHANGE: Final = "sidecar/exchange.py"
_APP: Final = "sidecar/app.py"
_PROCESS: Final = "sidecar/process.py"
_EVENTS: Final = "sidecar/events.py"
_HARDENING: Final = "sidecar/hardening.py"
_FRAMING: Final = "sidecar/framing.py"

_PHASES: Final = named("phases", "every_bound_holds_and_none_comes_early")
_EVICTION: Final = named("listener", "the_oldest_of_too_many_handshakes_goes")
_LEAVING: Final = named("process", "leaving")


SERVING: Final = (
    # --- bounds
    Mutant("P25", _LISTENER, "if now < until:", "if now < until + 20:", _PHASES),
    Mutant("P25", _CONNECTION, "self.due = self.untaken_since + limits.IDLE_S", "self.due = _NEVER", _PHASES),
    Mutant("P25", _CONNECTION, "async with asyncio.timeout_at(until):", "async with asyncio.timeout(None):", _PHASES),
    Mutant("P25", _CONNECTION, "elif now >= since + limits.RESPONSE_S:", "elif False:",
           named("connection", "a_slow_reader_is_dropped_and_counted")),
    Mutant("P25", _CONNECTION, "self.untaken_since = self._loop.time()",
           "self.untaken_since = self.untaken_since or self._loop.time()",
           named("connection", "a_busy_peer_far_away_is_no_slow_reader")),
    Mutant("P25", _CONNECTION, "self.timed_out = True", "self.timed_out = False",
           named("connection", "the_deadline_ends_the_request_wherever_it_waits")),
    Mutant("P25", _CONNECTION, "if self._budget < 0 or self._ran_out():", "if self._ran_out():",
           named("connection", "what_arrives_after_an_early_answer_is_let_in_up_to_a_bound")),
    Mutant("P25", _CONNECTION, "if self.framer.unwanted > limits.DISCARD_BYTES:", "if False:",
           named("connection", "a_flood_is_left_to_the_kernel")),
    Mutant("P25", _CONNECTION, "if self.transport.unsent:", "if False:",
           named("connection", "a_peer_that_asks_on_without_reading_is_not_served_more")),
    Mutant("P25", _LISTENER, "connection.sweep(now)", "connection.due and connection.sweep(now)",
           named("listener", "one_connection_gone_wrong_does_not_lift_the_bounds_of_others")),
    Mutant("P25", _TLSWIRE, "if not self._reading and not self._peer_ended and self._state is not _State.CLOSED:",
           "if not self._reading and self._state is not _State.CLOSED:",
           named("tlswire", "a_peer_that_leaves_still_gets_what_was_written")),
    # --- places
    Mutant("P26", _LISTENER, "self._places.remove(connection)", "pass", named("listener", "a_handshake_has_its_time")),
    Mutant("P26", _LISTENER, "if len(handshaking) >= most:", "if len(handshaking) > most:", _EVICTION),
    Mutant("P26", _LISTENER, "self._give_up(handshaking[0], Close.HANDSHAKE_EVICTED)",
           "self._give_up(handshaking[-1], Close.HANDSHAKE_EVICTED)", _EVICTION),
    Mutant("P26", _LISTENER, "if self._of_address.get(key, 0) >= self._limits.per_address:", "if False:",
           named("listener", "beyond_the_limit_of_an_address_nobody_is_let_in")),
    Mutant("P26", _LISTENER, "if len(self._places) >= self._limits.connections:", "if False:",
           named("listener", "beyond_the_limit_of_all_nobody_is_let_in")),
    Mutant("P26", _EXCHANGE, "del self._busy[self._key]", "pass",
           named("app", "requests_of_one_credential_are_limited")),
    Mutant("P26", _APP, "self.in_flight -= taken", "pass", named("app", "requests_in_flight_are_limited")),
    Mutant("P26", _APP, "exchange.authentication_ended(failed=False)", "pass",
           named("app", "the_shield_counts_attempts_in_progress_of_those_who_failed")),
    # --- one answer, by the first row
    Mutant("P27", _EXCHANGE, "if head.expects:", "if False:", named("surface", "an_expectation")),
    Mutant("P27", _EXCHANGE, 'if match is not None and head.method != "POST":', "if False:",
           named("surface", "other_methods")),
    Mutant("P27", _EXCHANGE, "if app.in_flight >= app.limits.max_in_flight:", "if False:",
           named("app", "requests_in_flight_are_limited")),
    Mutant("P27", _EXCHANGE, "if head.length > self._app.limits.max_body_bytes:", "if False:",
           named("surface", "headers_in_their_order")),
    Mutant("P27", _APP, "last = reason.value.closes or exchange.is_last()", "last = exchange.is_last()",
           named("app", "every_reason_of_the_pipeline_is_answered_by_its_row")),
    Mutant("P27", _APP,
           "except Exception:  # noqa: BLE001 - anything else is the table's last row; its text goes nowhere",
           "except ValueError:", named("app", "anything_else_is_an_internal_error")),
    Mutant("P27", _CONNECTION, "if not self.transport.write(data):", "if self.transport.write(data) is None:",
           named("connection", "what_reached_nobody_is_not_told_as_delivered")),
    Mutant("P27", _TLSWIRE, "return self._state is _State.OPEN", "return True",
           named("tlswire", "a_socket_that_is_lost_takes_nothing")),
    Mutant("P27", _CONNECTION, "if unanswered and self._arrived is None:", "if unanswered:",
           named("connection", "a_request_whose_peer_went_at_once_is_told_all_the_same")),
    Mutant("P27", _FRAMING, "return self._length is not None and self.received >= self._length", "return True",
           named("framing", "a_request_whose_end_is_unknown_is_never_complete_nor_pipelined")),
    # --- leaving
    Mutant("P28", _EXCHANGE, "or app.gate is not Gate.OPEN", "or False", _LEAVING),
    Mutant("P28", _PROCESS, "await listener.drain(config.limits.drain_timeout_ms / 1000)", "pass", _LEAVING),
    Mutant("P28", _CONNECTION, "if unanswered and self._arrived is None:",
           "if self.requests and self._arrived is None:",
           named("connection", "a_peer_that_leaves_with_its_answer_does_not_cost_the_record")),
    Mutant("P28", _LISTENER, "await asyncio.wait(self._serving, timeout=_SETTLE_S)", "pass",
           named("connection", "stopping_waits_for_the_record_of_an_answer")),
    Mutant("P28", _PROCESS, "loop.add_signal_handler(number, end_for, None)", "pass",
           named("process", "a_signal_while_starting_is_not_lost")),
    # --- what is left behind
    Mutant("P29", _EVENTS, "if event not in EVENTS or not fields.keys() <= FIELDS:", "if event not in EVENTS:",
           named("events", "every_event_and_field_of_the_white_list_passes_and_nothing_else")),
    Mutant("P29", _HARDENING, "for option, value in ((_PR_SET_DUMPABLE, 0), (_PR_SET_NO_NEW_PRIVS, 1)):",
           "for option, value in ((_PR_SET_NO_NEW_PRIVS, 1),):", named("hardening", "a_hardened_process")),
    Mutant("P29", "sidecar/cli/serve.py", "_harden()", "pass",
           named("hardening", "hardening_comes_before_the_first_secret")),
    Mutant("P29", "sidecar/head.py",
           "except Exception:  # noqa: BLE001 - whatever it is, it is the head's fault, and its text echoes the head",
           "except ZeroDivisionError:", named("head", "what_is_not_wanted_is_malformed")),
    Mutant("P29", "sidecar/head.py", 'messages, tail = [], b""', "raise Refused(Reason.MALFORMED) from None",
           named("head", "a_refusal_holds_nothing_of_the_head")),
    Mutant("P29", _CONNECTION, "arrived, self._arrived = self._arrived, None",
           "arrived, self._arrived, self.address = self._arrived, None, self._arrived",
           named("connection", "nothing_of_a_request_stays_on_an_idle_connection")),
    # --- who is not good any more
    Mutant("P23", _EXCHANGE, "judge(self._connection.peer, self._app.identity(), time.time())", "pass",
           named("app", "a_peer_revoked_while_its_request_waits_gets_nothing")),
    Mutant("P10", _EXCHANGE, "permit.check(time.monotonic())", "pass",
           named("app", "a_lease_that_ends_before_the_first_byte_is_a_fence")),
)  # fmt: skip
