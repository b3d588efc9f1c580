"""Rows: values while we hold them, and where they come from."""

from typing import Final

from tests.mutants.mutant import Mutant, named

_MEMORY: Final = "provider/memory.py"
_MATERIAL: Final = "provider/material.py"
_WIRE: Final = "provider/wire.py"
_MOUNTED: Final = "provider/mounted.py"
_LAYOUT: Final = "provider/layout.py"
_ROOTFS: Final = "provider/rootfs.py"
_READERS: Final = "provider/readers.py"

_DRIFT: Final = named("drift", "drift_in_a_flat_root")
_LEAVES: Final = named("rootfs", "what_leaves_or_leads_nowhere_is_refused")


HOLDING: Final = (
    # --- memory
    Mutant("P12", _MEMORY, "self._mapping[: self._size] = _ZEROS[: self._size]", "pass",
           named("memory", "released_on_every_way_out_leaves_zeros")),
    Mutant("P12", _MEMORY, "self._mapping[: self._size] = _ZEROS[: self._size]",
           "self.view[:-1] = _ZEROS[: self._size - 1]", named("memory", "released_on_every_way_out_leaves_zeros")),
    Mutant("P12", _MATERIAL, "self._buffer.wipe()", "self._buffer = None",
           named("material", "every_way_out_leaves_zeros")),
    Mutant("P12", _WIRE, "if self.length:", "if False:", named("wire", "a_failure_while_writing_leaves_zeros")),
    Mutant("P12", _WIRE, "self._buffer.release()", "pass", named("wire", "leaving_wipes_head_and_body")),
    Mutant("P12", _MEMORY, "for advice in (mmap.MADV_DONTDUMP, _MADV_WIPEONFORK):",
           "for advice in (mmap.MADV_DONTDUMP,):",
           named("memory", "a_forked_child_sees_zeros")),
    Mutant("P12", _MEMORY, "for advice in (mmap.MADV_DONTDUMP, _MADV_WIPEONFORK):",
           "for advice in (_MADV_WIPEONFORK,):",
           named("memory", "pages_are_private_locked_and_not_dumped")),
    Mutant("P12", _MEMORY, "self.locked_bytes += room if locked else 0", "self.locked_bytes += room",
           named("memory", "locked_bytes_are_what_the_kernel_counts")),
    Mutant("P12", _MEMORY, "self._lock = threading.RLock()", "self._lock = threading.Lock()",
           named("memory", "the_collector_may_run_inside_take")),
    Mutant("P13", _MEMORY, "if not lent and self._idle_bytes + room <= self._retain:",
           "if self._idle_bytes + room <= self._retain:",
           named("memory", "lent_memory_never_serves_another_request")),
    Mutant("P13", _MATERIAL, "return value.toreadonly()", "return value[:]", named("material", "values_are_read_only")),
    Mutant("P13", _MATERIAL, "self._lengths[index] = None", "pass",
           named("material", "a_slot_that_was_refused_holds_no_value")),
    # --- budgets and bytes
    Mutant("P14", _MATERIAL,
           "if not 1 <= slot.size <= (limits.BUNDLE_BYTES if slot.bundle else limits.VALUE_BYTES):",
           "if not 1 <= slot.size <= limits.BUNDLE_BYTES:",
           named("material", "an_ordinary_value_is_never_widened_to_a_bundle")),
    Mutant("P14", _MATERIAL,
           "if secrets > limits.BATCH_BYTES or bundles > limits.BUNDLE_REFS:", "if bundles > limits.BUNDLE_REFS:",
           named("material", "beyond_a_budget_nothing_is_allocated")),
    Mutant("P14", _MATERIAL,
           "if secrets > limits.BATCH_BYTES or bundles > limits.BUNDLE_REFS:", "if secrets > limits.BATCH_BYTES:",
           named("material", "beyond_a_budget_nothing_is_allocated")),
    Mutant("P14", _WIRE, "if length > min(limit, _LIMITS[command.schema]):", "if length > _LIMITS[command.schema]:",
           named("wire", "the_configured_limit_holds_to_the_byte")),
    Mutant("P14", _WIRE, "if length > min(limit, _LIMITS[command.schema]):", "if length > limit:",
           named("wire", "the_schemas_limit_holds_to_the_byte")),
    Mutant("P15", _MATERIAL, "if not is_text(self._rooms[index], length):", "if False:",
           named("material", "a_value_that_is_no_text_is_refused")),
    Mutant("P15", _MATERIAL, 'rb"(?:[\\x01-\\x7f]++"', 'rb"(?:[\\x00-\\x7f]++"',
           named("material", "any_bytes_are_judged_as_the_decoder_does")),
    Mutant("P15", _MATERIAL, 'rb"|\\xed[\\x80-\\x9f][\\x80-\\xbf]"', 'rb"|\\xed[\\x80-\\xbf][\\x80-\\xbf]"',
           named("material", "text_is_judged_as_the_decoder_does_for_every_short_sequence")),
    Mutant("P15", _MATERIAL, "if not 1 <= length <= self.slots[index].size:", "if not 1 <= length:",
           named("material", "a_length_outside_the_slot_is_refused")),
    Mutant("P15", _WIRE, "_SPECIAL: Final = re.compile(rb'[\"\\\\\\x00-\\x1f]')",
           "_SPECIAL: Final = re.compile(rb'[\"\\\\\\x00-\\x1e]')",
           named("wire", "only_what_must_be_is_escaped")),
    Mutant("P15", _WIRE, "_SPECIAL: Final = re.compile(rb'[\"\\\\\\x00-\\x1f]')",
           "_SPECIAL: Final = re.compile(rb'[\"\\\\\\x00-\\x1f\\x7f]')",
           named("wire", "only_what_must_be_is_escaped")),
    Mutant("P15", _WIRE, '_PLAIN: Final = re.compile(rb"[ !#-\\[\\]-\\xff]*+")',
           '_PLAIN: Final = re.compile(rb"[\\x1f !#-\\[\\]-\\xff]*+")',
           named("wire", "only_what_must_be_is_escaped")),
    Mutant("P15", _WIRE, "if _put(body, at, tail) != length:", "if _put(body, at, tail) is None:",
           named("wire", "an_answer_not_as_long_as_counted_is_never_given")),
    # --- beneath the root
    Mutant("P19", _ROOTFS, "_RESOLVE: Final = 0x01 | 0x02 | 0x08  # NO_XDEV, NO_MAGICLINKS, BENEATH",
           "_RESOLVE: Final = 0x01 | 0x02", _LEAVES),
    Mutant("P19", _ROOTFS, "_RESOLVE: Final = 0x01 | 0x02 | 0x08  # NO_XDEV, NO_MAGICLINKS, BENEATH",
           "_RESOLVE: Final = 0x02 | 0x08", named("rootfs", "mount_inside_is_refused"), root=True),
    Mutant("P19", _ROOTFS, "if not below:", "if False:", _LEAVES),
    Mutant("P19", _ROOTFS, 'if links > limits.LINK_DEPTH or target.startswith(b"/"):', "if links > limits.LINK_DEPTH:",
           _LEAVES),
    Mutant("P19", _ROOTFS, 'if links > limits.LINK_DEPTH or target.startswith(b"/"):',
           'if target.startswith(b"/"):', named("rootfs", "link_depth")),
    Mutant("P19", _ROOTFS, "if mount_id(below[-1]) != mount:", "if False:",
           named("rootfs", "mount_inside_is_refused"), root=True),
    Mutant("P19", _ROOTFS, "return os.open(path, DIRECTORY | os.O_NOFOLLOW)", "return os.open(path, DIRECTORY)",
           named("rootfs", "root_is_a_real_directory")),
    Mutant("P19", _ROOTFS, "_PUBLIC_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH", "_PUBLIC_WRITE: Final = stat.S_IWOTH",
           named("rootfs", "root_modes")),
    Mutant("P19", _LAYOUT, "self._anchor = root if generation is None else generation", "self._anchor = root",
           named("mounted", "link_that_leaves_the_generation")),
    # --- what a file must be
    Mutant("P20", _MOUNTED, "FORBIDDEN_MODE: Final = 0o7777 & ~0o640", "FORBIDDEN_MODE: Final = 0o7777 & ~0o644",
           named("mounted", "all_twelve_mode_bits")),
    Mutant("P20", _MOUNTED,
           "if not stat.S_ISREG(found.st_mode) or found.st_mode & FORBIDDEN_MODE or found.st_nlink > 1:",
           "if not stat.S_ISREG(found.st_mode) or found.st_mode & FORBIDDEN_MODE:", named("mounted", "hard_link")),
    Mutant("P20", _ROOTFS, "FILE: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY",
           "FILE: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY", named("mounted", "flags_of_material")),
    # --- one generation, unchanged
    Mutant("P21", _MOUNTED, "if _facts(layout.look(slot.ref.file_name.encode())) != before:", "if False:", _DRIFT),
    Mutant("P21", _MOUNTED,
           '_facts: Final = attrgetter("st_dev", "st_ino", "st_nlink", "st_size", "st_mtime_ns", "st_ctime_ns")',
           '_facts: Final = attrgetter("st_dev", "st_ino", "st_nlink", "st_size", "st_mtime_ns")', _DRIFT),
    Mutant("P21", _MOUNTED, "if layout.has_moved():", "if False:", named("drift", "swap_alone_is_drift")),
    Mutant("P21", _MOUNTED, "for retries in (1, 0):", "for retries in (1, 1, 0):",
           named("drift", "second_drift_is_unavailable")),
    # --- a root that hangs
    Mutant("P16", _READERS, "job.abandon()", "pass", named("readers", "no_answer_in_time")),
    Mutant("P16", _READERS,
           'thread = threading.Thread(target=self._work, args=(job, loop, root, read), name="material", daemon=True)',
           'thread = threading.Thread(target=self._work, args=(job, loop, root, read), name="material", daemon=False)',
           named("readers", "threads_are_daemons")),
    Mutant("P12", _READERS, "if self.answer.done() and not self.answer.cancelled():", "if False:",
           named("readers", "cancelled_when_the_outcome_is_there")),
    Mutant("P12", _READERS, "if self.answer.done():", "if False:", named("readers", "cancelled_request")),
)  # fmt: skip
