"""Rows: who asks, and what the request says."""

from typing import Final

from tests.mutants.mutant import Mutant, named

_CREDENTIAL: Final = "provider/credential.py"
_COMMAND: Final = "provider/command.py"
_JSON: Final = "provider/strictjson.py"
_REFS: Final = "provider/refs.py"
_HEAD: Final = "sidecar/head.py"
_FRAMING: Final = "sidecar/framing.py"
_SHIELD: Final = "sidecar/shield.py"
_PEER: Final = "sidecar/peer.py"
_CRL: Final = "sidecar/crl.py"

_ROW: Final = named("credential", "one_changed_fact_of_the_row_refuses")
_MALFORMED: Final = named("head", "what_is_not_wanted_is_malformed")


ASKING: Final = (
    # --- credentials
    Mutant("P3", _CREDENTIAL, "is_current or is_previous,", "True,", _ROW),
    Mutant("P3", _CREDENTIAL, "row.credential_id == presented.credential_id,", "True,", _ROW),
    Mutant("P3", _CREDENTIAL, "row.worker_id == worker_id,", "True,", _ROW),
    Mutant("P3", _CREDENTIAL, 'row.state == "active",', "True,", _ROW),
    Mutant("P3", _CREDENTIAL, "not_before <= now_ms < expires,", "not_before <= now_ms <= expires,",
           named("credential", "valid_from_its_start_until_before_its_end")),
    Mutant("P3", _CREDENTIAL, "binding is None or _is_bound(binding, worker_id),", "True,",
           named("credential", "the_binding_is_byte_for_byte")),
    Mutant("P3", _CREDENTIAL, '_ZERO_DIGEST: Final = "0" * 64', '_ZERO_DIGEST: Final = ""',
           named("credential", "both_digests_are_always_computed_and_compared")),
    Mutant("P3", _CREDENTIAL,
           "is_previous = peppers.previous is not None and _matches(peppers.previous, presented, stored)",
           "is_previous = not is_current and peppers.previous and _matches(peppers.previous, presented, stored)",
           named("credential", "both_digests_are_always_computed_and_compared")),
    Mutant("P3", _CREDENTIAL, "return hmac.compare_digest(digest.encode(), stored.encode(errors=\"replace\"))",
           "return digest == stored", named("credential", "both_digests_are_always_computed_and_compared")),
    Mutant("P3", _CREDENTIAL, 'raise TypeError("only authenticate makes a Principal")', "pass",
           named("credential", "nobody_else_makes_a_principal")),
    # --- one reading
    Mutant("P4", _JSON, "if len(members) != len(pairs):", "if False:", named("strictjson", "refuses")),
    Mutant("P4", _JSON, "if depth == 0:", "if depth == -1:",
           named("strictjson", "four_levels_may_be_open_and_no_fifth")),
    Mutant("P4", _JSON, "object_pairs_hook=_object, parse_int=Number, parse_float=Number, parse_constant=_constant",
           "object_pairs_hook=_object, parse_int=Number, parse_float=Number", named("strictjson", "refuses")),
    Mutant("P4", _JSON, "if _SURROGATE.search(value) is not None:", "if False:", named("strictjson", "refuses")),
    Mutant("P4", _COMMAND, "if document.keys() != keys:", "if not document.keys() >= keys:",
           named("command", "the_keys_are_exact")),
    Mutant("P4", _COMMAND, "if type(value) is not Number or _INTEGER.fullmatch(value.lexeme) is None:",
           "if type(value) is not Number or not value.lexeme.lstrip('-').isdigit():",
           named("command", "integers_are_written_as_integers")),
    Mutant("P4", _COMMAND, "if len(set(refs)) != len(refs) or any(ref.project_id != project_id for ref in refs):",
           "if len(set(refs)) != len(refs):", named("command", "refs_are_of_the_project")),
    Mutant("P4", _COMMAND, "if len(set(refs)) != len(refs) or any(ref.project_id != project_id for ref in refs):",
           "if any(ref.project_id != project_id for ref in refs):", named("command", "refs_are_not_repeated")),
    Mutant("P4", _REFS, "if found is None or base64url.encode(document) != sealed:", "if found is None:",
           named("refs", "refused_vectors_are_refused")),
    Mutant("P4", _REFS, "if type(text) is not str or not text.startswith(PREFIX) or len(text) > REF_BYTES:",
           "if type(text) is not str or not text.startswith(PREFIX):",
           named("refs", "the_text_is_bounded_at_512_bytes")),
    Mutant("P4", _HEAD, "if _REQUEST_LINE.match(block) is None:", "if False:", _MALFORMED),
    Mutant("P4", _HEAD, "elif key in _ONCE:", "elif False:", _MALFORMED),
    Mutant("P4", _HEAD, 'if b"transfer-encoding" in fields and (declared is not None or not message.chunked):',
           "if False:", _MALFORMED),
    Mutant("P4", _FRAMING, "if end > limits.HEADER_BLOCK_BYTES:", "if end > limits.HEADER_BLOCK_BYTES + 1:",
           named("framing", "a_head_of_the_limit_passes_and_one_byte_more_does_not")),
    Mutant("P4", _FRAMING, "return self._length is not None and self.received > self._length", "return False",
           named("framing", "how_bytes_are_cut_changes_nothing")),
    # --- the lease token, and what refusals say of the request
    Mutant("P5", _COMMAND,
           "lease_token_digest=hashlib.sha256(lease_token.encode()).hexdigest(),", "lease_token_digest=lease_token,",
           named("command", "the_lease_token_is_kept_nowhere")),
    Mutant("P18", _JSON, "refused = Refused(Reason.JSON)", "raise Refused(Reason.JSON) from None",
           named("strictjson", "no_refusal_holds_the_body")),
    Mutant("P18", _REFS, 'return "SecretRef(redacted)"', 'return f"SecretRef({self.text})"',
           named("refs", "the_repr_shows_nothing")),
    # --- guessing
    Mutant("P22", _SHIELD,
           "if failures + busy < self._limits.per_peer and self._spent + busy < self._limits.all_peers:",
           "if failures < self._limits.per_peer and self._spent + busy < self._limits.all_peers:",
           named("shield", "concurrency_holds_only_those_back_who_have_failed")),
    Mutant("P22", _SHIELD,
           "if failures + busy < self._limits.per_peer and self._spent + busy < self._limits.all_peers:",
           "if failures + busy < self._limits.per_peer:",
           named("shield", "the_global_budget_refuses_only_who_has_failed")),
    Mutant("P22", _SHIELD, "if not failures:", "if not failures and self._spent < self._limits.all_peers:",
           named("shield", "the_global_budget_refuses_only_who_has_failed")),
    # --- certificates
    Mutant("P23", _PEER, "if crl is None or link.serial in crl.serials:", "if crl is None:",
           named("peer", "revoked_anywhere_in_the_chain")),
    Mutant("P23", _PEER, "if anchor not in identity.issuers:", "if False:",
           named("peer", "judgement_agrees_with_a_fresh_handshake")),
    Mutant("P23", _PEER, "good_until = [link.not_after for link in self._links]",
           "good_until = [link.not_after for link in self._links[:1]]", named("peer", "times_of_every_certificate")),
    Mutant("P23", _PEER, "if peer._judged is not identity:", "if peer._judged is None:",
           named("peer", "judgement_agrees_with_a_fresh_handshake")),
    Mutant("P23", _CRL, "if before is not None and _is_older(found, before):", "if False:", named("crl", "rollback")),
    Mutant("P23", _CRL, "if not faults and any(signer(authority) not in accepted for authority in authorities):",
           "if False:", named("crl", "one_for_each_ca")),
)  # fmt: skip
