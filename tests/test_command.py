"""provider/command.py: exactly the contract's command, in both schemas, or a refusal."""

import hashlib
import json
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from provider.command import Command, Schema, parse_command
from provider.outcomes import Reason, Refused
from provider.refs import SecretRef
from provider.strictjson import Number, parse
from tests.kit.exceptions import said
from tests.test_refs import SAMPLE, VECTORS

CANARY = "canary-Vq7xT2-canary-Vq7xT2-canary"
REF = SecretRef.of("project-1", "token").text
OTHER_REF = SecretRef.of("project-1", "api-token").text
BUNDLE = SecretRef.of("project-1", "bundle", 2).text
FOREIGN = SecretRef.of("project-2", "token", 1).text
TOKEN: str = VECTORS["leaseTokens"][0]["token"]
V1, V2 = Schema.V1, Schema.V2
IDS = {"runId": 36, "attemptId": 36, "offerId": 128, "projectId": 128, "taskId": 128}


def document(schema: Schema = V1, /, **changes: object) -> dict[str, object]:
    """A valid document of the schema with these members changed."""
    members: dict[str, object] = {
        "schema": schema.value,
        "runId": "018f0000-0000-7000-8000-000000000001",
        "attemptId": "attempt-1",
        "offerId": "offer-1",
        "projectId": "project-1",
        "taskId": "task-1",
        "taskRevision": "qltd:v1:7:" + "5" * 64,
        "executionDigest": "0123456789abcdef" * 4,
        "workerGeneration": 3,
        "leaseGeneration": 4,
        "expectedLeaseVersion": 0,
        "leaseToken": TOKEN,
        "secretRefs": [REF],
    }
    if schema is V2:
        members["environmentBundleRefs"] = [BUNDLE]
    return members | changes


def written(members: object) -> bytes:
    """The document as a worker writes it."""
    return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()


def read(body: bytes) -> Command | None:
    """The command in the bytes; None when they are refused as a command. Any other outcome fails the test."""
    try:
        return parse_command(parse(body))
    except Refused as refusal:
        assert refusal.reason is Reason.COMMAND
        return None


def taken(schema: Schema = V1, /, **changes: object) -> bool:
    """Whether a valid document is still taken with these members changed."""
    return read(written(document(schema, **changes))) is not None


@pytest.mark.parametrize("schema", Schema)
def test_a_valid_command_is_read(schema: Schema) -> None:
    """Every field arrives in its place, refs parsed and the lease token as its digest."""
    command = parse_command(parse(written(document(schema))))
    assert command == Command(
        schema=schema,
        run_id="018f0000-0000-7000-8000-000000000001",
        attempt_id="attempt-1",
        offer_id="offer-1",
        project_id="project-1",
        task_id="task-1",
        task_revision="qltd:v1:7:" + "5" * 64,
        execution_digest="0123456789abcdef" * 4,
        worker_generation=3,
        lease_generation=4,
        expected_lease_version=0,
        lease_token_digest=VECTORS["leaseTokens"][0]["digest"],
        secret_refs=(SecretRef.parse(REF),),
        bundle_refs=(SecretRef.parse(BUNDLE),) if schema is V2 else (),
    )


def test_the_schemas_are_named_as_in_the_contract() -> None:
    """The two schema texts are QL3's own."""
    assert [schema.value for schema in Schema] == [
        "qinglong/remote-secret-delivery@v1",
        "qinglong/remote-secret-delivery@v2",
    ]


@pytest.mark.parametrize("schema", Schema)
def test_the_keys_are_exact(schema: Schema) -> None:
    """A missing key, one more, or one in another case makes it no command."""
    members = document(schema)
    for key in members:
        rest = {name: value for name, value in members.items() if name != key}
        assert read(written(rest)) is None
        assert read(written(rest | {key.upper(): members[key]})) is None
    for key in ("x", "", "Schema", "workerId", "environmentBundleRef"):
        assert read(written(members | {key: 1})) is None


