"""The one answer a worker waits for, read in place (contract 3): request and body buffer in, views of the values out.

Everything but the values is known before the answer comes: the keys and their order, the ids, the digest, the refs and
their order. So the frame is not parsed but compared, byte for byte, and only values are looked into. They are unescaped
where they stand, as what is written is never longer than what was read, and never become `str` or `bytes`.
"""

import json
import re
from collections.abc import Sequence
from typing import Final

from provider.command import Command, Schema
from provider.limits import BATCH_BYTES, BUNDLE_BYTES, VALUE_BYTES
from provider.material import is_text
from provider.refs import SecretRef
from sidecar.client_head import NotAsContracted

_STOP: Final = re.compile(rb'["\\\x00-\x1f]')
# The only way to write each of them (contract 3). U+0000 has none here: no value holds it (contract 7).
_ESCAPE: Final = re.compile(rb'\\(?:(["\\bfnrt])|u00([01][0-9a-f]))')
_SHORT: Final = {ord('"'): 0x22, ord("\\"): 0x5C, ord("b"): 8, ord("t"): 9, ord("n"): 10, ord("f"): 12, ord("r"): 13}
_LONG: Final = {b"%02x" % code: code for code in range(1, 0x20) if code not in _SHORT.values()}
_QUOTE: Final = 0x22


def read_answer(command: Command, body: memoryview) -> tuple[memoryview, ...]:
    """Return a read-only view of each value: the secrets in the order asked, then the bundle if one was asked for.

    `body` is writable and exactly the body; its bytes are no longer JSON afterwards. The views are the caller's to
    release. Raises NotAsContracted for a body that differs in any way from what the contract has the sidecar write.
    """
    head, bundles, tail = _frame(command)
    values: list[memoryview] = []
    try:
        at = _expect(body, 0, head)
        at = _items(body, at, command.secret_refs, VALUE_BYTES, values)
        if sum(map(len, values)) > BATCH_BYTES:
            raise NotAsContracted
        at = _expect(body, at, bundles)
        if command.schema is Schema.V2:
            at = _items(body, at, command.bundle_refs, BUNDLE_BYTES, values)
        if _expect(body, at, tail) != len(body):
            raise NotAsContracted
    except BaseException:
        for value in values:
            value.release()
        raise
    return tuple(values)


def _frame(command: Command) -> tuple[bytes, bytes, bytes]:
    """Return what stands before the secrets, between secrets and bundles, and at the end."""
    ids = {
        "schema": command.schema.value,
        "runId": command.run_id,
        "attemptId": command.attempt_id,
        "offerId": command.offer_id,
        "executionDigest": command.execution_digest,
    }
    head = json.dumps(ids, ensure_ascii=False, separators=(",", ":"))[:-1] + ',"values":['
    return head.encode(), b'],"environmentBundles":[' if command.schema is Schema.V2 else b"", b"]}"


def _expect(body: memoryview, at: int, text: bytes) -> int:
    end = at + len(text)
    with body[at:end] as found:
        if found != text:
            raise NotAsContracted
    return end


def _items(body: memoryview, at: int, refs: Sequence[SecretRef], most: int, values: list[memoryview]) -> int:
    for number, ref in enumerate(refs):
        separator = "," if number else ""
        at = _expect(body, at, f'{separator}{{"secretRef":"{ref.text}","value":"'.encode())
        start, (length, at) = at, _unescape(body, at)
        with body[start : start + length] as value:
            if length > most or not is_text(value):
                raise NotAsContracted
            values.append(value.toreadonly())
        at = _expect(body, at, b'"}')
    return at


def _unescape(body: memoryview, start: int) -> tuple[int, int]:
    """Unescape the string that begins at `start`. Return its length and where its closing quote stands."""
    read = write = start
    while True:
        stop = _STOP.search(body, read)
        if stop is None:
            raise NotAsContracted
        plain = stop.start() - read
        if write != read and plain:
            # Within one buffer this moves the bytes (memmove); nothing is copied elsewhere.
            body[write : write + plain] = body[read : read + plain]
        write += plain
        read += plain
        if body[read] == _QUOTE:
            return write - start, read
        body[write], read = _escaped(body, read)
        write += 1


def _escaped(body: memoryview, at: int) -> tuple[int, int]:
    """Return the byte that the escape at `at` stands for, and where it ends."""
    escape = _ESCAPE.match(body, at)
    if escape is None:
        raise NotAsContracted
    if escape.start(1) >= 0:
        return _SHORT[body[at + 1]], escape.end()
    code = _LONG.get(bytes(body[at + 4 : at + 6]))
    if code is None:
        raise NotAsContracted
    return code, escape.end()
