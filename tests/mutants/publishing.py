"""Rows: the deployer's tools: publish, doctor, inventory, retention, receipts, the audit of manifests."""

from typing import Final

from tests.mutants.mutant import Mutant, named

_WRITER: Final = "sidecar/publish/writer.py"
_TARGET: Final = "sidecar/publish/target.py"
_SOURCES: Final = "sidecar/publish/sources.py"
_MANIFEST: Final = "sidecar/publish/manifest.py"
_FILES: Final = "sidecar/doctor/files.py"
_RETENTION: Final = "sidecar/retention.py"
_APPLY: Final = "sidecar/cli/retention.py"
_REFERENCES: Final = "sidecar/stores/references.py"
_RECEIPTS: Final = "sidecar/receipts.py"
_AUDIT_POD: Final = "sidecar/audit/rules_pod.py"
_AUDIT_VALUES: Final = "sidecar/audit/rules_values.py"

_ORDER: Final = named("publish_order", "what_is_put_in_force_is_on_disk_first")
_KILLED: Final = named("publish_kill", "old_or_new_whatever_strikes[linked-over-linked-kill]")
_BAD_VALUE: Final = named("publish", "a_bad_value_is_refused")
_EVERY_FAULT: Final = named("publish", "every_fault_at_once")
_PRUNE: Final = named("publish", "prune_drops_and_nothing_else_does")
_GOLDEN: Final = named("doctor", "golden")
_ALONE: Final = named("retention", "each_reason_alone_keeps_a_file")
_SPOILT: Final = named("audit_k8s", "a_spoilt_copy_is_found_and_mended")


