"""docs/openapi.yaml says what the code does: it is fresh, whole, and its schemas accept what the code accepts."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from provider import limits
from provider.command import Schema
from provider.outcomes import Code, Reason
from provider.refs import InvalidRef, SecretRef
from sidecar import answers
from sidecar.exchange import _ROUTE
from sidecar.variables import BY_NAME
from tests.kit.stand import parse_answer
from tests.test_command import BUNDLE, FOREIGN, OTHER_REF, REF, document, read, written
from tests.tools import docgen, openapi

FILE: Final = docgen.ROOT / "docs" / "openapi.yaml"
DOCUMENT: Final[dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
WORKER: Final = DOCUMENT["paths"][openapi.ROUTE]
POST: Final = WORKER["post"]


def _ecma(_: object, pattern: str, instance: object, __: object) -> Iterator[jsonschema.ValidationError]:
    """`pattern` as ECMA 262 has it: there `$` is the end of the text, in Python also what precedes a final newline."""
    if isinstance(instance, str) and re.search(re.sub(r"\$$", r"\\Z", pattern), instance) is None:
        yield jsonschema.ValidationError("does not match")


Validator: Final = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"pattern": _ecma})


def fits(reference: str, instance: object) -> bool:
    """Tell whether a value is what the part of the document at `reference` asks for."""
    return bool(Validator(DOCUMENT | {"$ref": reference}).is_valid(instance))


def resolved(part: dict[str, Any]) -> dict[str, Any]:
    """The part, or what it refers to."""
    while "$ref" in part:
        steps = part["$ref"].removeprefix("#/").split("/")
        part = DOCUMENT
        for step in steps:
            part = part[step]
    return part


def answered(status: int) -> dict[str, Any]:
    """What the document says of an answer of the worker listener with this status."""
    return resolved(WORKER["x-other-methods"]) if status == 405 else dict(POST["responses"][str(status)])


def codes(status: int) -> set[str]:
    """The codes of the document's answers with this status."""
    (content,) = answered(status)["content"].values()
    forms = content["schema"].get("oneOf", [content["schema"]])
    return {resolved(form)["allOf"][1]["properties"]["code"]["const"] for form in forms}


# --- the document ------------------------------------------------------------------------------------------------


def test_the_document_is_fresh() -> None:
    """The file is what the code says now; `make docs` was not forgotten."""
    assert FILE.read_text(encoding="utf-8") == openapi.written()


