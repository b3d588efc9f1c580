"""provider/outcomes: the closed table says what the contract says, and an exception says nothing else."""

import re

import pytest

from provider.outcomes import DELIVERED, PROVIDER_CODE, Close, Code, Reason, Refused, Stage
from tests.kit.exceptions import said

# Contract 4, read from top to bottom: one line for each condition, as (stage, code).
IN_ORDER = [
    ("parse", "malformed_request"),
    ("parse", "expectation_failed"),
    ("connection", "tls_context_reloaded"),
    ("route", "invalid_url"),
    ("route", "not_found"),
    ("admission", "not_ready"),
    ("shield", "authentication_rate_limited"),
    ("route", "method_not_allowed"),
    ("admission", "admission_capacity_exhausted"),
    ("route", "worker_route_not_found"),
    ("authentication", "worker_authentication_unavailable"),
    ("authentication", "worker_authentication_required"),
    ("audit", "worker_audit_unavailable"),
    ("admission", "admission_capacity_exhausted"),
    ("headers", "unsupported_content_encoding"),
    ("headers", "length_required"),
    ("headers", "request_too_large"),
    ("headers", "unsupported_content_type"),
    ("body", "body_timeout"),
    ("body", "invalid_json"),
    ("delivery", "worker_secret_delivery_unavailable"),
    ("command", "invalid_worker_request"),
    ("authority", "worker_secret_delivery_fenced"),  # authority_mismatch
    ("authority", "worker_secret_delivery_fenced"),  # secret_scope_mismatch
    ("authority", "worker_ingress_unavailable"),
    ("provider", "worker_ingress_unavailable"),  # invalid_configuration
    ("provider", "worker_ingress_unavailable"),  # root_unavailable
    ("provider", "worker_ingress_unavailable"),  # material_unavailable
    ("provider", "worker_ingress_unavailable"),  # a budget
    ("deadline", "request_timeout"),
    ("internal", "internal_error"),
]

STATUSES = {
    "malformed_request": 400,
    "expectation_failed": 417,
    "tls_context_reloaded": 503,
    "invalid_url": 400,
    "not_found": 404,
    "not_ready": 503,
    "authentication_rate_limited": 429,
    "method_not_allowed": 405,
    "admission_capacity_exhausted": 503,
    "worker_route_not_found": 404,
    "worker_authentication_unavailable": 503,
    "worker_authentication_required": 401,
    "worker_audit_unavailable": 503,
    "unsupported_content_encoding": 415,
    "length_required": 411,
    "request_too_large": 413,
    "unsupported_content_type": 415,
    "body_timeout": 408,
    "invalid_json": 400,
    "worker_secret_delivery_unavailable": 503,
    "invalid_worker_request": 400,
    "worker_secret_delivery_fenced": 409,
    "worker_ingress_unavailable": 503,
    "request_timeout": 504,
    "internal_error": 500,
}

DROPPED = {
    "invalid_content_length",
    "admission_draining",
    "response_too_large",
    "invalid_response",
    "authentication_shield_unavailable",
}


def test_rows_stand_in_the_contracts_order() -> None:
    """Stage and code of every row, from the first to the last, are those of contract 4."""
    assert [(reason.value.stage.value, reason.value.code.value.code) for reason in Reason] == IN_ORDER


def test_orders_count_from_one() -> None:
    """`order` is the row's place in the table, so no two reasons are one."""
    assert [reason.value.order for reason in Reason] == list(range(1, len(IN_ORDER) + 1))
    assert len(Reason.__members__) == len(Reason)


def test_codes_and_statuses_are_the_contracts() -> None:
    """The set of (code, status) is exactly that of contract 4."""
    assert {code.value.code: code.value.status for code in Code} == STATUSES


def test_a_code_has_one_status() -> None:
    """No code stands in the table twice, under whatever name."""
    assert len({code.value.code for code in Code}) == len(Code) == len(Code.__members__)
    assert all(code.value.code == code.name.lower() for code in Code)


def test_every_code_is_used() -> None:
    """Each code is the answer to some reason."""
    assert {reason.value.code for reason in Reason} == set(Code)


def test_dropped_codes_are_gone() -> None:
    """Codes that contract 4 dropped are in no row."""
    assert not DROPPED & {code.value.code for code in Code}


def test_answers_before_the_body_close() -> None:
    """Every answer decided before the body stage closes the connection, and so does 408 (contract 4)."""
    before_the_body = {reason for reason in Reason if reason.value.order <= Reason.CONTENT_TYPE.value.order}
    closing = {reason for reason in Reason if reason.value.closes}
    assert closing == before_the_body | {Reason.BODY_TIMEOUT, Reason.DEADLINE, Reason.INTERNAL}


def test_texts_are_fixed_and_fit_a_header_and_a_log_line() -> None:
    """Titles, details and conditions are non-empty printable ASCII, one line, without a placeholder."""
    texts = [text for code in Code for text in (code.value.title, code.value.detail)]
    for text in texts + [reason.value.condition for reason in Reason]:
        assert re.fullmatch(r"[ -~]+", text)
        assert not re.search(r"[{}%<>]", text)


def test_one_detail_for_each_code() -> None:
    """Two codes never share a title or a detail."""
    assert len({code.value.detail for code in Code}) == len({code.value.title for code in Code}) == len(Code)


def test_provider_reasons_are_the_contracts_three() -> None:
    """The reasons of the one provider error are those of contract 7, each once, at stage provider."""
    named = {reason.value.provider_reason: reason for reason in Reason if reason.value.provider_reason}
    assert named == {
        "invalid_configuration": Reason.INVALID_CONFIGURATION,
        "root_unavailable": Reason.ROOT_UNAVAILABLE,
        "material_unavailable": Reason.MATERIAL_UNAVAILABLE,
    }
    assert {reason.value.stage for reason in named.values()} == {Stage.PROVIDER}
    assert PROVIDER_CODE == "QL3_CLUSTER_MOUNTED_SECRET_UNAVAILABLE"


def test_label_sets_are_closed_and_plain() -> None:
    """Stages, close causes and the code of a 200 are words that fit a metric's label."""
    labels = [member.value for member in (*Stage, *Close)] + [DELIVERED]
    assert all(re.fullmatch("[a-z_]+", label) for label in labels)
    assert len(set(labels)) == len(labels)
    assert DELIVERED not in STATUSES


def test_the_table_cannot_be_changed() -> None:
    """Rows and problems are frozen: nothing at run time changes a status or a text."""
    with pytest.raises(AttributeError):
        Reason.JSON.value.closes = True  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Code.INVALID_JSON.value.status = 200  # type: ignore[misc]


@pytest.mark.parametrize("other", ["CANARY", None, 1, Code.INVALID_JSON, Refused, ValueError("CANARY")])
def test_refused_takes_a_reason_only(other: object) -> None:
    """No text, code or exception can be put into `Refused`; the error that says so holds none of it either."""
    with pytest.raises(TypeError) as caught:
        Refused(other)  # type: ignore[arg-type]
    assert "CANARY" not in said(caught.value)


def test_refused_takes_one_argument() -> None:
    """There is no second argument that could carry something."""
    with pytest.raises(TypeError):
        Refused(Reason.JSON, "more")  # type: ignore[call-arg]


@pytest.mark.parametrize("reason", Reason)
def test_refused_says_the_reasons_name(reason: Reason) -> None:
    """All that a `Refused` says of itself is the name of its reason."""
    refused = Refused(reason)
    assert refused.reason is reason
    assert str(refused) == reason.name
    assert refused.args == ()
    assert repr(refused) == "Refused()"
