"""What is promised: the rows of the table in `docs/threat-model.md`, each broken by at least one mutant."""

from typing import Final

PROMISES: Final[dict[str, str]] = {
    "P1": "No body is read before its peer is authenticated and its audit row is written.",
    "P2": "A rejection that could not be recorded is not told, and is spent all the same.",
    "P3": "A credential counts in its newest version only: active, in time, of this worker, with its very secret.",
    "P4": "A request has one reading: head, body, JSON, command and SecretRef have one form, the rest is refused.",
    "P5": "The lease token is hashed when it is read and goes nowhere; neither authority nor provider leads to it.",
    "P6": "Every fact of run, attempt, lease, session and credential is checked anew, under the attempt's lock.",
    "P7": "Who is not the attempt's worker learns nothing of its plan, not even whether it is well-formed.",
    "P8": "Exactly the plan's refs are given, in its order: neither fewer nor more, from whatever provider.",
    "P9": "Nobody but `verify` makes an authority, and it opens nothing outside the store's hold.",
    "P10": "Only a confirmed COMMIT permits the first byte, and only while lease, session and credential last.",
    "P11": "The store's clock and rows are read once its write lock is held, and waiting for it is bounded.",
    "P12": "Values are overwritten with zeros on every way out: success, refusal, cancel, error, drop.",
    "P13": "Memory that somebody can still reach never serves another request, and values cannot be written to.",
    "P14": "Nothing grows past its limit: value, batch, bundle, answer, plan; each is judged before it is allocated.",
    "P15": "Values are strict UTF-8 without NUL, and are delivered to the byte.",
    "P16": "A root or provider that hangs costs 2 s and its own buffer, and keeps no lock.",
    "P17": "No receipt, no byte; and a receipt `delivered` only after the last byte.",
    "P18": "A refusal says its reason by the one closed table, and nothing else.",
    "P19": "No byte comes from outside the root, whatever links, mounts or modes say.",
    "P20": "Only a regular file with one name and a closed mode is material.",
    "P21": "A batch is of one generation, and whatever changed under the reader is not delivered.",
    "P22": "Guessing is bounded for each certificate, and who never failed is not held back by those who did.",
    "P23": "A client whose certificate was revoked, has ended or lost its CA is not served, on old connections either.",
    "P24": "The database login may do what serving needs and nothing else, and nobody of ours writes QL3's own tables.",
}
