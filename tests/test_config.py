"""The environment becomes a configuration or a list of faults, in the contract's order (contract 8)."""

import ast
import dataclasses
import json
import os
import string
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sidecar import config
from sidecar.config import Config, ConfigFaults, Gate, gate, load
from sidecar.variables import BY_NAME, OWN_PREFIXES
from tests.kit.environments import (
    GATE,
    INGRESS,
    LOGIN,
    PASSWORD_FILE,
    PEPPER,
    PEPPER_FILE,
    POOL,
    POSTGRES,
    PREVIOUS_FILE,
    SIDECAR,
    SQLITE,
    URL,
    Watched,
    changed,
    faulted,
    faults,
    held,
    outcome,
)
from tests.kit.exceptions import said
from tests.kit.inotify import OpenWitness

SOURCES: Final = Path(config.__file__).parents[1]
CANARY: Final = "canary-e7a1"


@pytest.mark.parametrize("profile", [None, "edge", "standalone", "cluster-control", "worker"])
@pytest.mark.parametrize("enabled", [None, "", "false"])
def test_a_disabled_ingress_reads_two_variables(profile: str | None, enabled: str | None) -> None:
    """Under every profile an ingress that is not enabled is disabled, and nothing but the gate's variables is read."""
    values = {"QL_DEPLOYMENT_PROFILE": profile, "QL3_WORKER_INGRESS_ENABLED": enabled, f"{INGRESS}PORT": "faulty"}
    environ = Watched(changed({}, values))
    assert gate(environ) is Gate.DISABLED
    assert environ.seen == {"QL_DEPLOYMENT_PROFILE", "QL3_WORKER_INGRESS_ENABLED"}
    assert list(faults(environ)) == ["QL3_WORKER_INGRESS_ENABLED"]
    assert environ.seen == {"QL_DEPLOYMENT_PROFILE", "QL3_WORKER_INGRESS_ENABLED"}


@pytest.mark.parametrize("profile", [None, "edge", "standalone", "worker"])
def test_another_profile_cannot_enable_the_ingress(profile: str | None) -> None:
    """Enabled under a profile other than cluster-control is one fault, of the profile, and nothing else is read."""
    environ = Watched(changed(SQLITE, {"QL_DEPLOYMENT_PROFILE": profile, f"{INGRESS}PORT": "faulty"}))
    assert list(faults(environ)) == ["QL_DEPLOYMENT_PROFILE"]
    assert environ.seen == {"QL_DEPLOYMENT_PROFILE", "QL3_WORKER_INGRESS_ENABLED"}


def test_the_gate_opens_for_cluster_control_alone() -> None:
    """Enabled under cluster-control the gate is open; the other required variables are not its business."""
    assert gate(GATE) is Gate.ENABLED


@pytest.mark.parametrize("profile", ["", "Edge", " edge", "cluster_control", "cluster-control\n"])
@pytest.mark.parametrize("enabled", [None, "false", "true"])
def test_an_unknown_profile_is_a_fault_even_when_disabled(profile: str, enabled: str | None) -> None:
    """The profile is one of four words, and an empty one is a fault."""
    with pytest.raises(ConfigFaults) as caught:
        gate(changed({}, {"QL_DEPLOYMENT_PROFILE": profile, "QL3_WORKER_INGRESS_ENABLED": enabled}))
    assert [fault.variable for fault in caught.value.faults] == ["QL_DEPLOYMENT_PROFILE"]


@pytest.mark.parametrize("text", ["True", "TRUE", "1", "yes", "on", " true", "true\n", "0", "False"])
def test_booleans_are_two_words(text: str) -> None:
    """A boolean is exactly `true` or `false`."""
    environ = {"QL_DEPLOYMENT_PROFILE": "cluster-control", "QL3_WORKER_INGRESS_ENABLED": text}
    assert list(faults(environ)) == ["QL3_WORKER_INGRESS_ENABLED"]
    assert f"{POOL}ALLOW_INSECURE" in faulted(POSTGRES, **{f"{POOL}ALLOW_INSECURE": text})


def test_exactly_one_pepper_is_in_force(tmp_path: Path) -> None:
    """Pepper and pepper file exclude each other, and so do password and password file."""
    path = held(tmp_path, PEPPER.encode())
    assert faulted(SQLITE, **{PEPPER_FILE: path}) == [PEPPER_FILE]
    assert faulted(POSTGRES, **{PASSWORD_FILE: path}) == [PASSWORD_FILE]


@pytest.mark.parametrize("text", ["A" * 43, PEPPER + "=", PEPPER[:-1], PEPPER[:-1] + "9", PEPPER.replace("A", "+")])
def test_a_pepper_is_32_bytes_that_differ(text: str) -> None:
    """A pepper is 43 characters of canonical base64url and not one repeated byte."""
    assert faulted(SQLITE, QL3_WORKER_CREDENTIAL_PEPPER=text) == ["QL3_WORKER_CREDENTIAL_PEPPER"]