def test_each_schema_has_its_own_keys() -> None:
    """`environmentBundleRefs` belongs to `@v2` alone, there it is required."""
    assert not taken(V1, environmentBundleRefs=[])
    assert not taken(V1, environmentBundleRefs=[BUNDLE])
    assert not taken(V2, schema=V1.value)
    assert not taken(V1, schema=V2.value)


@pytest.mark.parametrize(
    "schema",
    ["", "qinglong/remote-secret-delivery@v3", V1.value + " ", V1.value.upper(), None, 1, [V1.value], {}, True],
)
def test_other_schemas_are_refused(schema: object) -> None:
    """Only the two names are schemas, and what is no text is none."""
    assert not taken(V1, schema=schema)


@pytest.mark.parametrize("whole", [None, True, 1, "text", [], {}, [document()], {"command": document()}])
def test_only_an_object_is_a_command(whole: object) -> None:
    """A JSON document that is no object, or an empty one, is no command."""
    assert read(written(whole)) is None


@pytest.mark.parametrize("schema", Schema)
def test_every_key_has_its_type(schema: Schema) -> None:
    """A value of any other JSON type in any key makes it no command."""
    samples: list[object] = [None, True, False, 1, 1.5, "", "1", [], [1], [None], [[REF]], {}, {"a": 1}]
    for key, good in document(schema).items():
        for value in samples:
            if key == "expectedLeaseVersion" and value == 1 and value is not True:
                continue
            if type(value) is type(good) and type(good) is int:
                continue
            if value == "1" and key in {*IDS, "taskRevision"}:
                continue
            if value == [] and key in ("secretRefs", "environmentBundleRefs"):
                continue
            assert not taken(schema, **{key: value}), (key, value)


@pytest.mark.parametrize(("key", "most"), IDS.items())
def test_ids_are_bounded_in_characters(key: str, most: int) -> None:
    """1..36 or 1..128 characters, a code point counting one however many bytes it takes."""
    for character in ("a", "\u00e9", "\u20ac", "\U0001f511"):
        for length, good in ((0, False), (1, True), (most, True), (most + 1, False)):
            value = character * length
            if key != "projectId":
                assert taken(V1, **{key: value}) is good
            elif len(value.encode()) <= 128:
                # A ref's project is bounded in bytes, so the longest project has no ref in another script.
                refs = [SecretRef.of(value, "n").text] if value else [REF]
                assert taken(V1, projectId=value, secretRefs=refs) is good


def test_the_project_is_bounded_in_characters_before_its_refs_in_bytes() -> None:
    """A project of 129 characters or more than 128 bytes can have no ref, so no command names it."""
    for project_id in ("p" * 129, "\u00e9" * 65):
        assert not taken(V1, projectId=project_id)


@pytest.mark.parametrize(
    ("value", "good"),
    [
        ("", False),
        ("a", True),
        ("a" * 128, True),
        ("a" * 129, False),
        ("\u00e9" * 64, True),
        ("\u00e9" * 64 + "a", False),
        ("\u20ac" * 42 + "aa", True),
        ("\u20ac" * 43, False),
        ("\U0001f511" * 32, True),
        ("\U0001f511" * 32 + "a", False),
    ],
    ids=lambda value: str(value) if isinstance(value, bool) else f"{len(value)}c-{len(value.encode())}b",
)
def test_the_task_revision_is_bounded_in_bytes(value: str, good: bool) -> None:
    """`taskRevision` is 1..128 UTF-8 bytes."""
    assert taken(V1, taskRevision=value) is good


@pytest.mark.parametrize("key", ["runId", "attemptId", "offerId", "taskId", "taskRevision"])
def test_ids_hold_no_control_character(key: str) -> None:
    """U+0000..U+001F and U+007F are refused first, in the middle and last; every other character is allowed."""
    for code in (*range(0x101), 0x2028, 0xFEFF, 0x10FFFF):
        good = code >= 0x20 and code != 0x7F
        for value in (chr(code) + "ab", "a" + chr(code) + "b", "ab" + chr(code)):
            assert taken(V1, **{key: value}) is good, (key, code)


