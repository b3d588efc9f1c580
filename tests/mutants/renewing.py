"""Rows: the identity and who is good under it, readiness, and the bounds that hold the edge upright."""

from typing import Final

from tests.mutants.mutant import Mutant, named

_RELOAD: Final = "sidecar/reload.py"
_IDENTITY: Final = "sidecar/identity.py"
_FILES: Final = "sidecar/identityfiles.py"
_CRL: Final = "sidecar/crl.py"
_TRUST: Final = "sidecar/trust.py"
_PEER: Final = "sidecar/peer.py"
_SHIELD: Final = "sidecar/shield.py"
_PROCESS: Final = "sidecar/process.py"
_LISTENER: Final = "sidecar/listener.py"
_READERS: Final = "provider/readers.py"
_HARDENING: Final = "sidecar/hardening.py"

_CONTEXT: Final = named("identity", "context")
_GATES: Final = named("process", "each_gate_broken_alone_is_named_alone")
_HARDENED: Final = named("hardening", "a_hardened_process")


RENEWING: Final = (
    # --- a snapshot is taken whole, judged, or not at all
    Mutant("P30", _RELOAD, "if material.digest == self.current.digest:", "if False:",
           named("reload", "reload_swaps_only_what_is_new")),
    Mutant("P30", _RELOAD, "identity = build(material, self.current, time.time())",
           "identity = build(material, None, time.time())", named("reload", "reload_swaps_only_what_is_new")),
    Mutant("P30", _RELOAD, "if fault.faults != self.faults:", "if True:",
           named("reload", "a_fault_is_told_once_and_counted_each_time")),
    Mutant("P30", _RELOAD, "changed = noticed or seen != tried", "changed = noticed",
           named("reload", "a_blind_watcher_only_delays")),
    Mutant("P30", _RELOAD, "if not changed and time.monotonic() < due:", "if not changed:",
           named("reload", "the_contents_are_polled")),
    Mutant("P30", _RELOAD, "due = time.monotonic() + (pause if holder.faults else poll_s)",
           "due = time.monotonic() + poll_s", named("reload", "a_fault_that_only_time_mends")),
    Mutant("P30", _RELOAD, "if _places(holder.files) != places:", "if False:",
           named("reload", "projected_swaps_are_noticed")),
    Mutant("P30", _RELOAD,
           "except Exception:  # noqa: BLE001 - nothing may end the watch; it is counted and tried again",
           "except OSError:", named("reload", "an_unexpected_error_is_counted_and_survived")),
    Mutant("P30", _FILES, "changed = [Finding(role, Fault.CHANGING) for role, path in files.named()"
           " if _stat(path) != seen[role]]", "changed = changed[:0]",
           named("identityfiles", "files_that_change_are_read_again")),
    Mutant("P30", _FILES, "_KEY_OPEN_TO_OTHERS: Final = stat.S_IWGRP | stat.S_IRWXO",
           "_KEY_OPEN_TO_OTHERS: Final = stat.S_IRWXO", named("identityfiles", "key_modes")),
    Mutant("P30", _FILES, "key = self.content[Role.PRIVATE_KEY]", "key = bytearray()",
           named("identityfiles", "the_key_is_wiped")),
    Mutant("P30", _IDENTITY, "os.pwrite(fd, bytes(os.fstat(fd).st_size), 0)", "pass",
           named("identity", "the_key_stays_in_no_file")),
    Mutant("P30", _IDENTITY, "if key and chain and key != _spki(chain[0].public_key()):", "if False:",
           named("identity", "each_fault_is_named_and_changes_nothing")),
    Mutant("P30", _IDENTITY, "_self_test(context, chain[-1])", "pass",
           named("identity", "each_fault_is_named_and_changes_nothing")),
    Mutant("P30", _IDENTITY, "context.num_tickets = 0", "context.num_tickets = 2", _CONTEXT),
    Mutant("P30", _IDENTITY, "context.options |= ssl.OP_NO_TICKET | _CLEANSE_PLAINTEXT",
           "context.options |= ssl.OP_NO_TICKET", _CONTEXT),
    Mutant("P30", _IDENTITY, "context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3",
           "context.maximum_version = ssl.TLSVersion.TLSv1_3", _CONTEXT),
    # --- who is good
    Mutant("P23", _IDENTITY, "context.verify_mode = ssl.CERT_REQUIRED", "context.verify_mode = ssl.CERT_OPTIONAL",
           named("identity", "gate")),
    Mutant("P23", _IDENTITY, "context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_CHAIN",
           "context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF",
           named("crl", "revoked_clients_are_refused")),
    Mutant("P23", _CRL, "if now < this_update:", "if False:", named("crl", "current")),
    Mutant("P23", _CRL, "if crl.next_update_utc is None or now >= crl.next_update_utc.timestamp():",
           "if crl.next_update_utc is None:", named("crl", "current")),
    Mutant("P23", _CRL,
           "return crl.is_signature_valid(authority.public_key())"
           "  # type: ignore[arg-type]  # other kinds raise TypeError",
           "return True", named("crl", "signature")),
    Mutant("P23", _CRL, "raise _fault(Fault.CRL_FOREIGN)", "return name", named("crl", "foreign_issuer")),
    Mutant("P23", _CRL, "if owner in accepted:", "if False:", named("crl", "one_for_each_ca")),
    Mutant("P23", _CRL, "if not supported:", "if False:", named("crl", "incomplete_lists")),
    Mutant("P23", _TRUST, "(Fault.CA_NOT_A_CA, _is_no_ca),", "(Fault.CA_NOT_A_CA, lambda ca: False),",
           named("trust", "a_leaf_among_the_cas")),
    Mutant("P23", _TRUST, "(Fault.CA_EXPIRED, lambda ca: now >= not_after(ca)),",
           "(Fault.CA_EXPIRED, lambda ca: now > not_after(ca)),", named("trust", "times_of_a_client_ca")),
    Mutant("P23", _TRUST, "UNREADABLE: Final = Exception", "UNREADABLE: Final = ValueError",
           named("identity", "each_fault_is_named_and_changes_nothing")),
    Mutant("P23", _PEER, "good_until.append(crl.next_update)", "pass",
           named("peer", "a_crl_that_ends_takes_its_clients_along")),
    Mutant("P23", "sidecar/exchange.py", "judge(peer, app.identity(), time.time())", "pass",
           named("surface", "a_revoked_peer_and_its_neighbours")),
    Mutant("P23", "sidecar/exchange.py", "or connection.identity is not app.identity()", "or False",
           named("listener", "a_connection_keeps_the_snapshot_it_was_accepted_under")),
    # --- readiness tells the truth
    Mutant("P32", _PROCESS, '"crl": "off" if crl is None else "ok" if crl else "failed",',
           '"crl": "off" if crl is None else "ok",', _GATES),
    Mutant("P32", _PROCESS, '"tls": "ok" if holder.current.tls_ok(now) else "failed",', '"tls": "ok",', _GATES),
    Mutant("P32", "sidecar/admin.py", 'return all(state in ("ok", "off") for state in checks.values())',
           'return all(state != "failed" for state in checks.values())',
           named("admin", "ready_is_judged_from_closed_states")),
    Mutant("P32", "sidecar/stores/sqlite.py",
           'return "ok" if version == VERSION and self._in_place() else "failed"',
           'return "ok" if version == VERSION else "failed"',
           named("sqlite_store", "a_store_that_was_replaced_is_not_trusted")),
    Mutant("P32", _PROCESS, "if faults or holder is None or store is None:", "if holder is None or store is None:",
           named("process", "one_fault_is_enough_against_a_start")),
    Mutant("P32", _PROCESS, "if not HAS_C_PARSER:", "if False:",
           named("process", "one_fault_is_enough_against_a_start")),
    # --- guessing
    Mutant("P22", _SHIELD, "self._window_end += (missed + 1) * self._limits.window_s",
           "self._window_end = now + self._limits.window_s", named("shield", "the_window_is_fixed")),
    Mutant("P22", _SHIELD, "del self._failed[next(iter(self._failed))]", "self._failed.popitem()",
           named("shield", "a_full_table_drops_its_oldest_peer")),
    Mutant("P22", _SHIELD, "return max(1, math.ceil(self._window_end - now))",
           "return math.floor(self._window_end - now)", named("shield", "retry_after_is_rounded_up_and_at_least_one")),
    # --- leaving
    Mutant("P28", _PROCESS, "app.gate = Gate.LEAVING", "pass", named("process", "leaving")),
    Mutant("P28", _PROCESS, "await asyncio.sleep(config.limits.shutdown_delay_ms / 1000)", "pass",
           named("process", "leaving")),
    Mutant("P28", _LISTENER, "for connection in [one for one in self.connections if one.busy]:",
           "for connection in self.connections - self.connections:",
           named("connection", "what_still_runs_when_draining_ends_is_reset_and_wiped")),
    # --- a root that hangs
    Mutant("P16", _READERS, "except TimeoutError:", "except ValueError:", named("readers", "no_answer_in_time")),
    Mutant("P16", _READERS, "full = sum(other.mount == job.mount for other in self._jobs) >= limits.STUCK_THREADS",
           "full = False", named("readers", "threads_of_one_mount_are_bounded")),
    Mutant("P16", _READERS, "if len(stuck) - here > limits.STUCK_THREADS:", "if False:",
           named("readers", "seventeenth_on_earlier_mounts_is_fatal")),
    Mutant("P16", _READERS, "return [job.mount for job in self._jobs if job.abandoned and job.started <= latest]",
           "return [job.mount for job in self._jobs if job.abandoned]",
           named("readers", "young_thread_is_not_stuck")),
    Mutant("P16", "provider/mounted.py", "if self._readers.is_stuck(root.mount):", "if False:",
           named("hanging", "root_that_hangs"), root=True),
    Mutant("P16", "provider/mounts.py", "return self._kinds.get(mount) in LOCAL_KINDS",
           'return self._kinds.get(mount, b"tmpfs") in LOCAL_KINDS', named("mounts", "unknown_mount_is_not_local")),
    # --- the edge stays upright
    Mutant("P26", _LISTENER, "self._loop.call_later(_SWEEP_S, self._listen, listening)",
           "self._loop.call_soon(self._listen, listening)",
           named("listener", "running_out_of_descriptors_stops_nobody")),
    Mutant("P29", "sidecar/events.py", "if len(self._lines) >= _QUEUE_LINES:", "if False:",
           named("events", "a_stalled_reader_stalls_nobody")),
    Mutant("P29", _HARDENING, "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))", "pass", _HARDENED),
    Mutant("P29", _HARDENING, "os.umask(0o077)", "os.umask(0o022)", _HARDENED),
)  # fmt: skip
