"""Rows: the worker's half: what the client accepts and repeats, and what `exec` leaves behind."""

from typing import Final

from tests.mutants.mutant import Mutant, named

_IDENTITY: Final = "sidecar/client_identity.py"
_CORE: Final = "sidecar/client_core.py"
_ANSWER: Final = "sidecar/client_answer.py"
_EXCHANGE: Final = "sidecar/client_exchange.py"
_FILES: Final = "sidecar/inject_files.py"
_FD: Final = "sidecar/inject_fd.py"
_INJECT: Final = "sidecar/inject.py"
_STAGE: Final = "sidecar/stage.py"

_TLS: Final = named("client_tls", "tls_that_cannot_be")
_FRAME: Final = named("client_answer", "the_frame_is_exact")
_LIMITS: Final = named("client_answer", "limits_hold_after_unescaping")
_REFUSED_NAMES: Final = named("inject", "refused_names")
_OFFERS: Final = named("inject", "offers_that_cannot_be_injected")


WORKING: Final = (
    # --- whom the client believes, and what
    Mutant("P37", _IDENTITY, "context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)",
           "context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT); context.check_hostname = False", _TLS),
    Mutant("P37", _IDENTITY, "context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)",
           "context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT); context.check_hostname = False;"
           " context.verify_mode = ssl.CERT_NONE", _TLS),
    Mutant("P37", _IDENTITY, "context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3",
           "context.minimum_version = ssl.TLSVersion.TLSv1_2", named("client_tls", "an_older_tls_is_not_spoken")),
    Mutant("P37", _IDENTITY, "if self._context is None:", "if True:",
           named("client_tls", "a_rotating_identity_serves_on")),
    Mutant("P37", "sidecar/client_transport.py",
           "if self.context is not context or self._requests >= REQUESTS_PER_CONNECTION or self._sock.pending():",
           "if self._requests >= REQUESTS_PER_CONNECTION or self._sock.pending():",
           named("client", "a_connection_is_kept")),
    Mutant("P37", _EXCHANGE,
           "if head.status != _OK or not head.framed or not 0 < head.length <= _LIMITS[offer.command.schema]:",
           "if head.status != _OK or not head.framed:", named("client", "the_largest_answer_arrives")),
    Mutant("P37", _EXCHANGE,
           "if head.status != _OK or not head.framed or not 0 < head.length <= _LIMITS[offer.command.schema]:",
           "if head.status != _OK or not 0 < head.length <= _LIMITS[offer.command.schema]:",
           named("client_tls", "not_as_contracted")),
    Mutant("P37", _ANSWER, "if found != text:", "if len(found) != len(text):", _FRAME),
    Mutant("P37", _ANSWER, "if _expect(body, at, tail) != len(body):", "if _expect(body, at, tail) > len(body):",
           named("client_answer", "every_cut_is_refused")),
    Mutant("P37", _ANSWER, "if length > most or not is_text(value):", "if not is_text(value):", _LIMITS),
    Mutant("P37", _ANSWER, "if sum(map(len, values)) > BATCH_BYTES:", "if False:", _LIMITS),
    Mutant("P37", "sidecar/client_head.py", "if name in found:", "if False:",
           named("client_answer", "malformed_heads")),
    Mutant("P37", "sidecar/client_files.py", "_OPEN_TO_OTHERS: Final = 0o037", "_OPEN_TO_OTHERS: Final = 0o017",
           named("client_input", "files_that_cannot_be_used")),
    Mutant("P37", "sidecar/client_request.py", "if _TOKEN.fullmatch(room.view, 0, length) is None:", "if False:",
           named("client_input", "a_credential_that_is_none")),
    Mutant("P37", "sidecar/client_secrets.py", "self.wipe()", "pass", named("client", "an_error_in_the_block_wipes")),
    Mutant("P37", "sidecar/client_offer.py", 'return "Offer(redacted)"', 'return f"Offer({self.body!r})"',
           named("client", "repr_shows_nothing")),
    # --- what it tries again
    Mutant("P38", _EXCHANGE, "raise Denied(head.status)", "raise Unavailable(503)",
           named("client_retry", "denials_are_final")),
    Mutant("P38", "sidecar/client_errors.py", "return self.status in {None, 429, 503}",
           "return self.status in {None, 429, 500, 503, 504}",
           named("client_retry", "500_and_504_are_not_tried_again")),
    Mutant("P38", "sidecar/client_retry.py", "return pause if time.monotonic() + pause < self._end else None",
           "return pause", named("client_retry", "pauses_grow_to_a_bound")),
    Mutant("P38", "sidecar/client_retry.py",
           "pause = self._bound * (1 + os.urandom(1)[0] / 255) / 2 + (retry_after or 0)",
           "pause = self._bound * (1 + os.urandom(1)[0] / 255) / 2", named("client_retry", "retry_after_is_kept")),
    Mutant("P38", _CORE, "if lease_left <= 0:", "if False:", named("client_retry", "the_lease_is_over")),
    Mutant("P38", _CORE,
           "end = min(now + DEFAULT_TIMEOUT_S if deadline is None else deadline, now + lease_left)",
           "end = now + DEFAULT_TIMEOUT_S if deadline is None else deadline",
           named("client_retry", "no_attempt_ends_in_time")),
    # --- nothing is left behind
    Mutant("P39", "sidecar/inject_env.py",
           "ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(block)), 0, len(block))", "pass",
           named("inject", "env_strings")),
    Mutant("P39", "sidecar/cli/exec.py", "injection.forked()", "pass", named("exec_residue", "exec_leaves_nothing")),
    Mutant("P39", _STAGE, "if os.read(gate, 1) == _GO:", "if True:", named("exec_residue", "exec_leaves_nothing")),
    Mutant("P39", "sidecar/cli/exec.py", "ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)", "pass",
           named("exec", "nobody_looks_in_while_exec_holds_values")),
    Mutant("P39", _FD, "fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)", "pass",
           named("exec", "fd_is_the_default")),
    Mutant("P39", _FD, "os.fchmod(descriptor, 0o400)", "pass", named("exec", "fd_is_the_default")),
    Mutant("P39", _FILES, "os.pwrite(writer, _ZEROS[: status.st_size], 0)", "pass",
           named("inject", "values_are_overwritten")),
    Mutant("P39", _FILES, "_sweep(self._lock)", "pass", named("inject", "the_next_start_cleans")),
    Mutant("P39", _FILES, "if MARK in entries:", "if True:", named("inject", "cleaning_touches_nothing_of_others")),
    Mutant("P39", _FILES, "if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) != 0o700:", "if False:",
           named("inject", "a_directory_that_is_not_private")),
    Mutant("P39", _FILES, "fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass",
           named("inject", "one_at_a_time")),
    Mutant("P39", _FILES, "if not self._allow_disk and not is_memory(self._directory):", "if False:",
           named("inject", "disks")),
    Mutant("P39", "sidecar/inject_mount.py",
           'return any(_libc.mount(b"tmpfs", target, b"tmpfs", _MS_NOSUID_NODEV_NOEXEC, options) == 0'
           " for options in _OPTIONS)", "return target is None",
           named("exec_residue", "a_private_mount_is_private"), root=True),
    # --- the command is itself
    Mutant("P40", _INJECT,
           '"PATH|LD_.*|PYTHON.*|QL3_.*|IFS|BASH_ENV|ENV|NODE_OPTIONS|PERL5.*|RUBY.*|GIT_.*", re.DOTALL',
           '"PATH|PYTHON.*|QL3_.*|IFS|BASH_ENV|ENV|NODE_OPTIONS|PERL5.*|RUBY.*|GIT_.*", re.DOTALL', _REFUSED_NAMES),
    Mutant("P40", _INJECT, 'if any(f"{name}_FILE" in names for name in names):', "if False:", _OFFERS),
    Mutant("P40", _INJECT, "if bundle_name is None:", "if False:", _OFFERS),
    Mutant("P40", _STAGE,
           "merged = {name: value for name, value in os.environb.items() if name not in secret} | plain",
           "merged = dict(os.environb) | plain", named("exec", "own_variables_pass")),
    Mutant("P40", "sidecar/supervise.py", "return code if code >= 0 else 128 - code", "return code",
           named("exec_parent", "status")),
    Mutant("P40", _STAGE, "signal.pthread_sigmask(signal.SIG_SETMASK, mask)", "pass",
           named("exec_parent", "signal_state")),
    Mutant("P40", "sidecar/supervise.py", "elif came.si_code <= _SENT_BY_THE_KERNEL:", "else:",
           named("exec_parent", "what_the_kernel_sends_is_not_sent_on")),
)  # fmt: skip
