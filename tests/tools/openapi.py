"""The OpenAPI document of the listeners, drawn from the code that answers: `make docs` writes docs/openapi.yaml.

Statuses, codes, texts and limits are read from the tables that are in force. Patterns are stated here, in JSON
Schema's dialect; tests/test_openapi.py holds each of them to what the code accepts.
"""

from collections.abc import Mapping
from typing import Any, Final

import yaml
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST

from provider import limits, refs
from provider.command import Schema
from provider.outcomes import Code, Reason
from sidecar import __version__
from sidecar.variables import BY_NAME

Json = dict[str, Any]

ROUTE: Final = "/api/v3/worker-ingress/workers/{workerId}/sessions/{sessionId}/secrets"
CHECKS: Final = ("admission", "authority", "root", "tls", "crl", "drain")
"""Names of the readiness checks; a test holds them to a running process."""
WORKER_ID: Final = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"
SESSION_ID: Final = "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"
REQUEST_ID: Final = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"
INSTANCE: Final = "^urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"
TIMESTAMP: Final = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z$"
TRACE_ID: Final = "^[0-9a-f]{32}$"
DIGEST: Final = "^[0-9a-f]{64}$"
LEASE_TOKEN: Final = "^[A-Za-z0-9_-]{32,128}$"
REF: Final = f"^{refs.PREFIX}[A-Za-z0-9_-]+$"
TEXT: Final = "^[^\\u0000-\\u001f\\u007f]+$"
"""Any text without a control character; a lone surrogate is no strict JSON in the first place."""
_RETRY: Final = (Code.AUTHENTICATION_RATE_LIMITED, Code.ADMISSION_CAPACITY_EXHAUSTED)
_INFO: Final = (
    "What a worker sends to the listener and what it gets, and the two plain listeners beside it. Generated from the "
    "code by `make docs`; docs/wire-contract.md says the same in words, with what a schema cannot say: a ref is "
    "canonical, refs are of the request's project, `secretRefs` and `environmentBundleRefs` do not overlap, a bundle's "
    "ref has a version, `taskRevision` is bounded in bytes, whole numbers are written `0|[1-9][0-9]*`, no key stands "
    "twice, and a body is strict JSON."
)


