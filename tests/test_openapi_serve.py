"""A running sidecar answers as docs/openapi.yaml says: schemathesis draws requests from the document, over mutual TLS.

Where schemathesis draws a whole body, no ref in it is one of the world's, so the good offer is also drawn from in part.
"""

import copy
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from provider.command import Schema
from provider.outcomes import DELIVERED
from provider.refs import SecretRef
from tests.kit.stand import Stand, make_stand
from tests.kit.world import PROJECT_ID, plan
from tests.test_openapi import DOCUMENT, Validator, answered, headers_fit
from tests.tools import openapi

schemathesis: Any = pytest.importorskip("schemathesis", reason="schemathesis cannot be imported on this interpreter")
checks: Any = pytest.importorskip("schemathesis.specs.openapi.checks", reason="schemathesis is of another version")

FailureGroup: Final = schemathesis.core.failures.FailureGroup
CHECKS: Final = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.missing_required_header,
]
BUNDLE: Final = SecretRef.of(PROJECT_ID, "bundle", 1)
# Certificates and credentials of every kind meet the same listener here: its budget of failures is not what is tested.
PATIENT: Final = {
    "QL3_WORKER_INGRESS_AUTH_RATE_PER_PEER": "1000000",
    "QL3_WORKER_INGRESS_AUTH_RATE_GLOBAL": "1000000",
}
POSITIVE, NEGATIVE = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
PHASES: Final = (Phase.explicit, Phase.reuse, Phase.generate)
"""A failure is shown as it was found: to make it small costs minutes."""
EXAMPLES: Final = 20
LONG: Final = 100


@dataclass
class Api:
    """A running sidecar, and its operations as the document has them."""

    stand: Stand
    schema: Any
    session: Any
    seen: Counter[str] = field(default_factory=Counter)
    """Answers by their code."""

    @property
    def deliver(self) -> Any:
        """The operation of the worker listener."""
        return self.schema[openapi.ROUTE]["POST"]

    @property
    def own_path(self) -> dict[str, str]:
        """The path parameters of the world's worker."""
        return {"workerId": self.stand.world.worker_id, "sessionId": self.stand.world.session_id}

    @property
    def authorization(self) -> str:
        """The world's good credential."""
        return f"Worker {self.stand.world.token}"

    def call(self, case: Any, authorization: str | None = None) -> Any:
        """Send a case as the world's worker and hold the answer to the document; return it."""
        port = self.stand.port
        answer = case.call(
            base_url=f"https://127.0.0.1:{port}",
            session=self.session,
            headers={"authorization": authorization or self.authorization},
            timeout=60,
            # Beside the session: schemathesis passes its own.
            verify=self.session.verify,
            cert=self.session.cert,
        )
        self.held(answer)
        case.validate_response(answer, checks=CHECKS)
        return answer

    def held(self, answer: Any) -> None:
        """Hold an answer to the document, beyond what schemathesis looks at: no other header, no other key."""
        names = {name.lower(): values[0] for name, values in answer.headers.items()}
        assert headers_fit(answer.status_code, names)
        (content,) = answered(answer.status_code)["content"].values()
        assert Validator(DOCUMENT | content["schema"]).is_valid(answer.json())
        self.seen[answer.json().get("code", DELIVERED)] += 1

    def get(self, path: str, port: int, **headers: str) -> Any:
        """Ask one of the plain listeners and hold the answer to the document."""
        case = self.schema[path]["GET"].Case()
        answer = case.call(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60)
        case.validate_response(answer, checks=CHECKS)
        return answer

    def explore(self, strategy: Any, examples: int) -> None:
        """Send so many cases of a strategy of cases, each with the credential beside it; None is the good one."""

        @settings(max_examples=examples, phases=PHASES, suppress_health_check=[*HealthCheck])
        @given(strategy)
        def all_of_them(drawn: tuple[Any, str | None]) -> None:
            case, authorization = drawn
            answer = self.call(case, authorization)
            assert authorization is None or answer.status_code == 401

        all_of_them()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """One sidecar whose plan has two secrets and a bundle."""
    import requests

    directory = tmp_path_factory.mktemp("openapi")
    with make_stand(directory / "stand", bundle=BUNDLE) as stand, requests.Session() as session:
        stand.start(**PATIENT)
        stand.pki.client_context(stand.pki.client, directory)
        session.cert = str(directory / f"{stand.pki.client.serial:x}.pem")
        ca = directory / "root.pem"
        ca.write_bytes(stand.pki.root.pem)
        session.verify = str(ca)
        session.trust_env = False
        yield Api(stand, schemathesis.openapi.from_dict(DOCUMENT), session)
        assert stand.stderr() == ""
        assert stand.metric("in_flight") == stand.metric("buffers_outstanding") == 0


def good(api: Api, **changes: object) -> Any:
    """The world's own request as a case, with these keys of its body changed."""
    return api.deliver.Case(
        path_parameters=api.own_path, body=api.stand.world.body(**changes), media_type="application/json"
    )


def spoilt(api: Api) -> Any:
    """Cases of the world's own request with some keys, and some headers, as schemathesis draws them."""

    def mix(case: Any, keys: set[str]) -> Any:
        drawn = case.body if isinstance(case.body, dict) else {}
        case.body = api.stand.world.body() | {key: drawn[key] for key in keys if key in drawn}
        return case

    drawn = api.deliver.as_strategy(generation_mode=POSITIVE, path_parameters=api.own_path)
    return st.builds(mix, drawn, st.sets(st.sampled_from(list(api.stand.world.body())), max_size=2))