def test_commands_can_read_the_peppers_alone(tmp_path: Path) -> None:
    """The commands of the authority read the pepper and nothing else, whatever else is wrong."""
    environ = Watched(
        {"QL3_WORKER_CREDENTIAL_PEPPER": PEPPER, f"{INGRESS}PORT": "x", PREVIOUS_FILE: held(tmp_path, PEPPER.encode())}
    )
    peppers = config.peppers_from_environment(environ)
    assert peppers.current.digest("id", b"s") == load(SQLITE).peppers.current.digest("id", b"s")
    assert peppers.previous is not None
    assert environ.seen == {"QL3_WORKER_CREDENTIAL_PEPPER", PEPPER_FILE, PREVIOUS_FILE}
    with pytest.raises(ConfigFaults, match="QL3_WORKER_CREDENTIAL_PEPPER is required"):
        config.peppers_from_environment({})


def test_commands_can_read_the_store_alone() -> None:
    """The commands of the authority read the store's variables and nothing else; a missing choice is a fault."""
    only = {
        "QL3_WORKER_SECRET_AUTHORITY": "sqlite",
        "QL3_WORKER_SECRET_AUTHORITY_FILE": "/s",
        "QL3_WORKER_SECRET_X": "1",
    }
    assert config.store_from_environment(only).authority_file == "/s"
    with pytest.raises(ConfigFaults, match="QL3_WORKER_SECRET_AUTHORITY is required"):
        config.store_from_environment({})


LISTENERS: Final = (INGRESS, f"{SIDECAR}HEALTH_", f"{SIDECAR}METRICS_")


@pytest.mark.parametrize(("first", "second"), list(combinations(LISTENERS, 2)))
@pytest.mark.parametrize(
    ("hosts", "clash"),
    [
        (("0.0.0.0", "0.0.0.0"), True),
        (("127.0.0.1", "127.0.0.1"), True),
        (("127.0.0.1", "0.0.0.0"), True),
        (("::", "127.0.0.1"), True),
        (("127.0.0.1", "127.0.0.2"), False),
    ],
)
def test_listeners_do_not_share_a_port(first: str, second: str, hosts: tuple[str, str], clash: bool) -> None:
    """Two listeners with one port are a fault of the second, unless their addresses cannot meet."""
    values = {f"{first}HOST": hosts[0], f"{second}HOST": hosts[1], f"{first}PORT": "7000", f"{second}PORT": "7000"}
    if clash:
        assert faulted(SQLITE, **values) == [f"{second}PORT"]
    else:
        assert isinstance(outcome(changed(SQLITE, values)), Config)


def test_ports_that_the_kernel_chooses_do_not_clash() -> None:
    """Port 0 may stand in every place."""
    names = (f"{INGRESS}PORT", f"{SIDECAR}HEALTH_PORT", f"{SIDECAR}METRICS_PORT")
    assert load(changed(SQLITE, dict.fromkeys(names, "0"))).metrics.port == 0


def test_a_replica_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replica's name holds no control character; a host name that does cannot stand in for it."""
    assert faulted(SQLITE, QL3_CLUSTER_REPLICA_ID="a\nb") == ["QL3_CLUSTER_REPLICA_ID"]
    assert faulted(SQLITE, QL3_CLUSTER_REPLICA_ID="x" * 129) == ["QL3_CLUSTER_REPLICA_ID"]
    named = os.uname_result(("Linux", "\udcff", "1", "1", "m"))
    monkeypatch.setattr(os, "uname", lambda: named)
    assert faulted(SQLITE) == ["QL3_CLUSTER_REPLICA_ID"]
    assert load(changed(SQLITE, {"QL3_CLUSTER_REPLICA_ID": "replica"})).replica_id == "replica"


def test_a_configuration_shows_no_secret(tmp_path: Path) -> None:
    """Neither pepper nor password is in a configuration's repr."""
    environ = changed(
        URL, {f"{LOGIN}URL": f"postgresql://u:{CANARY}@h/d", PREVIOUS_FILE: held(tmp_path, PEPPER.encode())}
    )
    shown = repr(load(environ))
    assert CANARY not in shown and PEPPER not in shown and "redacted" in shown


def test_a_configuration_is_frozen() -> None:
    """Nothing in a configuration can be changed."""
    found = load(POSTGRES)
    for part in (found, found.listen, found.tls, found.limits, found.shield, found.peppers, found.postgres):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, dataclasses.fields(part)[0].name, None)  # type: ignore[arg-type]  # each is a dataclass


NAMES: Final = st.sampled_from(sorted(BY_NAME)) | st.builds(
    str.__add__, st.sampled_from(OWN_PREFIXES), st.text(alphabet=string.ascii_uppercase + "_\n\x1b", max_size=8)
)
GOOD: Final = sorted(
    {*SQLITE.values(), *POSTGRES.values(), *URL.values(), "verify-full", "disable", "5801", "7000", ""}
)
VALUES: Final = st.sampled_from(GOOD) | st.text(max_size=20).map(lambda text: f"{CANARY}{text}")