def test_the_project_holds_no_control_character() -> None:
    """A control character in `projectId` is refused, whatever the refs say."""
    for code in (*range(0x20), 0x7F):
        assert not taken(V1, projectId=f"project-1{chr(code)}")


def test_a_lone_surrogate_is_no_command() -> None:
    """Handed a document that no strict reader gives, with a lone surrogate, the parser refuses and does not break."""
    for key in (*IDS, "taskRevision", "leaseToken", "executionDigest"):
        with pytest.raises(Refused) as caught:
            parse_command(parse_numbers(document(**{key: "\ud800" * 40})))
        assert caught.value.reason is Reason.COMMAND


def parse_numbers(members: dict[str, object]) -> dict[str, object]:
    """The document with its integers as the strict reader hands them over."""
    return {key: Number(str(value)) if type(value) is int else value for key, value in members.items()}


@pytest.mark.parametrize(
    ("key", "alphabet", "shortest", "longest"),
    [
        ("executionDigest", "0123456789abcdef", 64, 64),
        ("leaseToken", "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-", 32, 128),
    ],
)
def test_restricted_alphabets(key: str, alphabet: str, shortest: int, longest: int) -> None:
    """Of all 256 byte values, at the first, a middle and the last position, only the alphabet's are taken."""
    for length, good in ((shortest - 1, False), (shortest, True), (longest, True), (longest + 1, False)):
        assert taken(V1, **{key: "a" * length}) is good
    filler = "a" * (shortest - 1)
    for character in map(chr, range(256)):
        for at in (0, shortest // 2, shortest - 1):
            value = filler[:at] + character + filler[at:]
            assert taken(V1, **{key: value}) is (character in alphabet), (key, character)
    for value in ("a" * shortest + "\n", "\u0661" * shortest, "\uff41" * shortest):
        assert not taken(V1, **{key: value})


@pytest.mark.parametrize(("key", "low"), [("workerGeneration", 1), ("leaseGeneration", 1), ("expectedLeaseVersion", 0)])
def test_integers_are_bounded(key: str, low: int) -> None:
    """Generations are 1..2147483647, the lease version may be 0."""
    for value, good in (
        (low - 1, False),
        (low, True),
        (low + 1, True),
        (2_147_483_647, True),
        (2_147_483_648, False),
        (-1, False),
        (10**5000, False),
    ):
        lexeme = "1" + "0" * 5000 if value == 10**5000 else str(value)
        assert (read(with_lexeme(key, lexeme)) is not None) is good, (key, lexeme[:20])


def with_lexeme(key: str, lexeme: str) -> bytes:
    """A valid body in which the number of this key is written so."""
    return written(document(**{key: "HERE"})).replace(b'"HERE"', lexeme.encode())


@pytest.mark.parametrize("key", ["workerGeneration", "leaseGeneration", "expectedLeaseVersion"])
@pytest.mark.parametrize("lexeme", ["4.0", "-0", "1e0", "1E0", "0.1e1", "-1", "1.0", "10e-1", "true", "false", '"1"'])
def test_integers_are_written_as_integers(key: str, lexeme: str) -> None:
    """`4.0`, `-0`, `1e0`, booleans and texts are no integers."""
    assert read(with_lexeme(key, lexeme)) is None
    assert read(with_lexeme(key, "1")) is not None


def refs(count: int) -> list[str]:
    """So many different refs of the project."""
    return [SecretRef.of("project-1", f"name-{number}").text for number in range(count)]


def test_secret_refs_are_counted() -> None:
    """1..64 refs in `@v1`, 0..64 in `@v2`."""
    for count in (0, 1, 2, 63, 64, 65):
        assert taken(V1, secretRefs=refs(count)) is (1 <= count <= 64)
        assert taken(V2, secretRefs=refs(count)) is (count <= 64)


def test_the_order_of_refs_is_kept() -> None:
    """Refs stay in the order asked, which the plan's order is compared with."""
    command = read(written(document(secretRefs=[REF, OTHER_REF])))
    assert command is not None and [ref.text for ref in command.secret_refs] == [REF, OTHER_REF]


def test_refs_are_not_repeated() -> None:
    """The same ref twice is refused, next to itself or not; two versions of one name are two refs."""
    assert taken(V1, secretRefs=[REF, OTHER_REF])
    assert not taken(V1, secretRefs=[REF, REF])
    assert not taken(V1, secretRefs=[REF, OTHER_REF, REF])
    assert taken(V1, secretRefs=[SecretRef.of("project-1", "n", version).text for version in (None, 1, 2)])


def test_refs_are_of_the_project() -> None:
    """A single ref of another project, wherever it stands, is refused."""
    for position in range(3):
        mixed = [REF, OTHER_REF]
        mixed.insert(position, FOREIGN)
        assert not taken(V1, secretRefs=mixed)
    assert not taken(V2, environmentBundleRefs=[FOREIGN])
    assert not taken(V1, projectId="Project-1")


@pytest.mark.parametrize("refused", VECTORS["refusedSecretRefs"], ids=lambda vector: str(vector["why"]))
def test_refs_are_canonical(refused: dict[str, str]) -> None:
    """No vector of a refused ref is taken in either list."""
    assert not taken(V1, secretRefs=[refused["ref"]])
    assert not taken(V1, secretRefs=[REF, refused["ref"]])
    assert not taken(V2, environmentBundleRefs=[refused["ref"]])


@pytest.mark.parametrize("entry", [None, 1, True, [REF], {"ref": REF}, ""])
def test_refs_are_texts(entry: object) -> None:
    """An entry that is no text is refused in either list."""
    assert not taken(V1, secretRefs=[REF, entry])
    assert not taken(V2, environmentBundleRefs=[entry])


def test_at_most_one_bundle() -> None:
    """`environmentBundleRefs` holds 0 or 1 ref."""
    second = SecretRef.of("project-1", "bundle", 3).text
    assert taken(V2, environmentBundleRefs=[])
    assert taken(V2, environmentBundleRefs=[second])
    assert not taken(V2, environmentBundleRefs=[BUNDLE, second])
    assert not taken(V2, environmentBundleRefs=[BUNDLE, BUNDLE])


def test_a_bundle_has_a_version() -> None:
    """A bundle ref for "current" is refused."""
    assert not taken(V2, environmentBundleRefs=[SecretRef.of("project-1", "bundle").text])


def test_the_lists_do_not_overlap() -> None:
    """One ref may not stand in both lists; another version of its name may."""
    assert not taken(V2, secretRefs=[REF, BUNDLE])
    assert taken(V2, secretRefs=[REF, SecretRef.of("project-1", "bundle", 3).text])


def test_the_lists_are_not_both_empty() -> None:
    """`@v2` may leave one list empty, not both."""
    assert taken(V2, secretRefs=[])
    assert taken(V2, environmentBundleRefs=[])
    assert not taken(V2, secretRefs=[], environmentBundleRefs=[])


def test_the_lease_token_is_kept_nowhere() -> None:
    """No field holds the token, and the repr shows neither it nor its digest."""
    command = read(written(document(leaseToken=CANARY)))
    assert command is not None
    digest = hashlib.sha256(CANARY.encode()).hexdigest()
    assert command.lease_token_digest == digest
    assert all(CANARY not in str(getattr(command, field.name)) for field in fields(command))
    assert CANARY not in repr(command) and digest not in repr(command)


def test_a_command_does_not_change() -> None:
    """What was judged stays as it was judged."""
    command = parse_command(parse(written(document())))
    with pytest.raises(FrozenInstanceError):
        command.project_id = "project-2"  # type: ignore[misc]


@pytest.mark.parametrize(
    "changes",
    [
        {"leaseToken": CANARY + "!"},
        {"secretRefs": [CANARY]},
        {"runId": CANARY * 2},
        {"schema": CANARY},
        {CANARY: 1},
        {"taskRevision": CANARY + "\x7f"},
        {"executionDigest": CANARY},
        {"secretRefs": [REF], "projectId": CANARY},
    ],
)
def test_no_refusal_holds_the_input(changes: dict[str, Any]) -> None:
    """The refusal, and whatever it refers to, says nothing of the document."""
    with pytest.raises(Refused) as caught:
        parse_command(parse(written(document(**changes))))
    assert CANARY not in said(caught.value)
    assert TOKEN not in said(caught.value)


def judge(body: bytes) -> Command | Reason:
    """The whole way from bytes; every exception but a refusal for JSON or COMMAND fails the test."""
    try:
        return parse_command(parse(body))
    except Refused as refusal:
        assert refusal.reason in (Reason.JSON, Reason.COMMAND)
        return refusal.reason


@given(st.binary(max_size=100) | st.text(max_size=60).map(lambda text: json.dumps(text).encode()))
@example(b"")
def test_any_bytes_are_a_command_or_refused(body: bytes) -> None:
    """Whatever the bytes, nothing escapes but the two refusals."""
    assert isinstance(judge(body), Reason)


leaves = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.sampled_from([REF, BUNDLE, FOREIGN, TOKEN])
)