CREDENTIALS: Final = st.one_of(
    st.from_regex("Worker ql3w_[a-z]{1,4}_[A-Za-z0-9_-]{42}[AEIMQUYcgkosw048]", fullmatch=True),
    st.from_regex("[!-~]([ -~]{0,40}[!-~])?", fullmatch=True),
)
"""Well-formed and other credentials, all of them unknown."""


def ways(api: Api) -> dict[str, Any]:
    """Every way in which cases are drawn, by its name, each with the credential to show."""
    draw, here = api.deliver.as_strategy, {"path_parameters": api.own_path}
    cases = {
        "good": draw(generation_mode=POSITIVE, **here),
        "bad": draw(generation_mode=NEGATIVE, **here),
        "good, elsewhere": draw(generation_mode=POSITIVE),
        "bad, elsewhere": draw(generation_mode=NEGATIVE),
        "own, spoilt": spoilt(api),
    }
    known = {name: st.tuples(strategy, st.none()) for name, strategy in cases.items()}
    return known | {"unknown credentials": st.tuples(spoilt(api), CREDENTIALS)}


WAYS: Final = ("good", "bad", "good, elsewhere", "bad, elsewhere", "own, spoilt", "unknown credentials")


def test_deliveries_are_as_described(api: Api) -> None:
    """A real delivery in either schema has the status, headers and document that the file describes."""
    world = api.stand.world
    answer = api.call(good(api))
    assert [one["secretRef"] for one in answer.json()["environmentBundles"]] == [BUNDLE.text]
    world.change("task_execution_revisions", plan_json=json.dumps(plan(world.refs)))
    try:
        case = good(api, schema=Schema.V1.value)
        del case.body["environmentBundleRefs"]
        assert "environmentBundles" not in api.call(case).json()
    finally:
        world.change("task_execution_revisions", plan_json=json.dumps(plan(world.refs, BUNDLE)))
    assert api.seen[DELIVERED] >= 2


def test_refusals_that_a_schema_cannot_cause_are_as_described(api: Api) -> None:
    """A fence that does not hold and a body that is no JSON are answered as the file describes."""
    assert api.call(good(api, leaseGeneration=77)).json()["code"] == "worker_secret_delivery_fenced"
    case = good(api)
    case.body = b"{"
    assert api.call(case).json()["code"] == "invalid_json"


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY"])
def test_other_methods_are_as_described(api: Api, method: str) -> None:
    """Every other method on the route has the one answer that the file describes for it."""
    answer = api.stand.ask(method=method, body=b"")
    assert answer.status == 405
    assert headers_fit(405, dict(answer.headers))
    if method != "HEAD":
        (content,) = answered(405)["content"].values()
        assert Validator(DOCUMENT | content["schema"]).is_valid(answer.json())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", WAYS)
def test_what_is_drawn_from_the_document_is_answered_as_it_says(api: Api, way: str) -> None:
    """Requests drawn from the schemas, valid and invalid, get a status, headers and document of the file, no other."""
    api.explore(ways(api)[way], EXAMPLES)


def test_health_and_metrics_are_as_described(api: Api) -> None:
    """The plain listeners answer as the file describes, also where a gate has failed."""
    for path in ("/healthz", "/livez", "/readyz"):
        assert api.get(path, api.stand.health_port).status_code == 200
    for accept in ("*/*", "application/openmetrics-text; version=1.0.0"):
        assert api.get("/metrics", api.stand.metrics_port, accept=accept).status_code == 200
    root = api.stand.root
    aside = root.with_name("aside")
    root.rename(aside)
    try:
        assert api.get("/readyz", api.stand.health_port).status_code == 503
        assert api.call(good(api)).json()["code"] == "worker_ingress_unavailable"
    finally:
        aside.rename(root)
    assert api.get("/readyz", api.stand.health_port).status_code == 200


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_what_is_drawn_from_the_document_for_long(api: Api) -> None:
    """The same with many more requests, which between them meet every code that a request alone can cause."""
    for way in ways(api).values():
        api.explore(way, LONG)
    wanted = {
        DELIVERED, "invalid_json", "invalid_worker_request", "worker_authentication_required",
        "unsupported_content_encoding", "worker_route_not_found", "worker_secret_delivery_fenced",
    }  # fmt: skip
    assert wanted <= api.seen.keys()


@pytest.mark.parametrize("lie", ["no such status", "another text", "another header", "another pattern"])
def test_a_document_that_lies_is_found_out(api: Api, lie: str) -> None:
    """The checks can fail: a document that differs from the listener in one word is refused."""
    told = copy.deepcopy(DOCUMENT)
    if lie == "no such status":
        del told["paths"][openapi.ROUTE]["post"]["responses"]["409"]
    elif lie == "another text":
        fixed = told["components"]["schemas"]["ProblemWorkerSecretDeliveryFenced"]["allOf"][1]
        fixed["properties"]["title"]["const"] += "."
    elif lie == "another header":
        told["components"]["headers"]["NoStore"]["schema"]["const"] = "no-cache"
    else:
        told["components"]["schemas"]["Problem"]["properties"]["trace_id"]["pattern"] = "^[0-9]{3}$"
    misled = Api(api.stand, schemathesis.openapi.from_dict(told), api.session)
    with pytest.raises(FailureGroup):
        misled.call(good(misled, leaseGeneration=77))


def test_the_ways_are_all_used(api: Api) -> None:
    """The names that tests go by are those of the table of strategies."""
    assert tuple(ways(api)) == WAYS
