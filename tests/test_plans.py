"""Plans of the embedded control plane: every fault at once, and never one that a request would stumble over."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provider.plan import plan_refs
from provider.refs import SecretRef
from provider.snapshot import Revision
from sidecar.stores.plans import PLAN_SCHEMA, Plan, PlanFaults, make_plan

REF = SecretRef.of("project", "token").text
VERSIONED = SecretRef.of("project", "bundle", 3).text
FOREIGN = SecretRef.of("elsewhere", "token", 1).text


def faults(*secrets: str, project: str = "project", task: str = "task", bundle: str | None = None) -> tuple[str, ...]:
    """Return what is wrong with what was asked for."""
    with pytest.raises(PlanFaults) as caught:
        make_plan(project, task, secrets, bundle)
    return caught.value.faults


NAMES = st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_]{0,20}\Z")
REFS = st.builds(
    SecretRef.of, st.just("project"), st.text('ab\N{SNOWMAN}"\\', min_size=1, max_size=8), st.none() | st.integers(1, 9)
)


@given(
    environment=st.lists(st.tuples(NAMES, REFS), unique_by=lambda pair: pair[0], max_size=80),
    bundle=st.none() | st.builds(SecretRef.of, st.just("project"), st.just("bundle"), st.integers(1, 9)),
)
def test_what_is_made_is_found_without_fault(
    environment: list[tuple[str, SecretRef]], bundle: SecretRef | None
) -> None:
    """Every plan that can be made is one that `verify` reads back as the same refs in order, or it is refused."""
    refs = tuple(dict.fromkeys(ref for _, ref in environment))
    items = [f"{name}={ref.text}" for name, ref in environment]
    bundle_text = None if bundle is None else bundle.text
    if len(refs) > 64 or (not refs and bundle is None):
        with pytest.raises(PlanFaults):
            make_plan("project", "task", items, bundle_text)
        return
    plan = make_plan("project", "task", items, bundle_text)
    revision = Revision(1, plan.digest, PLAN_SCHEMA, plan.text, plan.digest)
    assert plan_refs(revision, "project") == (refs, () if bundle is None else (bundle,))
    assert plan.refs == refs
    assert plan.environment == tuple(environment)


def test_the_stored_plan_is_the_contracts() -> None:
    """The command, each entry and the bundle stand in the plan as contract 6.5 and issue 2 say."""
    plan = make_plan("project", "task", [f"TOKEN={REF}"], VERSIONED)
    assert json.loads(plan.text) == {
        "command": {"kind": "argv", "file": "/bin/true", "args": []},
        "environment": [{"name": "TOKEN", "kind": "secret", "secretRef": REF}],
        "environmentBundleRef": VERSIONED,
    }
    assert "environmentBundleRef" not in json.loads(make_plan("project", "task", [f"TOKEN={REF}"], None).text)


def test_the_digest_is_that_of_the_stored_text() -> None:
    """Anybody can compute the digest again from the row, and every part of the plan is in it."""
    plan = make_plan("project", "task", [f"TOKEN={REF}"], None)
    assert plan.digest == hashlib.sha256(plan.text.encode()).hexdigest()
    others = [
        make_plan("project", "task", [f"OTHER={REF}"], None),
        make_plan("project", "task", [f"TOKEN={REF}"], VERSIONED),
        make_plan("project", "task", [f"TOKEN={REF}", f"AGAIN={REF}"], None),
    ]
    assert len({one.digest for one in [plan, *others]}) == 4


def test_every_fault_is_listed_at_once() -> None:
    """Nothing is mended twice because only the first fault was told; each line says which item it is about."""
    found = faults(
        f"GOOD={REF}", f"1BAD={REF}", f"GOOD={REF}", f"FOREIGN={FOREIGN}", "BROKEN=nonsense", "hunter2",
        project="project", task="\x00", bundle=REF,
    )  # fmt: skip
    assert [fault.split(":")[0] for fault in found] == [
        "the task must be 1 to 128 characters and bytes, none of them a control character",
        "secret 2",
        "secret 3 (GOOD)",
        "secret 4 (FOREIGN)",
        "secret 5 (BROKEN)",
        "secret 6",
        "bundle",
        "bundle",
    ]


def test_no_fault_shows_what_may_be_a_secret() -> None:
    """An item that is no NAME=REF may be a value that slipped in: neither it nor any ref is shown."""
    found = " ".join(faults("hunter2", "also hunter2=x", "TOKEN=hunter2", f"T={FOREIGN}", bundle="hunter2"))
    assert "hunter2" not in found
    assert FOREIGN not in found


@pytest.mark.parametrize("text", ["", "x" * 129, "\N{SNOWMAN}" * 43, "tab\t", "\x7f", "\ud800"])
def test_project_and_task_have_their_bounds(text: str) -> None:
    """Ids are 1 to 128 characters and bytes without a control character or lone surrogate."""
    assert any("the task" in fault for fault in faults(f"A={REF}", task=text))
    assert any("the project" in fault for fault in faults(f"A={REF}", project=text))


@pytest.mark.parametrize("name", ["", "A-B", "A B", "9", "\N{SNOWMAN}", "A" * 129, "A\n"])
def test_names_are_variables(name: str) -> None:
    """A name is one that a process can be started with."""
    assert any("NAME=REF" in fault for fault in faults(f"{name}={REF}"))


def test_a_plan_names_something() -> None:
    """A plan without secret or bundle is no plan; 65 refs are too many, one ref under 256 names is not."""
    assert faults() == ("secrets: at least one secret or a bundle is needed",)
    many = [f"N{n}={SecretRef.of('project', str(n)).text}" for n in range(65)]
    assert faults(*many) == ("secrets: more than 64 different refs",)
    shared = [f"N{n}={REF}" for n in range(257)]
    assert faults(*shared) == ("secrets: more than 256 variables",)
    assert len(make_plan("project", "task", shared[:256], None).environment) == 256


def test_a_bundle_has_a_version_and_stands_alone() -> None:
    """The bundle's ref has a version, is of the project, and is none of the secrets."""
    assert faults(f"A={REF}", bundle=REF) == (
        "bundle: the ref must have a version",
        "bundle: the ref is among the secrets too",
    )
    assert faults(bundle=FOREIGN) == ("bundle: the ref is of another project",)


def test_a_plan_shows_no_ref() -> None:
    """The repr of a plan, which may reach a log, holds nothing of it."""
    assert REF not in repr(Plan("project", "task", (("TOKEN", SecretRef.parse(REF)),), None))
