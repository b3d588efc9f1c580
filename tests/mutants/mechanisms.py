"""What makes each promise true: the third column of the table in `docs/threat-model.md`."""

from typing import Final

MECHANISMS: Final[dict[str, str]] = {
    "P1": "`Admitted` is made by `admit` alone, after the audit row; the edge gives the body for an `Admitted`.",
    "P2": "`admit` records before it lets a rejection out; the shield is told before the row is written.",
    "P3": "`authenticate` judges the newest row on the store's clock, both digests in constant time.",
    "P4": "One head to a fresh C parser, the declared length alone frames the body, strict JSON, refs by re-encoding.",
    "P5": "`parse_command` keeps the token's SHA-256; `Authority` copies ids and refs only.",
    "P6": "`verify`, one rule a line, on a snapshot read in the transaction that holds the lock.",
    "P7": "The plan is parsed after the fences have held.",
    "P8": "Refs are compared as an ordered list with the plan's, and the provider's batch with the authority's.",
    "P9": "A sealed constructor, and a tenure that the store ends with its transaction.",
    "P10": "`commit` alone makes a `Permit`; `send` takes one and checks it against the monotonic clock.",
    "P11": "`BEGIN IMMEDIATE`, then clock and rows in one statement; waits are short sleeps with an end.",
    "P12": "Buffers are owned by `with` before the first byte is read; release overwrites first.",
    "P13": "A mapping goes back to the pool only when no view of it is left; values are read-only views.",
    "P14": "Sizes are taken from descriptors and counted before allocation; escapes are counted before encoding.",
    "P15": "A possessive regular expression over the buffer; bytes go from buffer to buffer.",
    "P16": "The kind of file system is learnt without asking it; slow ones are read in threads that own their buffer.",
    "P17": "`released` rows are in the transaction, `delivered` rows follow `send`.",
    "P18": "`Refused` takes a `Reason`; answers, metrics and events read the same table.",
    "P19": "`openat2` with RESOLVE_BENEATH, NO_MAGICLINKS and NO_XDEV, or a walk that does the same.",
    "P20": "Judged on the descriptor before a byte is read.",
    "P21": "One descriptor for the generation; names and facts are looked at again after the last read.",
    "P22": "Failures by the hash of the leaf certificate, in a fixed window; only who failed can be refused.",
    "P23": "The verified chain is judged against the snapshot in service, at each request and before the first byte.",
    "P24": "Every new session is judged by the catalogue; writing takes the owner's login and our marker table.",
}
