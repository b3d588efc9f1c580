"""Every variable of the contract is in the table, with its default, its bounds and its rule (contract 8)."""

import dataclasses
import os
from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provider.rootfs import is_root_path
from sidecar import config
from sidecar.config import Config, load
from sidecar.variable_rules import ROOT
from sidecar.variables import BY_NAME, VARIABLES, Group
from tests.kit.environments import (
    GATE,
    INGRESS,
    LOGIN,
    POOL,
    POSTGRES,
    SIDECAR,
    SQLITE,
    changed,
    faulted,
)


def pool(found: Config) -> config.Postgres:
    """The PostgreSQL store of a configuration that has one."""
    assert found.postgres is not None
    return found.postgres


# The contract's numbers, written out once more: name, default, bounds, and where the value arrives.
NUMBERS: Final[list[tuple[str, int, int, int, Callable[[Config], int]]]] = [
    (f"{INGRESS}PORT", 5801, 0, 65535, lambda c: c.listen.port),
    (f"{INGRESS}MAX_BODY_BYTES", 65536, 1024, 65536, lambda c: c.limits.max_body_bytes),
    (f"{INGRESS}MAX_RESPONSE_BYTES", 262144, 1024, 262144, lambda c: c.limits.max_response_bytes),
    (f"{INGRESS}MAX_IN_FLIGHT", 64, 1, 256, lambda c: c.limits.max_in_flight),
    (f"{INGRESS}AUTH_RATE_WINDOW_MS", 60000, 1000, 3600000, lambda c: c.shield.window_ms),
    (f"{INGRESS}AUTH_RATE_PER_PEER", 120, 1, 1000000, lambda c: c.shield.per_peer),
    (f"{INGRESS}AUTH_RATE_GLOBAL", 1200, 1, 1000000, lambda c: c.shield.global_),
    (f"{INGRESS}AUTH_RATE_MAX_PEERS", 4096, 1, 65536, lambda c: c.shield.max_peers),
    (f"{INGRESS}REQUEST_TIMEOUT_MS", 15000, 100, 120000, lambda c: c.limits.request_timeout_ms),
    (f"{INGRESS}DRAIN_TIMEOUT_MS", 10000, 100, 120000, lambda c: c.limits.drain_timeout_ms),
    (f"{SIDECAR}HEALTH_PORT", 8080, 0, 65535, lambda c: c.health.port),
    (f"{SIDECAR}METRICS_PORT", 9090, 0, 65535, lambda c: c.metrics.port),
    (f"{SIDECAR}SHUTDOWN_DELAY_MS", 5000, 0, 60000, lambda c: c.limits.shutdown_delay_ms),
    (f"{SIDECAR}MAX_IN_FLIGHT_PER_CREDENTIAL", 8, 1, 256, lambda c: c.limits.max_in_flight_per_credential),
    (f"{SIDECAR}MAX_CONNECTIONS", 1024, 16, 65536, lambda c: c.limits.max_connections),
    (f"{SIDECAR}MAX_CONNECTIONS_PER_ADDRESS", 64, 1, 65536, lambda c: c.limits.max_connections_per_address),
    (f"{LOGIN}PORT", 5432, 1, 65535, lambda c: pool(c).port),
    (f"{POOL}MAX_CONNECTIONS", 4, 2, 16, lambda c: pool(c).max_connections),
    (
        f"{POOL}CONNECTION_TIMEOUT_MS",
        5000,
        100,
        60000,
        lambda c: pool(c).connection_timeout_ms,
    ),
]
WORDS: Final[list[tuple[str, str | None, tuple[str, ...], Callable[[Config], object]]]] = [
    (f"{INGRESS}HOST", "0.0.0.0", ("127.0.0.1", "::1", "localhost"), lambda c: c.listen.host),
    (f"{SIDECAR}HEALTH_HOST", "0.0.0.0", ("127.0.0.2",), lambda c: c.health.host),
    (f"{SIDECAR}METRICS_HOST", "0.0.0.0", ("127.0.0.3",), lambda c: c.metrics.host),
    (f"{INGRESS}CERTIFICATE_BINDING", "off", ("off", "san"), lambda c: c.binding),
    (f"{INGRESS}TLS_CLIENT_CRL_FILE", None, ("/identity/ca.crl",), lambda c: c.tls.client_crl),
    (f"{POOL}APPLICATION_NAME", "qinglong-worker-ingress", ("x" * 63,), lambda c: pool(c).application_name),
    ("QL3_CLUSTER_REPLICA_ID", os.uname().nodename, ("replica-1",), lambda c: c.replica_id),
]  # fmt: skip