@given(
    base=st.sampled_from([{}, GATE, SQLITE, POSTGRES, URL]),
    values=st.dictionaries(NAMES, st.none() | VALUES, max_size=6),
    anything=st.dictionaries(st.text(), st.text(), max_size=2),
)
@example(base=SQLITE, values={f"{INGRESS}TLS_PRIVATE_KEY_FILE": f"/{CANARY}\ud800"}, anything={})
@example(base=SQLITE, values={PEPPER_FILE: f"/{CANARY}", "QL3_WORKER_CREDENTIAL_PEPPER": None}, anything={})
@example(base=POSTGRES, values={PASSWORD_FILE: f"/{CANARY}", f"{LOGIN}PASSWORD": None}, anything={})
def test_any_environment_is_a_configuration_or_faults(
    base: Mapping[str, str], values: Mapping[str, str | None], anything: Mapping[str, str]
) -> None:
    """Whatever the environment holds, a configuration or faults come of it, and no fault says any of a value."""
    environ = {**anything, **changed(base, values)}
    try:
        assert isinstance(load(environ), Config)
    except ConfigFaults as caught:
        assert caught.faults
        assert CANARY not in said(caught)
        assert all(line.isprintable() and line.startswith("QL") for line in str(caught).splitlines())


def test_a_child_inherits_nothing_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child process gets this environment without any variable of ours, and the values that are meant for it."""
    for name in (*SQLITE, f"{LOGIN}PASSWORD", "QL3_CLUSTER_REPLICA_ID", "QL3_WORKER_SECRET_TYPO", "OTHER"):
        monkeypatch.setenv(name, "inherited")
    found = config.child_environment({PEPPER_FILE: "/pepper"})
    assert {name: value for name, value in found.items() if name.startswith("QL")} == {PEPPER_FILE: "/pepper"}
    assert found["OTHER"] == "inherited"


def names(tree: ast.AST) -> Iterator[str]:
    """Every attribute that the module looks up and every name that it imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name


def test_the_environment_has_one_reader() -> None:
    """Only config.py reads the process's environment; stage.py hands it on to `exec`'s command, whatever is in it."""
    modules = [path for package in ("provider", "sidecar") for path in (SOURCES / package).rglob("*.py")]
    touching = {"environ", "environb", "getenv", "getenvb"}
    readers = {path.name for path in modules if touching & set(names(ast.parse(path.read_text(encoding="utf-8"))))}
    assert readers == {"config.py", "stage.py"}


# --- the gate as a process ---------------------------------------------------------------------------------------

WITNESS: Final = """
import json, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from sidecar.__main__ import main
code = main(["serve"])
print(json.dumps({"code": code, "opened": opened, "modules": sorted(sys.modules)}))
"""
NEVER: Final = ("provider.mounted", "provider.rootfs", "provider.pipeline", "sidecar.stores", "sidecar.run", "sqlite3")
HEAVY: Final = ("aiohttp", "ssl", "cryptography", "prometheus_client", "watchfiles")


@pytest.mark.parametrize(
    ("profile", "enabled", "code"),
    [
        ("cluster-control", "false", 0),
        ("edge", None, 0),
        ("worker", "false", 0),
        (None, None, 0),
        ("edge", "true", 78),
        ("standalone", "true", 78),
        ("worker", "true", 78),
        (None, "true", 78),
        ("", "false", 78),
    ],
)
def test_a_closed_gate_loads_and_opens_nothing(
    profile: str | None, enabled: str | None, code: int, tmp_path: Path
) -> None:
    """Disabled, or under another profile: no provider, store or server module is loaded, and no root is opened."""
    root = tmp_path / "values"
    root.mkdir()
    environ = changed(
        SQLITE,
        {
            "QL_DEPLOYMENT_PROFILE": profile,
            "QL3_WORKER_INGRESS_ENABLED": enabled,
            "QL3_WORKER_SECRET_ROOT_DIRECTORY": str(root),
            "QL3_WORKER_SECRET_AUTHORITY_FILE": str(tmp_path / "authority.db"),
        },
    )
    with OpenWitness(root, tmp_path) as witness:
        done = subprocess.run(
            [sys.executable, "-c", WITNESS],
            cwd=SOURCES,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert witness.names() == []
    *events, last = done.stdout.splitlines()
    seen = json.loads(last)
    assert seen["code"] == code, done.stderr
    assert {"sidecar.cli.serve", "sidecar.config"} <= set(seen["modules"])
    assert [name for name in seen["modules"] if name.startswith((*NEVER, *HEAVY))] == []
    assert [path for path in seen["opened"] if path.startswith(str(tmp_path))] == []
    assert len(events) == 1
    assert ("QL_DEPLOYMENT_PROFILE" in done.stderr) is (code == 78)