@given(
    st.sampled_from(Schema),
    st.dictionaries(
        st.sampled_from(sorted(document(V2))),
        st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner)),
        max_size=2,
    ),
)
def test_any_values_are_a_command_or_refused(schema: Schema, changes: dict[str, object]) -> None:
    """With any JSON in one or two keys the outcome is a command that says what the body says, or a refusal."""
    command = judge(json.dumps(document(schema, **changes)).encode())
    if isinstance(command, Command):
        assert_says(command, document(schema, **changes))


def assert_says(command: Command, members: dict[str, Any]) -> None:
    """Fail unless the command says what the document says."""
    assert command.schema.value == members["schema"]
    assert command.run_id == members["runId"]
    assert command.attempt_id == members["attemptId"]
    assert command.offer_id == members["offerId"]
    assert command.project_id == members["projectId"]
    assert command.task_id == members["taskId"]
    assert command.task_revision == members["taskRevision"]
    assert command.execution_digest == members["executionDigest"]
    assert command.worker_generation == members["workerGeneration"]
    assert command.lease_generation == members["leaseGeneration"]
    assert command.expected_lease_version == members["expectedLeaseVersion"]
    assert command.lease_token_digest == hashlib.sha256(members["leaseToken"].encode()).hexdigest()
    assert [ref.text for ref in command.secret_refs] == members["secretRefs"]
    assert [ref.text for ref in command.bundle_refs] == members.get("environmentBundleRefs", [])


def test_every_byte_of_a_body_counts() -> None:
    """A body with any one byte deleted, doubled or flipped is refused, or is the command that it then spells."""
    body = written(document(V2))
    for at in range(len(body)):
        for changed in (
            body[:at] + body[at + 1 :],
            body[:at] + body[at : at + 1] + body[at:],
            *(body[:at] + bytes([body[at] ^ 1 << bit]) + body[at + 1 :] for bit in range(8)),
        ):
            command = judge(changed)
            if isinstance(command, Command):
                assert_says(command, json.loads(changed))


def test_a_ref_of_another_project_is_not_found_by_prefix() -> None:
    """The project is compared whole: the sample's project is no part of a longer one."""
    assert SecretRef.parse(SAMPLE).project_id == "project-1"
    assert not taken(V1, projectId="project-11", secretRefs=[SAMPLE])
    assert not taken(V1, projectId="project-", secretRefs=[SAMPLE])
