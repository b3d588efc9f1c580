"""Empty, foreign and unknown variables, service links, and all faults at once (contract 8)."""

from typing import Final

import pytest

from sidecar.config import load
from sidecar.variables import OWN_PREFIXES, VARIABLES
from tests.kit.environments import (
    INGRESS,
    LOGIN,
    POOL,
    POSTGRES,
    SIDECAR,
    SQLITE,
    URL,
    changed,
    faulted,
    faults,
    outcome,
)

STRICT: Final = ("_FILE", "_MODE", "_BINDING", "_PROVIDER", "_AUTHORITY")


@pytest.mark.parametrize("name", sorted(one.name for one in VARIABLES if one.name.endswith(STRICT)))
def test_an_empty_file_mode_or_choice_is_a_fault(name: str) -> None:
    """An empty `_FILE`, `_MODE`, `_BINDING`, `_PROVIDER` or `_AUTHORITY` variable is a fault, chosen or not."""
    for base in (SQLITE, POSTGRES):
        assert faults(changed(base, {name: ""}))[name] == "is empty"


@pytest.mark.parametrize("name", sorted(one.name for one in VARIABLES if not one.name.endswith((*STRICT, "_PROFILE"))))
def test_any_other_empty_variable_is_unset(name: str) -> None:
    """Every other empty variable is as if it were not there."""
    for base in (SQLITE, POSTGRES):
        with_empty, without = (outcome(changed(base, {name: value})) for value in ("", None))
        assert with_empty == without


@pytest.mark.parametrize("name", sorted(one.name for one in VARIABLES if one.only.name == "POSTGRES"))
def test_a_variable_of_the_store_not_chosen_is_a_fault(name: str) -> None:
    """With the embedded store each variable of PostgreSQL is a fault, whatever it holds."""
    for text in ("x", "5432", "/file"):
        assert faulted(SQLITE, **{name: text}) == [name]


def test_a_variable_of_another_choice_is_a_fault() -> None:
    """The store file with PostgreSQL and the root with a disabled provider are faults."""
    assert faulted(POSTGRES, QL3_WORKER_SECRET_AUTHORITY_FILE="/f") == ["QL3_WORKER_SECRET_AUTHORITY_FILE"]
    assert faulted(SQLITE, QL3_WORKER_SECRET_PROVIDER="disabled") == ["QL3_WORKER_SECRET_ROOT_DIRECTORY"]
    assert faulted(SQLITE, QL3_WORKER_SECRET_PROVIDER=None) == ["QL3_WORKER_SECRET_ROOT_DIRECTORY"]


@pytest.mark.parametrize("prefix", OWN_PREFIXES)
@pytest.mark.parametrize("rest", ["", "X", "max_in_flight", "MAX_INFLIGHT", "PORT_", "SERVICE_HOSTS", "PORT_80_SCTP"])
def test_an_unknown_variable_under_our_prefixes_is_a_fault(prefix: str, rest: str) -> None:
    """A name of our own that nobody reads is a fault, whatever it holds, empty included."""
    for value in ("", "1", "tcp://10.0.0.1:80"):
        assert list(faults({**SQLITE, prefix + rest: value})) == [prefix + rest]


@pytest.mark.parametrize("name", ["QL3_WORKER_SECRET_VAULT_ADDRESS", "QL3_WORKER_SECRET_VAULT_TOKEN_FILE"])
def test_the_other_provider_is_not_offered(name: str) -> None:
    """Variables of QL3's other provider are faults that say so."""
    assert faults({**SQLITE, name: "x"}) == {name: "belongs to a provider that is not offered"}


def test_other_names_are_not_looked_at() -> None:
    """Variables under other prefixes are no business of ours."""
    others = ("PATH", "QL3_WORKER_ARTIFACT_S3_BUCKET", "QL3_SECRET_SIDECARX", "ql3_secret_sidecar_x", f"{LOGIN}X")
    assert load({**SQLITE, **dict.fromkeys(others, "x")}) == load(SQLITE)


@pytest.mark.parametrize(
    "name",
    [
        "QL3_WORKER_INGRESS_SERVICE_HOST",
        "QL3_WORKER_INGRESS_SERVICE_PORT",
        "QL3_WORKER_INGRESS_SERVICE_PORT_WORKERS",
        "QL3_WORKER_INGRESS_PORT_5801_TCP",
        "QL3_WORKER_INGRESS_PORT_5801_TCP_ADDR",
        "QL3_WORKER_SECRET_STORE_PORT_53_UDP_PROTO",
        "QL3_SECRET_SIDECAR_PORT",
        "QL3_WORKER_SECRET_VAULT_SERVICE_HOST",
    ],
)
def test_service_links_are_left_alone(name: str) -> None:
    """What Kubernetes injects for a Service whose name begins like ours is not ours."""
    for value in ("tcp://10.0.0.1:5801", "udp://10.0.0.1:53"):
        assert load({**SQLITE, name: value}) == load(SQLITE)


@pytest.mark.parametrize("name", [f"{INGRESS}PORT", f"{SIDECAR}HEALTH_PORT", f"{SIDECAR}METRICS_PORT", f"{LOGIN}PORT"])
def test_a_service_link_of_our_own_name_is_unset(name: str) -> None:
    """A Service named like a variable of ours makes a link of that very name; it counts as unset, with either store."""
    for base in (SQLITE, POSTGRES):
        for value in ("tcp://10.0.0.1:5801", "udp://10.0.0.1:5801"):
            assert load(changed(base, {name: value})) == load(changed(base, {name: None}))
    assert faulted(POSTGRES, **{name: "http://10.0.0.1:5801"}) == [name]


def test_all_faults_are_told_at_once_in_the_order_of_the_table() -> None:
    """Faults of every kind stand in one list, sorted as the docs are, unknown variables last; each mends on its own."""
    wrong = {
        "QL3_WORKER_SECRET_TYPO": "x",
        f"{SIDECAR}RECEIPTS": "yes",
        f"{SIDECAR}METRICS_PORT": "8080",
        f"{POOL}TLS_MODE": "prefer",
        f"{LOGIN}URL": "postgresql://x",
        "QL3_WORKER_SECRET_ROOT_DIRECTORY": "x",
        "QL3_WORKER_CREDENTIAL_PEPPER": "x",
        f"{INGRESS}TLS_CLIENT_CRL_FILE": "",
        f"{INGRESS}TLS_PRIVATE_KEY_FILE": None,
        f"{INGRESS}MAX_IN_FLIGHT": "0",
    }
    found = list(faults(changed(URL, wrong)))
    assert set(found) == set(wrong)
    assert found[-1] == "QL3_WORKER_SECRET_TYPO"
    order = [variable.name for variable in VARIABLES]
    assert found[:-1] == sorted(found[:-1], key=order.index)


def test_values_are_judged_while_the_choice_is_faulty() -> None:
    """Where store or provider is misspelt, what hangs on them is still judged for its shape."""
    wrong = {"QL3_WORKER_SECRET_AUTHORITY": "mysql", "QL3_WORKER_SECRET_PROVIDER": "vault", f"{LOGIN}PORT": "0"}
    wrong |= {"QL3_WORKER_SECRET_ROOT_DIRECTORY": "relative", "QL3_WORKER_SECRET_AUTHORITY_FILE": "a\0b"}
    assert set(faults(changed(SQLITE, wrong))) == set(wrong)
