"""What is fuzzed: a target reads any bytes, raises what its module promises and nothing else, and holds what it read.

Those who write to us are a worker (head, body, refs, credential), a projector and the store (PEM, CRL, plan), a
deployer and the control plane (URL, manifest, offer) and, for the client, whoever answers.
"""

import asyncio
import json
import os
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any, Final

from provider import credential, plan, strictjson
from provider.command import Schema, parse_command
from provider.outcomes import Reason, Refused
from provider.refs import InvalidRef, SecretRef
from provider.snapshot import Revision
from sidecar import client_answer, client_head, crl, trust
from sidecar.client_errors import OfferInvalid
from sidecar.client_head import NotAsContracted
from sidecar.client_offer import Offer
from sidecar.framing import Framer
from sidecar.head import HeadParser
from sidecar.postgres_config import Password, Postgres, read_postgres
from sidecar.publish.manifest import read_manifest
from sidecar.reading import ConfigFault, Reading
from tests.fuzz import x509_targets
from tests.fuzz.target import Target, refused_for, silent
from tests.kit import valid
from tests.kit.edge import request
from tests.kit.environments import URL
from tests.kit.pki import pki
from tests.kit.scripted import body, ok, refusal
from tests.kit.world import default_refs, facts, offer

NOW_MS: Final = 1_800_000_000_000
VECTORS: Final = json.loads((Path(__file__).parents[1] / "vectors.json").read_text(encoding="utf-8"))
REFS: Final = default_refs(2)
BUNDLE: Final = SecretRef.of("project-1", "bundle", 3)
OFFERS: Final = [offer(facts(NOW_MS, REFS), REFS), offer(facts(NOW_MS, REFS, BUNDLE), REFS, BUNDLE)]
URL_NAME: Final = next(name for name in URL if name.endswith("_URL"))