PUBLISHING: Final = (
    # --- whole values, old or new, whatever dies
    Mutant("P31", _WRITER, "os.fsync(descriptor)", "pass", _ORDER),
    Mutant("P31", _WRITER, "os.fsync(directory)", "pass", _ORDER),
    Mutant("P31", _WRITER, "os.rename(staged, name, src_dir_fd=root, dst_dir_fd=root)",
           "_target(root, name) and os.unlink(name, dir_fd=root); os.symlink(target, name, dir_fd=root);"
           " os.unlink(staged, dir_fd=root)", _KILLED),
    Mutant("P31", _WRITER, "for name in state.stale:", "for name in ():", _KILLED),
    Mutant("P31", _WRITER, "_values(inputs, origin, kept or (), _Write(root, how, NEW))",
           "_values(inputs, origin, kept or (), _Write(root, how))",
           named("publish_kill", "old_or_new_whatever_strikes[flat-over-flat-kill]")),
    Mutant("P31", _WRITER, "for name in sorted({source.file_name for source in inputs.sources}.union(kept or ())):",
           "for name in reversed([*{source.file_name for source in inputs.sources}.union(kept or ())][1:]):",
           named("publish", "any_sequence_of_publications")),
    Mutant("P31", _TARGET, "if stat.S_ISDIR(os.lstat(name, dir_fd=root).st_mode):", "if False:",
           named("publish", "a_directory_in_the_place_of_a_file")),
    Mutant("P31", _TARGET, "fcntl.flock(root, fcntl.LOCK_EX)", "pass",
           named("publish", "two_publishers_wait_for_each_other")),
    Mutant("P31", _WRITER, "if data_target(root) != generation:", "if False:",
           named("publish", "a_full_disk_leaves_the_old_generation"), root=True),
    # --- what is published
    Mutant("P33", _SOURCES, "if not len(view):", "if False:", _BAD_VALUE),
    Mutant("P33", _SOURCES, "if is_text(view):", "if True:", _BAD_VALUE),
    Mutant("P33", _SOURCES, "if len(view) > limit:", "if len(view) > limit + 1:",
           named("publish", "sizes_at_their_limits")),
    Mutant("P33", _WRITER, "os.fchmod(descriptor, self._how.mode)", "os.fchmod(descriptor, 0o644)",
           named("publish", "linked_is_what_a_kubelet_writes")),
    Mutant("P33", _WRITER, "os.fchmod(directory, _DIRECTORY_MODES[how.mode])", "os.fchmod(directory, 0o755)",
           named("publish", "linked_is_what_a_kubelet_writes")),
    Mutant("P33", _WRITER, "names = () if how.prune else state.names", "names = ()", _PRUNE),
    Mutant("P33", _WRITER, "if through or (HASH.fullmatch(name) and"
           " not stat.S_ISDIR(os.lstat(name, dir_fd=root).st_mode)):", "if True:", _PRUNE),
    Mutant("P33", _MANIFEST, "elif ref.file_name in seen:", "elif False:", _EVERY_FAULT),
    Mutant("P33", _MANIFEST, "if not names:", "if False:",
           named("publish", "an_empty_or_missing_directory_is_a_fault")),
    Mutant("P33", _TARGET, "if stat.S_ISLNK(status.st_mode):", "if False:", _EVERY_FAULT),
    Mutant("P33", _TARGET, "if os.statvfs(path).f_flag & os.ST_RDONLY:", "if False:",
           named("publish", "a_read_only_mount_is_refused"), root=True),
    Mutant("P33", "sidecar/cli/manifest.py",
           "return _with_values(inputs) if args.with_values else _without_values(_refs(sources))",
           "return _with_values(inputs)", named("manifest", "no_value_without_being_asked")),
    # --- found beforehand
    Mutant("P34", _FILES, "if facts.mode == _DEFAULT_MODE:", "if False:", _GOLDEN),
    Mutant("P34", _FILES, "elif facts.mode & FORBIDDEN_MODE:", "elif False:", _GOLDEN),
    Mutant("P34", _FILES, "if facts.links > 1:", "if facts.links > 2:", _GOLDEN),
    Mutant("P34", _FILES, "if facts.modified_ns > place.names_changed_ns + _LATER_NS:", "if False:", _GOLDEN),
    Mutant("P34", _FILES, 'if view[-1] == ord("\\n"):', "if False:", _GOLDEN),
    Mutant("P34", "sidecar/doctor/examine.py", "if name not in result.files:", "if False:",
           named("doctor", "refs_are_turned_back_and_missing_ones_listed")),
    Mutant("P34", "sidecar/doctor/place.py", 'if mount.point.startswith(f"{real}/"):', "if False:",
           named("doctor", "mounts"), root=True),
    Mutant("P34", "sidecar/cli/inventory.py", 'state = "served" if name in files else "missing"', 'state = "served"',
           named("inventory", "every_state")),
    Mutant("P34", _AUDIT_POD, "if withheld is not False:", "if withheld is True:", _SPOILT),
    Mutant("P34", _AUDIT_POD, "if not isinstance(grace, int) or grace * 1000 <= spent:", "if False:", _SPOILT),
    Mutant("P34", _AUDIT_VALUES, 'for key in ("subPath", "subPathExpr"):', 'for key in ("subPathExpr",):', _SPOILT),
    # --- old versions
    Mutant("P35", _RETENTION, "if known.live:", "if False:", _ALONE),
    Mutant("P35", _RETENTION, "if known.startable:", "if False:", _ALONE),
    Mutant("P35", _RETENTION, "if known.ref.version is None:", "if False:", _ALONE),
    Mutant("P35", _RETENTION, "if named.lost:", "if False:", _ALONE),
    Mutant("P35", _RETENTION, "if reason is None and now_ms - written_ms < keep_for_ms:", "if False:", _ALONE),
    Mutant("P35", _RETENTION, 'if ref.version is None or ref.file_name != entry.get("fileName"):', "if False:",
           named("retention", "what_is_no_plan")),
    Mutant("P35", _APPLY, "if again:", "if False:", named("retention", "a_reference_during_apply")),
    Mutant("P35", _APPLY, "if _asked_for(args, names):", "if False:",
           named("retention", "a_reference_between_plan_and_apply")),
    Mutant("P35", _APPLY, "if any(files[drop.ref.file_name] != drop.written_ms for drop in drops):", "if False:",
           named("retention", "a_file_written_since_is_not_dropped")),
    Mutant("P35", _WRITER, "return status.st_mtime_ns if before == view else None", "return None",
           named("retention", "publishing_keeps_ages")),
    Mutant("P35", _REFERENCES, 'f" WHERE status IS NULL OR status NOT IN ({_OVER})"',
           "\" WHERE status IN ('pending', 'dispatching', 'running')\"",
           named("inventory", "live_is_what_is_not_known_to_be_over")),
    # --- who has what
    Mutant("P36", _RECEIPTS, "return BEFORE if now and known else UNKNOWN", "return BEFORE",
           named("receipts_command", "who_has_what_is_mounted_now")),
    Mutant("P36", _RECEIPTS, "return frozenset(mark(key, file_name, value) for key in self._keys)",
           "return frozenset(mark(key, file_name, value) for key in self._keys[:1])",
           named("receipts_command", "who_has_what_is_mounted_now")),
    Mutant("P36", "provider/receipts.py", "return receipt_id == _identified(key, receipt_id[:_HALF])",
           "return len(receipt_id) == 36", named("receipts", "an_id_tells_the_key_and_nothing_else")),
    Mutant("P45", "sidecar/cli/receipts.py",
           'old = f"SELECT receipt_id FROM {table} WHERE occurred_at_ms < ? LIMIT {BATCH_ROWS}"'
           "  # noqa: S608 - of constants",
           'old = f"SELECT receipt_id FROM {table} WHERE occurred_at_ms > ? LIMIT {BATCH_ROWS}"  # noqa: S608',
           named("receipts_command", "prune")),
)  # fmt: skip