@pytest.mark.parametrize(("name", "default", "low", "high", "arrived"), NUMBERS, ids=[row[0] for row in NUMBERS])
def test_a_number_has_its_default_and_bounds(
    name: str, default: int, low: int, high: int, arrived: Callable[[Config], int]
) -> None:
    """Unset or empty gives the default, both bounds are allowed, one beyond either is a fault of this one alone."""
    for text, number in ((None, default), ("", default), (str(low), low), (str(high), high), (f"000{high}", high)):
        assert arrived(load(changed(POSTGRES, {name: text}))) == number
    for text in (str(low - 1), str(high + 1), f"{high}0" * 600):
        assert faulted(POSTGRES, **{name: text}) == [name]


@pytest.mark.parametrize(
    "text", ["+5", "-1", "5.0", "1e3", "0x10", "1_000", " 64", "64 ", "64\n", "\u0666\u0664", "\uff16\uff14", "²"]
)
@pytest.mark.parametrize("name", [f"{INGRESS}MAX_IN_FLIGHT", f"{LOGIN}PORT", f"{SIDECAR}MAX_CONNECTIONS"])
def test_a_number_is_ascii_digits(name: str, text: str) -> None:
    """Signs, spaces, separators, other notations and digits of other scripts are no number."""
    assert faulted(POSTGRES, **{name: text}) == [name]


@pytest.mark.parametrize(("name", "default", "good", "arrived"), WORDS, ids=[row[0] for row in WORDS])
def test_a_word_has_its_default(
    name: str, default: str | None, good: tuple[str, ...], arrived: Callable[[Config], object]
) -> None:
    """Unset gives the default, and a good value arrives as it is written."""
    assert arrived(load(POSTGRES)) == default
    for text in good:
        assert arrived(load(changed(POSTGRES, {name: text}))) == text


def test_choices_have_their_defaults() -> None:
    """Receipts are off and the provider is disabled unless said otherwise; the store has no default."""
    assert not load(SQLITE).receipts
    assert load(changed(SQLITE, {f"{SIDECAR}RECEIPTS": "on"})).receipts
    bare = load(changed(SQLITE, {"QL3_WORKER_SECRET_PROVIDER": None, "QL3_WORKER_SECRET_ROOT_DIRECTORY": None}))
    assert (bare.provider, bare.root_directory) == ("disabled", None)
    assert faulted(SQLITE, QL3_WORKER_SECRET_AUTHORITY=None) == ["QL3_WORKER_SECRET_AUTHORITY"]


def test_every_variable_of_the_contract_is_in_the_table() -> None:
    """The table has the contract's variables and no others."""
    named = {row[0] for row in NUMBERS} | {row[0] for row in WORDS} | set(SQLITE) | set(POSTGRES)
    named |= {f"{INGRESS}TLS_CLIENT_CRL_FILE", f"{LOGIN}URL", f"{LOGIN}PASSWORD_FILE", f"{SIDECAR}RECEIPTS"}
    named |= {f"{POOL}TLS_MODE", f"{POOL}TLS_CA_FILE", f"{POOL}ALLOW_INSECURE", f"{SIDECAR}PREVIOUS_PEPPER_FILE"}
    assert {variable.name for variable in VARIABLES} == named | {"QL3_WORKER_CREDENTIAL_PEPPER_FILE"}
    assert len(VARIABLES) == len(BY_NAME)