def test_a_stale_document_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make docs` writes the file where it is missing or stale, and leaves a fresh one alone."""
    (tmp_path / "docs").mkdir()
    file = tmp_path / "docs" / "openapi.yaml"
    monkeypatch.setattr(docgen, "ROOT", tmp_path)
    for stale in (None, "openapi: 3.0.0\n"):
        if stale is not None:
            file.write_text(stale, encoding="utf-8")
        docgen.main()
        assert file.read_text(encoding="utf-8") == FILE.read_text(encoding="utf-8")
    file.chmod(0o400)
    before = file.stat().st_mtime_ns
    docgen.main()
    assert file.stat().st_mtime_ns == before


def test_the_document_is_openapi() -> None:
    """The file is a valid OpenAPI 3.1 document, and every reference in it leads somewhere."""
    definitions = pytest.importorskip("schemathesis.specs.openapi.definitions", reason="needs schemathesis")
    assert DOCUMENT["openapi"].startswith("3.1.")
    assert [error.message for error in definitions.OPENAPI_31_VALIDATOR.iter_errors(DOCUMENT)] == []
    references = re.findall(r"'(#/[^']+)'", FILE.read_text(encoding="utf-8"))
    assert all(resolved({"$ref": reference}) for reference in references)
    assert len(references) > 100


def test_every_schema_is_one() -> None:
    """Each schema is valid JSON Schema of the dialect that the document names."""
    assert DOCUMENT["jsonSchemaDialect"] == Validator.META_SCHEMA["$id"]
    for schema in DOCUMENT["components"]["schemas"].values():
        Validator.check_schema(schema)


def test_the_contract_leads_to_the_document() -> None:
    """The contract in words links the contract for programs."""
    assert "(openapi.yaml)" in (FILE.parent / "wire-contract.md").read_text(encoding="utf-8")


# --- answers -----------------------------------------------------------------------------------------------------


def test_every_code_stands_at_its_status() -> None:
    """The document has exactly the codes of the table, each at its one status, and 200 beside them."""
    table: dict[int, set[str]] = {}
    for code in Code:
        table.setdefault(code.value.status, set()).add(code.value.code)
    assert {status: codes(status) for status in table} == table
    assert {int(status) for status in POST["responses"]} == table.keys() - {405} | {200}
    assert DOCUMENT["x-outcomes"] == [
        {
            "order": row.order,
            "stage": row.stage.value,
            "condition": row.condition,
            "status": row.code.value.status,
            "code": row.code.value.code,
            "closes": row.closes,
        }
        for row in (reason.value for reason in Reason)
    ]


def headers_fit(status: int, found: dict[str, str]) -> bool:
    """Tell whether an answer's headers are those of the document: all that are required, no other, each as it says."""
    described = {name: resolved(part) for name, part in answered(status)["headers"].items()}
    required = {name for name, part in described.items() if part["required"]}
    values = {
        name: int(value) if described[name]["schema"]["type"] == "integer" else value
        for name, value in found.items()
        if name in described
    }
    return (
        required <= found.keys() <= described.keys() | {"content-type"}
        and found["content-type"] in answered(status)["content"]
        and all(Validator(described[name]["schema"]).is_valid(value) for name, value in values.items())
    )


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.name.lower())
def test_every_refusal_is_as_described(reason: Reason) -> None:
    """What the code writes for each reason has the status, headers and document that the file describes, no other."""
    retry_after = 60 if reason is Reason.SHIELDED else None
    for close in {True, reason.value.closes}:
        written_out = answers.refusal(reason, "request-1", "0" * 32, close=close, retry_after=retry_after)
        answer, _ = parse_answer(written_out.data)
        assert headers_fit(answer.status, dict(answer.headers))
        (content,) = answered(answer.status)["content"].values()
        schema = DOCUMENT | content["schema"]
        assert Validator(schema).is_valid(answer.json())
        for key in answer.json():
            assert not Validator(schema).is_valid(answer.json() | {key: "another"})
            assert not Validator(schema).is_valid({k: v for k, v in answer.json().items() if k != key})
        assert not Validator(schema).is_valid(answer.json() | {"more": 1})


def test_the_head_of_a_delivery_is_as_described() -> None:
    """The head of a 200, kept alive or closing, has the headers that the file describes."""
    for close in (True, False):
        answer, _ = parse_answer(answers.ok_head(0, "request-1", close=close))
        assert headers_fit(200, dict(answer.headers))


# --- requests ----------------------------------------------------------------------------------------------------

WORDS: Final = [
    "", "a", "x" * 36, "x" * 37, "x" * 128, "x" * 129, "\x00", "a\x1f", "\x7f", "a\x7fb", "a\n", "\x80", "é", "日本",
    "\U0001f600", "\u2028", " ", '"', "\\", "a" * 64, "f" * 64, "F" * 64, "g" * 64, "a" * 63, "a" * 65, "a" * 64 + "\n",
    "A" * 31, "A" * 32, "_-" * 64, "A" * 32 + "=", "A" * 32 + "\n", Schema.V1.value, Schema.V2.value, "@v1",
]  # fmt: skip
"""Texts at the edge of what some key may hold; none is over 128 bytes unless it is over 128 characters."""
NUMBERS: Final = [-1, 0, 1, 2, limits.VERSION_MAX, limits.VERSION_MAX + 1, 10**10, 10**40, 1.5, -0.5]
MANY: Final = [SecretRef.of("project-1", f"name-{number}").text for number in range(limits.SECRET_REFS + 1)]
LISTS: Final = [
    [], [REF], [REF, OTHER_REF], [OTHER_REF, OTHER_REF], [BUNDLE], MANY[:-1], MANY, [REF, None], [REF, 1], [[REF]],
    [REF + "="], ["qlsecret:v1:"], ["QLSECRET" + REF[8:]], [REF + "\n"], ["qlsecret:v1:" + "A" * 501], REF, {"0": REF},
]  # fmt: skip
KEYS: Final = [*document(Schema.V2), "workerId", "", "Schema"]
VALUES: Final = st.sampled_from([*WORDS, *NUMBERS, *LISTS, None, True, False, {}, {"a": {}}])
OVERLAP: Final = {"secretRefs": [BUNDLE], "environmentBundleRefs": [BUNDLE]}


def is_beyond_a_schema(members: dict[str, Any]) -> bool:
    """Tell the rules between two keys, which the document states in words: overlap, project, a bundle's version."""
    bundles, secrets = members.get("environmentBundleRefs"), members.get("secretRefs")
    if members.get("projectId") != "project-1":
        return True
    return isinstance(bundles, list) and (bundles not in ([], [BUNDLE]) or (bundles == secrets != []))


@given(
    st.sampled_from(Schema),
    st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3),
    st.sets(st.sampled_from(KEYS), max_size=1),
)
@example(Schema.V2, {"secretRefs": [], "environmentBundleRefs": []}, set())
@example(Schema.V2, {"secretRefs": [], "environmentBundleRefs": [BUNDLE]}, set())
@example(Schema.V1, {"schema": Schema.V2.value}, set())
@example(Schema.V1, {"leaseToken": "A" * 129}, set())
def test_the_schemas_accept_what_the_code_accepts(schema: Schema, changes: dict[str, Any], gone: set[str]) -> None:
    """A body is a command exactly when the schemas say so, but for the few rules that a schema cannot state."""
    members = {key: value for key, value in (document(schema) | changes).items() if key not in gone}
    described = Validator(DOCUMENT | POST["requestBody"]["content"]["application/json"]["schema"]).is_valid(members)
    taken = read(written(members)) is not None
    assert described or not taken
    if not is_beyond_a_schema(members):
        assert described == taken


@pytest.mark.parametrize("key", [key for key in document(Schema.V2) if key != "projectId"])
@pytest.mark.parametrize("schema", Schema)
def test_every_key_has_the_bounds_of_the_code(schema: Schema, key: str) -> None:
    """For each key alone, every text, number and list at an edge is judged alike by the schema and by the code."""
    for value in [*WORDS, *NUMBERS, *LISTS, None, True, False, {}]:
        members = document(schema, **{key: value})
        if not is_beyond_a_schema(members):
            described = fits(f"#/components/schemas/Request{schema.name}", members)
            assert described == (read(written(members)) is not None), value


@pytest.mark.parametrize("schema", Schema)
def test_a_project_has_the_bounds_of_the_code(schema: Schema) -> None:
    """Every text that can be a project, with refs of its own, is judged alike by the schema and by the code."""
    for value in WORDS:
        refs = [] if not value else [REF]
        with suppress(InvalidRef):
            refs = [SecretRef.of(value, "name").text]
        members = document(schema, projectId=value, secretRefs=refs)
        members |= {"environmentBundleRefs": []} if schema is Schema.V2 else {}
        described = fits(f"#/components/schemas/Request{schema.name}", members)
        assert described == (read(written(members)) is not None), value


BEYOND: Final[dict[str, tuple[Schema, dict[str, Any], str]]] = {
    "a ref that is not canonical": (Schema.V1, {"secretRefs": [REF[:-1] + "-"]}, "canonical"),
    "a ref of another project": (Schema.V1, {"secretRefs": [FOREIGN]}, "of the request's project"),
    "two lists that overlap": (Schema.V2, OVERLAP, "do not overlap"),
    "a bundle without a version": (Schema.V2, {"environmentBundleRefs": [OTHER_REF]}, "ref has a version"),
    "a revision in bytes": (Schema.V1, {"taskRevision": "é" * 65}, "bounded in bytes"),
    "a number with a fraction": (Schema.V1, {"leaseGeneration": 4.0}, "whole numbers are written"),
}


@pytest.mark.parametrize("name", BEYOND)
def test_what_a_schema_cannot_say_is_said_in_words(name: str) -> None:
    """Each rule of the code that the schemas let pass is named in the document's description."""
    schema, changes, words = BEYOND[name]
    members = document(schema, **changes)
    assert fits(f"#/components/schemas/Request{schema.name}", members)
    assert read(written(members)) is None
    assert words in " ".join(DOCUMENT["info"]["description"].split())


IDS: Final = [
    "a", "A", "0", "a" * 128, "a" * 129, "", "-a", ".a", "_a", ":a", "a-._:9", "a/b", "a%2fb", "a b", "é", "a\n", "a?",
    "018f0000-0000-7000-8000-0000000000aa", "018F0000-0000-7000-8000-0000000000AA",
    "018f0000-0000-4000-8000-0000000000aa", "018f0000-0000-7000-c000-0000000000aa",
    "018f0000-0000-7000-b000-0000000000aa", "018f0000000070008000" + "0" * 12,
    "018f0000-0000-7000-8000-0000000000aa\n", "018f0000-0000-7000-8000-0000000000a",
    "00000000-0000-7fff-9fff-" + "f" * 12,
]  # fmt: skip


@given(st.one_of(st.sampled_from(IDS), st.text(max_size=8), st.from_regex("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")))
def test_the_patterns_of_ids_are_those_in_force(value: str) -> None:
    """Worker, session and request id match the document's patterns exactly when the listener takes them."""
    described = {one["name"]: Validator(one["schema"]).is_valid(value) for one in POST["parameters"]}
    session = "018f0000-0000-7000-8000-0000000000aa"
    target = openapi.ROUTE.replace("{workerId}", "{}").replace("{sessionId}", "{}")
    assert described["workerId"] == (_ROUTE.fullmatch(target.format(value, session)) is not None)
    assert described["sessionId"] == (_ROUTE.fullmatch(target.format("worker-1", value)) is not None)
    as_bytes = value.encode("utf-8", "replace")
    assert described["x-request-id"] == (answers.request_id(as_bytes) == value)


# --- numbers -----------------------------------------------------------------------------------------------------


def test_the_limits_are_those_in_force() -> None:
    """The document has every fixed number, and the schemas of values those that bound a value."""
    assert DOCUMENT["x-limits"] == {name: value for name, value in vars(limits).items() if name.isupper()}
    schemas = DOCUMENT["components"]["schemas"]
    assert schemas["Value"]["properties"]["value"]["maxLength"] == limits.VALUE_BYTES
    assert schemas["Bundle"]["properties"]["value"]["maxLength"] == limits.BUNDLE_BYTES
    assert schemas["SecretRef"]["maxLength"] == limits.REF_BYTES
    for schema, most in ((Schema.V1, limits.RESPONSE_BYTES_V1), (Schema.V2, limits.RESPONSE_BYTES_V2)):
        assert f" {most} bytes" in schemas[f"Delivery{schema.name}"]["description"]
    assert f" {limits.BODY_BYTES} bytes" in POST["requestBody"]["description"]


def test_the_ports_are_the_defaults() -> None:
    """Each listener's address in the document has the default port of its variable."""
    servers = [
        DOCUMENT["servers"][0],
        DOCUMENT["paths"]["/readyz"]["servers"][0],
        DOCUMENT["paths"]["/metrics"]["servers"][0],
    ]
    variables = ("QL3_WORKER_INGRESS_PORT", "QL3_SECRET_SIDECAR_HEALTH_PORT", "QL3_SECRET_SIDECAR_METRICS_PORT")
    assert [server["variables"]["port"]["default"] for server in servers] == [
        BY_NAME[name].default for name in variables
    ]
    assert [server["url"].partition(":")[0] for server in servers] == ["https", "http", "http"]


def test_examples_are_good() -> None:
    """Every example in the document is what its schema asks for."""
    schema = DOCUMENT["components"]["schemas"]["SecretRef"]
    assert all(Validator(schema).is_valid(one) and SecretRef.parse(one) for one in schema["examples"])
    assert json.dumps(DOCUMENT).count('"examples"') == 1