def compact(document: object) -> bytes:
    """A document as a worker writes it."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def text_of(data: bytes) -> str:
    """Bytes as text, without losing any of it: what is no UTF-8 becomes lone surrogates."""
    return data.decode("utf-8", "surrogateescape")


# --- a worker ----------------------------------------------------------------------------------------------------


@cache
def parser() -> HeadParser:
    """The one parser, which wants a loop and never lets it run."""
    return HeadParser(asyncio.new_event_loop())


def head(data: bytes) -> bool:
    """A request in two arrivals, cut where the first two bytes say: the framer finds the head that one arrival has."""
    cut, stream = int.from_bytes(data[:2], "big"), data[2:]
    try:
        whole = Framer().feed(stream)
        framer = Framer()
        parts = stream[: cut % (len(stream) + 1)], stream[cut % (len(stream) + 1) :]
        block = framer.feed(parts[0])
        late = block is None
        if late:
            block = framer.feed(parts[1])
        assert block == whole
        if block is None:
            return False
        found = parser().parse(block)
    except Refused as error:
        return refused_for(error, data, Reason.MALFORMED)
    line = block.partition(b"\r\n")[0].split(b" ")
    assert line == [found.method.encode(), found.target.encode(), b"HTTP/1.1"]
    assert found.method != "CONNECT" and b"upgrade" not in found.fields
    assert not (found.chunked and found.length is not None)
    length = None if found.chunked else found.length or 0
    collect = length is not None and length <= 1 << 16
    framer.expect(length, collect=collect)
    if not late:
        framer.feed(parts[1])
    rest = stream[len(block) :]
    assert framer.complete == (length is not None and len(rest) >= length)
    assert not collect or bytes(framer.body())[: len(rest)] == rest[:length]
    return True


def strict_json(data: bytes) -> bool:
    """A document: what is accepted is UTF-8 that the standard library reads alike, in the depth that is allowed."""
    try:
        document = strictjson.parse(data)
    except Refused as error:
        return refused_for(error, data, Reason.JSON)
    assert plain(document, 5) == plain(json.loads(data, parse_int=strictjson.Number, parse_float=strictjson.Number), 5)
    return True


def plain(value: object, depth: int) -> object:
    """A document without its own types; deeper than `depth` nothing may be."""
    if isinstance(value, strictjson.Number):
        return ["number", value.lexeme]
    assert depth > 0 or not isinstance(value, dict | list)
    if isinstance(value, dict):
        return {key: plain(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item, depth - 1) for item in value]
    assert not isinstance(value, int | float) or isinstance(value, bool)
    return value


def command(data: bytes) -> bool:
    """A body: what is accepted is refs of one project, none twice, and numbers inside their bounds."""
    try:
        found = parse_command(strictjson.parse(data))
    except Refused as error:
        return refused_for(error, data, Reason.JSON, Reason.COMMAND)
    refs = [*found.secret_refs, *found.bundle_refs]
    assert len({ref.text for ref in refs}) == len(refs) > 0
    assert {ref.project_id for ref in refs} == {found.project_id}
    assert found.schema is Schema.V2 or not found.bundle_refs
    assert 1 <= found.worker_generation < 1 << 31 and 1 <= found.lease_generation < 1 << 31
    assert json.loads(data)["leaseToken"] not in repr(found)
    return True


def secret_ref(data: bytes) -> bool:
    """A ref: what is accepted is what is written for the same parts."""
    text = text_of(data)
    try:
        ref = SecretRef.parse(text)
    except InvalidRef as error:
        silent(error, data)
        return False
    assert SecretRef.of(ref.project_id, ref.name, ref.version).text == text
    assert len(data) <= 512
    return True


def presented(data: bytes) -> bool:
    """The value of an `authorization` header: what is accepted is what is written for the same credential."""
    try:
        found = credential.present(data)
    except Refused as error:
        return refused_for(error, data, Reason.UNAUTHENTICATED)
    assert f"Worker {credential.make_token(found.credential_id, found.secret)}".encode() == data
    return True


# --- a projector and the store -----------------------------------------------------------------------------------


def stored_plan(data: bytes) -> bool:
    """The text of a plan: what is accepted are refs of the project, each once, and a bundle with a version."""
    revision = Revision(1, "", plan.PLAN_SCHEMA, text_of(data), "")
    try:
        secrets, bundles = plan.plan_refs(revision, valid.PROJECT)
    except Refused as error:
        return refused_for(error, data, Reason.AUTHORITY_STORE)
    assert len(set(secrets)) == len(secrets) <= 64 and len(bundles) <= 1
    assert all(ref.project_id == valid.PROJECT for ref in secrets + bundles)
    assert all(ref.version is not None for ref in bundles)
    return True


def certificates(data: bytes) -> bool:
    """A client CA file: what is accepted are 1 to 16 CAs."""
    try:
        found = trust.authorities(data, time.time(), sign_crls=True)
    except trust.IdentityFault as error:
        assert error.faults
        silent(error, data)
        return False
    assert 1 <= len(found) <= 16
    return True


@cache
def authorities() -> list[Any]:
    """The CAs whose CRLs are asked for."""
    return [pki().root.certificate, pki().intermediate.certificate]


def revocation_lists(data: bytes) -> bool:
    """A CRL file: what is accepted is one CRL for each CA."""
    try:
        found = crl.revocations(data, authorities(), {}, time.time())
    except trust.IdentityFault as error:
        assert error.faults
        silent(error, data)
        return False
    assert found.keys() == {crl.signer(one) for one in authorities()}
    return True


# --- a deployer and the control plane ----------------------------------------------------------------------------


def read_url(text: str) -> tuple[Postgres, tuple[ConfigFault, ...]]:
    """What a URL of the store is read as, and what is said of it."""
    reading = Reading({**URL, URL_NAME: text})
    return read_postgres(reading), reading.faults()


@cache
def url_faults() -> list[tuple[ConfigFault, ...]]:
    """All that is ever said of a URL: that there is none, that it is none, that it has parameters."""
    return [read_url(text)[1] for text in ("", "x", "x?")]


def postgres_url(data: bytes) -> bool:
    """The URL of the store: a fault is one of a few fixed ones, and what is accepted has all five parts."""
    found, faults = read_url(text_of(data))
    if faults:
        assert faults in url_faults()
        return False
    assert found.host and found.database and found.user and 1 <= found.port <= 65535
    assert found.password.read() and repr(found.password) == repr(Password("another", None))
    return True


def worker_offer(data: bytes) -> bool:
    """An offer: what is accepted asks for what it says, in a body that the sidecar takes."""
    try:
        found = Offer.parse(data)
    except OfferInvalid as error:
        silent(error, data)
        return False
    assert parse_command(strictjson.parse(found.body)) == found.command
    assert len(found.body) <= 1 << 16
    assert tuple(dict.fromkeys(ref for _, ref in found.environment)) == found.command.secret_refs
    return True


@cache
def folder() -> "tempfile.TemporaryDirectory[str]":
    """Where a manifest is put to be read; it goes with the process."""
    return tempfile.TemporaryDirectory(prefix="fuzz-")


def manifest(data: bytes) -> bool:
    """A manifest: either findings with a way to mend each, or sources of which none stands twice."""
    path = os.path.join(folder().name, "manifest.json")
    with open(path, "wb") as file:
        file.write(data)
    sources, findings = read_manifest(path)
    assert all(one.code and one.mend for one in findings)
    assert len({one.file_name for one in sources}) == len(sources)
    return not findings


# --- whoever answers the client ----------------------------------------------------------------------------------


@cache
def asked() -> Any:
    """The command whose answer is read."""
    return Offer.parse(compact(OFFERS[1])).command


def answer(data: bytes) -> bool:
    """An answer: what is accepted gives as many values as were asked for, each inside its limit."""
    room = bytearray(data)
    with memoryview(room) as view:
        if not client_head.complete(view):
            return False
        try:
            found = client_head.read_head(view)
            values = client_answer.read_answer(asked(), view[found.body :])
        except NotAsContracted as error:
            silent(error, data)
            return False
        assert len(values) == len(REFS) + 1
        assert all(1 <= len(value) <= 98_304 and value.readonly for value in values)
        for value in values:
            value.release()
    return True


def answers() -> list[bytes]:
    """Answers as the sidecar writes them."""
    refs = {ref.text: b'a "quoted"\\\n\x01value' for ref in (*REFS, BUNDLE)}
    content = body(OFFERS[1], refs)
    return [ok(content), refusal(503)]


TARGETS: Final[dict[str, Target]] = {
    "head": Target(
        head,
        lambda: [
            b"\0\0" + request(),
            b"\0\x20" + request(b"", expect="x"),
            b"\1\0" + request(b"5\r\n", content_length=None, transfer_encoding="chunked"),
        ],
        20_000,
    ),
    "strict JSON": Target(strict_json, lambda: [valid.body(), b'[{"a":[{}]}]', b'"\\ud834\\udd1e"', b"-0.5e+7"]),
    "command": Target(command, lambda: [valid.body(), valid.body_v1()]),
    "ref": Target(
        secret_ref,
        lambda: [one["ref"].encode() for kind in ("secretRefs", "refusedSecretRefs") for one in VECTORS[kind]],
    ),
    "credential": Target(
        presented, lambda: [b"Worker " + one["token"].encode() for one in VECTORS["credentials"]], 256
    ),
    "plan": Target(stored_plan, lambda: [valid.plan_json().encode()]),
    "certificates": Target(certificates, lambda: [pki().ca_pem, pki().root.pem, pki().client.pem], 8192),
    "CRL": Target(revocation_lists, lambda: [pki().crl_pem(), pki().crl_pem(pki().client)], 8192),
    **x509_targets.TARGETS,
    "PostgreSQL URL": Target(
        postgres_url,
        lambda: [URL[URL_NAME].encode(), b"postgres://u%40:p@[::1]:1/d", b"postgresql://u:p@h/d?sslmode=x"],
    ),
    "offer": Target(worker_offer, lambda: [compact(one) for one in OFFERS]),
    "manifest": Target(
        manifest,
        lambda: [
            compact({"schemaVersion": 1, "secrets": [{"ref": REFS[0].text, "file": "a"}]}),
            compact({"schemaVersion": 1, "secrets": [{"project": "p", "name": "n", "version": 1, "stdin": True}]}),
        ],
    ),
    "answer": Target(answer, answers, 8192),
}
"""Every target by its name."""


def planted(data: bytes) -> bool:
    """A target with a fault that coverage finds within seconds and chance does not: it shows that the search works."""
    if data[:1] == b"f":
        if data[1:2] == b"l":
            if data[2:3] == b"a":
                raise ArithmeticError("the planted fault")
            return True
        return False
    return False