def test_every_default_is_a_value() -> None:
    """Every default in the table is a text that its own rule reads."""
    defaults = [variable for variable in VARIABLES if variable.default is not None]
    assert [one.name for one in defaults if one.rule.read(one.default or "") is None] == []


@pytest.mark.parametrize("name", sorted(set(SQLITE) - set(GATE) - {"QL3_WORKER_SECRET_PROVIDER"}))
def test_what_is_required_is_missed(name: str) -> None:
    """Each required variable is at fault, alone, when it is missing."""
    assert faulted(SQLITE, **{name: None}) == [name]


def test_the_embedded_store_needs_no_more() -> None:
    """The smallest environment of the embedded store arrives in full."""
    found = load(SQLITE)
    assert dataclasses.astuple(found.tls) == ("/identity/tls.key", "/identity/tls.crt", "/identity/ca.crt", None)
    assert (found.provider, found.root_directory) == ("mounted-files", "/secrets/values")
    assert (found.authority, found.authority_file, found.postgres) == ("sqlite", "/store/authority.db", None)
    assert config.store_from_environment(SQLITE) == config.Store("sqlite", "/store/authority.db", None)


@pytest.mark.parametrize("name", sorted(one.name for one in VARIABLES if one.name.endswith("_FILE")))
@pytest.mark.parametrize("text", ["/" + "x" * 4096, "/a\0b", "/\ud800"])
def test_a_file_is_named_by_a_path(name: str, text: str) -> None:
    """A path has at most 4096 bytes and no NUL."""
    base = SQLITE if "AUTHORITY" in name else POSTGRES
    assert name in faulted(base, **{name: text})


@pytest.mark.parametrize("name", sorted(one.name for one in VARIABLES if one.group is Group.IDENTITY))
@pytest.mark.parametrize("text", ["relative/file", "./file", "~/file", "file:///x"])
def test_the_identity_is_named_by_absolute_paths(name: str, text: str) -> None:
    """The files of the TLS identity are named absolutely, as the contract says; for others a relative path will do."""
    if name.endswith("_FILE"):
        assert name in faulted(POSTGRES, **{name: text})
    assert load(SQLITE | {"QL3_WORKER_SECRET_AUTHORITY_FILE": "store.db"}).authority_file == "store.db"


@pytest.mark.parametrize(
    "text", ["relative", "/", "//secrets", "/a//b", "/a/./b", "/a/../b", "/a/", "/a\0", "/" + "x" * 4096]
)
def test_a_root_is_normalised(text: str) -> None:
    """The root is absolute, normalised, not `/`, at most 4096 bytes, without NUL."""
    assert faulted(SQLITE, QL3_WORKER_SECRET_ROOT_DIRECTORY=text) == ["QL3_WORKER_SECRET_ROOT_DIRECTORY"]


@given(st.text(alphabet="/.a\0\ud800", max_size=12) | st.text())
def test_configuration_and_provider_agree_on_roots(path: str) -> None:
    """Whatever the configuration lets through as a root, the provider accepts too, and the other way round."""
    assert (ROOT.read(path) is not None) is is_root_path(path)


@pytest.mark.parametrize(
    "text", ["[::1]", "0.0.0.0:80", "256.1.1.1", "1.2.3", "a b", "-a", "a-.b", "a..b", "x" * 64, "fe80::1%e", "a\n"]
)
@pytest.mark.parametrize("name", [f"{INGRESS}HOST", f"{SIDECAR}HEALTH_HOST", f"{LOGIN}HOST"])
def test_a_host_is_an_address_or_a_name(name: str, text: str) -> None:
    """Ports, brackets, zones, broken numbers and broken labels make no host."""
    assert faulted(POSTGRES, **{name: text}) == [name]