def document() -> Json:
    """The whole document."""
    return {
        "openapi": "3.1.1",
        "info": {
            "title": "secret-sidecar",
            "version": __version__,
            "summary": "Secrets of the attempt that a worker holds, over mutual TLS.",
            "description": _INFO,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "servers": [server("https", "QL3_WORKER_INGRESS_PORT", "The worker listener: HTTP/1.1 over TLS 1.3 only.")],
        "paths": {ROUTE: worker_path(), **health_paths(), "/metrics": metrics_path()},
        "components": {
            "securitySchemes": security_schemes(),
            "responses": {"MethodNotAllowed": refusals(405, [Code.METHOD_NOT_ALLOWED])},
            "headers": headers(),
            "schemas": schemas(),
        },
        "x-outcomes": outcomes(),
        "x-limits": worker_limits(),
    }


def server(scheme: str, variable: str, text: str) -> Json:
    """One listener, at the default of its variable."""
    port = {"default": str(BY_NAME[variable].default), "description": f"`{variable}`"}
    host = {"default": "localhost", "description": "Where the sidecar listens."}
    return {"url": f"{scheme}://{{host}}:{{port}}", "description": text, "variables": {"host": host, "port": port}}


def worker_path() -> Json:
    """The one route of the worker listener."""
    parameters = [
        parameter("workerId", "path", {"pattern": WORKER_ID}, "The worker whose credential is shown."),
        parameter("sessionId", "path", {"pattern": SESSION_ID}, "A lower-case UUIDv7."),
        parameter("x-request-id", "header", {"pattern": REQUEST_ID}, "Comes back; another value counts as none."),
        parameter("traceparent", "header", {}, "W3C trace context; one that is not valid counts as none."),
        parameter("content-encoding", "header", {"enum": ["identity"]}, "Absent or `identity`."),
    ]
    by_status: dict[int, list[Code]] = {}
    for code in Code:
        if code is not Code.METHOD_NOT_ALLOWED:
            by_status.setdefault(code.value.status, []).append(code)
    return {
        "x-other-methods": {"$ref": "#/components/responses/MethodNotAllowed"},
        "post": {
            "operationId": "deliverSecrets",
            "summary": "Deliver the secrets of an attempt",
            "description": "The refs must be those of the plan that the attempt was dispatched with, in its order. "
            "The raw target is compared byte for byte; any `?` makes it another one.",
            "security": [{"clientCertificate": [], "workerCredential": []}],
            "parameters": parameters,
            "requestBody": {
                "required": True,
                "description": f"Strict JSON of at most {limits.BODY_BYTES} bytes, with a `content-length`.",
                "content": {"application/json": {"schema": by_schema("Request")}},
            },
            "responses": {
                "200": delivered(),
                **{str(status): refusals(status, codes) for status, codes in sorted(by_status.items())},
            },
        },
    }


def parameter(name: str, place: str, schema: Json, text: str) -> Json:
    """A parameter that is text."""
    return {
        "name": name, "in": place, "required": place == "path", "description": text,
        "schema": {"type": "string", **schema},
    }  # fmt: skip


def by_schema(kind: str) -> Json:
    """Either schema of a request or delivery, told apart by its key `schema`."""
    names = {schema.value: f"#/components/schemas/{kind}{schema.name}" for schema in Schema}
    return {
        "oneOf": [{"$ref": name} for name in names.values()],
        "discriminator": {"propertyName": "schema", "mapping": names},
    }


def delivered() -> Json:
    """The answer that holds values."""
    return {
        "description": "Delivered: the values in the order asked for, in the request's own schema.",
        "headers": header_references("Close"),
        "content": {"application/json; charset=utf-8": {"schema": by_schema("Delivery")}},
    }


def refusals(status: int, codes: list[Code]) -> Json:
    """The answer with this status, whichever of its codes it has."""
    rows = [reason.value for reason in Reason if reason.value.code in codes]
    found = header_references("Closing" if all(row.closes for row in rows) else "Close")
    if any(code in _RETRY for code in codes):
        found |= {"retry-after": {"$ref": f"#/components/headers/{'RetryAfter' if status == 429 else 'MayRetryAfter'}"}}
    if Code.METHOD_NOT_ALLOWED in codes:
        found |= {"allow": {"$ref": "#/components/headers/Allow"}}
    names = {code.value.code: f"#/components/schemas/{schema_name(code)}" for code in codes}
    schema: Json = {"oneOf": [{"$ref": name} for name in names.values()]}
    if len(names) == 1:
        (schema,) = schema["oneOf"]
    else:
        schema["discriminator"] = {"propertyName": "code", "mapping": names}
    return {
        "description": "\n".join(f"- `{row.code.value.code}`, {row.stage.value}: {row.condition}" for row in rows),
        "headers": found,
        "content": {"application/problem+json": {"schema": schema}},
    }


def schema_name(code: Code) -> str:
    """The name of a code's schema."""
    return "Problem" + "".join(word.capitalize() for word in code.value.code.split("_"))


def header_references(close: str) -> Json:
    """The headers of every answer of the worker listener, and what it says of the connection."""
    names = {
        "cache-control": "NoStore", "content-length": "Length", "x-content-type-options": "NoSniff",
        "x-request-id": "RequestId", "connection": close,
    }  # fmt: skip
    return {name: {"$ref": f"#/components/headers/{reference}"} for name, reference in names.items()}


def headers() -> Json:
    """Every header of an answer."""
    last = {"type": "string", "const": "close"}
    whole = {"type": "integer", "minimum": 1}
    return {
        "NoStore": header({"type": "string", "const": "no-store"}, "Nothing on the way may keep it."),
        "NoSniff": header({"type": "string", "const": "nosniff"}, "It is what its content type says."),
        "Length": header({"type": "integer", "minimum": 0}, "No answer comes in chunks."),
        "RequestId": header({"type": "string", "pattern": REQUEST_ID}, "The request's own, or a fresh UUIDv4."),
        "Close": header(last, "There when the connection ends with this answer.", required=False),
        "Closing": header(last, "The connection ends with this answer."),
        "RetryAfter": header(whole, "Seconds until the budget's window ends."),
        "MayRetryAfter": header(
            whole, f"Seconds; with `{Code.ADMISSION_CAPACITY_EXHAUSTED.value.code}`.", required=False
        ),
        "Allow": header({"type": "string", "const": "POST"}, "The one method."),
    }


def header(schema: Json, text: str, *, required: bool = True) -> Json:
    """A header of an answer."""
    return {"required": required, "description": text, "schema": schema}


def security_schemes() -> Json:
    """Certificate and credential: both, always."""
    return {
        "clientCertificate": {
            "type": "mutualTLS",
            "description": "A client certificate that one of the listener's client CAs has issued.",
        },
        "workerCredential": {
            "type": "http",
            "scheme": "Worker",
            "description": "`authorization: Worker ql3w_<credentialId>_<secret>`, one space; the id is "
            "`[A-Za-z0-9][A-Za-z0-9._:-]{0,63}`, the secret 43 characters of base64url.",
        },
    }


def schemas() -> Json:
    """Requests, deliveries and problems."""
    return {
        "SecretRef": secret_ref(),
        **{f"Request{schema.name}": request(schema) for schema in Schema},
        **{f"Delivery{schema.name}": delivery(schema) for schema in Schema},
        "Value": item(limits.VALUE_BYTES, "One secret"),
        "Bundle": item(limits.BUNDLE_BYTES, "The bundle"),
        "Problem": problem(),
        **{schema_name(code): problem_of(code) for code in Code},
    }


def secret_ref() -> Json:
    """A ref, as far as a pattern can tell."""
    return {
        "type": "string",
        "maxLength": limits.REF_BYTES,
        "pattern": REF,
        "description": "Canonical: writing out what was read gives the same text. `projectId` and `name` have 1 to "
        f"{limits.REF_PART_BYTES} bytes, `version` is 1 to {limits.VERSION_MAX}.",
        "examples": [refs.SecretRef.of("project-1", "api-token").text],
    }


def text(most: int) -> Json:
    """Text of 1 to `most` characters without a control character."""
    return {"type": "string", "minLength": 1, "maxLength": most, "pattern": TEXT}


def integer(low: int) -> Json:
    """A whole number from `low` on."""
    return {"type": "integer", "minimum": low, "maximum": limits.VERSION_MAX}


def ref_list(low: int, most: int) -> Json:
    """Refs, none twice."""
    return {
        "type": "array", "items": {"$ref": "#/components/schemas/SecretRef"},
        "minItems": low, "maxItems": most, "uniqueItems": True,
    }  # fmt: skip


def closed(properties: Mapping[str, Json]) -> Json:
    """An object with exactly these keys."""
    return {
        "type": "object", "additionalProperties": False, "required": list(properties), "properties": dict(properties),
    }  # fmt: skip


def request(schema: Schema) -> Json:
    """The body of a request in this schema."""
    lease_token = {"type": "string", "pattern": LEASE_TOKEN, "writeOnly": True}
    keys: dict[str, Json] = {
        "schema": {"type": "string", "const": schema.value},
        "runId": text(limits.ATTEMPT_ID_CHARACTERS),
        "attemptId": text(limits.ATTEMPT_ID_CHARACTERS),
        "offerId": text(limits.NAME_CHARACTERS),
        "projectId": text(limits.NAME_CHARACTERS),
        "taskId": text(limits.NAME_CHARACTERS),
        "taskRevision": text(limits.NAME_CHARACTERS) | {"description": f"At most {limits.NAME_CHARACTERS} bytes."},
        "executionDigest": {"type": "string", "pattern": DIGEST},
        "workerGeneration": integer(1),
        "leaseGeneration": integer(1),
        "expectedLeaseVersion": integer(0),
        "leaseToken": lease_token,
        "secretRefs": ref_list(0 if schema is Schema.V2 else 1, limits.SECRET_REFS),
    }
    if schema is Schema.V1:
        return closed(keys)
    form = closed(keys | {"environmentBundleRefs": ref_list(0, limits.BUNDLE_REFS)})
    some = [{"properties": {key: {"minItems": 1}}} for key in ("secretRefs", "environmentBundleRefs")]
    return form | {"anyOf": some}


def delivery(schema: Schema) -> Json:
    """The body of a delivery in this schema."""
    values = {"type": "array", "items": {"$ref": "#/components/schemas/Value"}, "maxItems": limits.SECRET_REFS}
    bundles = {"type": "array", "items": {"$ref": "#/components/schemas/Bundle"}, "maxItems": limits.BUNDLE_REFS}
    properties: dict[str, Json] = {
        "schema": {"type": "string", "const": schema.value},
        "runId": text(limits.ATTEMPT_ID_CHARACTERS),
        "attemptId": text(limits.ATTEMPT_ID_CHARACTERS),
        "offerId": text(limits.NAME_CHARACTERS),
        "executionDigest": {"type": "string", "pattern": DIGEST},
        "values": values | {"minItems": 0 if schema is Schema.V2 else 1},
    }
    most = limits.RESPONSE_BYTES_V1 if schema is Schema.V1 else limits.RESPONSE_BYTES_V2
    if schema is Schema.V2:
        properties["environmentBundles"] = bundles
    return closed(properties) | {"description": f"At most {most} bytes, without white space, keys in this order."}


def item(most: int, what: str) -> Json:
    """A ref and its value."""
    value = {
        "type": "string", "minLength": 1, "maxLength": most, "readOnly": True,
        "description": f"{what}, at most {most} bytes before escaping, as the file holds it.",
    }  # fmt: skip
    return closed({"secretRef": {"$ref": "#/components/schemas/SecretRef"}, "value": value})


def problem() -> Json:
    """The shape of every refusal (RFC 9457); the schema of each code fixes its texts."""
    word: Json = {"type": "string"}
    return closed(
        {
            "type": word,
            "title": word,
            "status": {"type": "integer"},
            "detail": word,
            "instance": word | {"pattern": INSTANCE},
            "code": word | {"enum": [code.value.code for code in Code]},
            "timestamp": word | {"pattern": TIMESTAMP},
            "trace_id": word | {"pattern": TRACE_ID},
        }
    )


def problem_of(code: Code) -> Json:
    """The one document of a code."""
    fixed = {
        "type": f"urn:secret-sidecar:problem:{code.value.code}",
        "title": code.value.title,
        "status": code.value.status,
        "detail": code.value.detail,
        "code": code.value.code,
    }
    return {
        "allOf": [
            {"$ref": "#/components/schemas/Problem"},
            {"properties": {key: {"const": value} for key, value in fixed.items()}},
        ]
    }


def outcomes() -> list[Json]:
    """Every refusal in the order in which it is looked for."""
    return [
        {
            "order": reason.value.order,
            "stage": reason.value.stage.value,
            "condition": reason.value.condition,
            "status": reason.value.code.value.status,
            "code": reason.value.code.value.code,
            "closes": reason.value.closes,
        }
        for reason in Reason
    ]


def worker_limits() -> Json:
    """Every fixed number of `provider/limits.py`, by its name there."""
    return {name: value for name, value in vars(limits).items() if name.isupper()}


def health_paths() -> Json:
    """Liveness, by two names, and readiness."""
    listener = [server("http", "QL3_SECRET_SIDECAR_HEALTH_PORT", "The health listener: plain HTTP.")]
    alive = plain("The process is alive; nothing else is looked at.", closed({"status": {"const": "alive"}}))
    paths: Json = {
        f"/{name}": {
            "servers": listener,
            "get": {"operationId": name, "summary": "Liveness", "security": [], "responses": {"200": alive}},
        }
        for name in ("healthz", "livez")
    }
    answered = {"200": plain("Every check is `ok` or `off`.", readiness("ready", ["ok", "off"]))}
    answered["503"] = plain("A check has failed.", readiness("not_ready", ["ok", "failed", "off"]))
    ready: Json = {"operationId": "readyz", "summary": "Readiness", "security": [], "responses": answered}
    return paths | {"/readyz": {"servers": listener, "get": ready}}


def readiness(status: str, states: list[str]) -> Json:
    """The document of readiness."""
    checks = closed({check: {"type": "string", "enum": states} for check in CHECKS})
    return closed({"status": {"const": status}, "checks": checks})


def plain(text: str, schema: Json) -> Json:
    """An answer of the health listener."""
    found = {name: {"$ref": f"#/components/headers/{at}"} for name, at in _PLAIN.items()}
    return {"description": text, "headers": found, "content": {"application/json; charset=utf-8": {"schema": schema}}}


_PLAIN: Final = {"cache-control": "NoStore", "content-length": "Length", "x-content-type-options": "NoSniff"}


def metrics_path() -> Json:
    """Metrics, in the format that is asked for."""
    families = {"type": "string", "pattern": "^# HELP secret_sidecar_"}
    return {
        "servers": [server("http", "QL3_SECRET_SIDECAR_METRICS_PORT", "The metrics listener: plain HTTP.")],
        "get": {
            "operationId": "metrics",
            "summary": "Metrics",
            "description": "Every family begins with `secret_sidecar_`; docs/operations.md names them.",
            "security": [],
            "responses": {
                "200": {
                    "description": "All families; OpenMetrics where `accept` asks for it.",
                    "headers": {name: {"$ref": f"#/components/headers/{at}"} for name, at in _PLAIN.items()},
                    "content": {
                        CONTENT_TYPE_PLAIN_0_0_4: {"schema": families},
                        CONTENT_TYPE_LATEST: {"schema": families},
                    },
                }
            },
        },
    }


class _Writer(yaml.SafeDumper):  # type: ignore[misc]  # it bears no types
    """Writes what stands in two places in both."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(writer: yaml.SafeDumper, data: str) -> yaml.Node:
    return writer.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_Writer.add_representer(str, _text)


def written() -> str:
    """The document as YAML."""
    body = yaml.dump(document(), Dumper=_Writer, sort_keys=False, allow_unicode=True, width=116)
    return f"# Written by `make docs` from the code; tests/test_openapi.py holds it to the listener.\n{body}"
