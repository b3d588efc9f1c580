"""provider/plan: the refs of a plan, or one refusal for everything that is not as the contract says."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provider.outcomes import Reason, Refused
from provider.plan import plan_refs
from provider.refs import SecretRef
from provider.snapshot import Revision
from tests.kit import valid
from tests.kit.exceptions import said

assert valid.SNAPSHOT.revision is not None
REVISION = valid.SNAPSHOT.revision


def secret(name: str, ref: object) -> dict[str, object]:
    """An entry of kind secret."""
    return {"name": name, "kind": "secret", "secretRef": ref.text if isinstance(ref, SecretRef) else ref}


def public(name: str, value: object = "x") -> dict[str, object]:
    """An entry of kind public."""
    return {"name": name, "kind": "public", "value": value}


def read(plan: object) -> tuple[tuple[SecretRef, ...], tuple[SecretRef, ...]]:
    """The refs of a plan, given as a document or as its text."""
    text = plan if isinstance(plan, str) else json.dumps(plan)
    return plan_refs(REVISION._replace(plan_json=text), valid.PROJECT)


def refuses(revision: Revision) -> Refused:
    """The refusal for this revision; it is always the store's."""
    with pytest.raises(Refused) as caught:
        plan_refs(revision, valid.PROJECT)
    assert caught.value.reason is Reason.AUTHORITY_STORE
    return caught.value


def test_refs_of_the_valid_plan() -> None:
    """Secret entries in stored order, the first occurrence of each ref only, and the one bundle (contract 6.4)."""
    assert plan_refs(REVISION, valid.PROJECT) == (valid.SECRETS, (valid.BUNDLE,))


@pytest.mark.parametrize(
    "known",
    [
        (),
        valid.SECRETS,
        (*valid.SECRETS, valid.BUNDLE),
        (SecretRef.of(valid.PROJECT, "other"),),
        (SecretRef.of("project-2", "token"),),
    ],
    ids=["none", "secrets", "all", "another", "another project"],
)
def test_refs_that_are_known_change_nothing(known: tuple[SecretRef, ...]) -> None:
    """What was parsed already only saves parsing: the refs are the plan's, whatever is known."""
    assert plan_refs(REVISION, valid.PROJECT, known) == (valid.SECRETS, (valid.BUNDLE,))
    odd = REVISION._replace(plan_json=json.dumps({"command": {}, "environment": [secret("A", valid.TOKEN)]}))
    with pytest.raises(Refused):
        plan_refs(odd, "project-2", (*known, valid.TOKEN))


def test_order_is_the_stored_one() -> None:
    """Refs stand in the order of the environment, not in any other."""
    a, b, c = (SecretRef.of(valid.PROJECT, name) for name in "abc")
    entries = [secret("1", c), public("0"), secret("2", a), secret("3", c), secret("4", b), secret("5", a)]
    assert read({"command": {}, "environment": entries}) == ((c, a, b), ())


def test_no_bundle_is_an_empty_list() -> None:
    """A plan without `environmentBundleRef` names no bundle."""
    assert read(valid.plan_json(environmentBundleRef=None)) == (valid.SECRETS, ())


def test_a_plan_may_have_no_secret() -> None:
    """An environment without secrets, or without entries, has no refs; the plan is good all the same."""
    assert read({"command": None, "environment": [public("A")]}) == ((), ())
    assert read({"command": {}, "environment": []}) == ((), ())


def test_optional_keys_are_allowed_whatever_they_hold() -> None:
    """`placement`, `timeoutMs` and `workingDirectory` are not looked into, nor are `command` and public values."""
    plan = {**valid.PLAN, "placement": [{}], "timeoutMs": None, "workingDirectory": 1, "command": "x"}
    assert read(plan) == (valid.SECRETS, (valid.BUNDLE,))
    odd: list[object] = [None, 1, [], {}, True, ""]
    for value in odd:
        assert read({"command": 1, "environment": [public("A", value)]}) == ((), ())


def test_64_refs_are_allowed_and_65_are_not() -> None:
    """A plan names at most 64 refs, each counted once; the bundle is not one of them."""
    refs = [SecretRef.of(valid.PROJECT, f"s{number}") for number in range(65)]
    entries = [secret(f"N{number}", ref) for number, ref in enumerate(refs)]
    plan = {"command": {}, "environment": [*entries[:64], secret("AGAIN", refs[0])]}
    assert read({**plan, "environmentBundleRef": valid.BUNDLE.text}) == (tuple(refs[:64]), (valid.BUNDLE,))
    refuses(REVISION._replace(plan_json=json.dumps({"command": {}, "environment": entries})))


def with_entry(entry: object) -> dict[str, object]:
    """A plan with this entry after a good one."""
    return {"command": {}, "environment": [public("FIRST"), entry]}


OTHER_PROJECT = SecretRef.of("project-2", "token", 1)

FAULTS: dict[str, object] = {
    "not JSON": "CANARY{",
    "empty": "",
    "two documents": "{} {}",
    "a number": 1,
    "a list": [],
    "null": None,
    "text": '"CANARY"',
    "too deep": "[" * 100_000,
    "a number too long": '{"command":' + "9" * 5000 + ',"environment":[]}',
    "NaN": '{"command":NaN,"environment":[]}',
    "Infinity": '{"command":{},"environment":[],"timeoutMs":-Infinity}',
    "a key twice": '{"command":{},"environment":[],"environment":[]}',
    "a key of an entry twice": '{"command":{},"environment":[{"name":"A","name":"A","kind":"public","value":""}]}',
    "no command": {"environment": []},
    "no environment": {"command": {}},
    "one key more": {**valid.PLAN, "CANARY": 1},
    "a key in another case": {"Command": {}, "environment": []},
    "environment null": {"command": {}, "environment": None},
    "environment an object": {"command": {}, "environment": {"name": "A", "kind": "public", "value": "x"}},
    "environment text": {"command": {}, "environment": "A"},
    "an entry null": with_entry(None),
    "an entry a list": with_entry(["name", "kind", "value"]),
    "an entry text": with_entry("name"),
    "an entry empty": with_entry({}),
    "no kind": with_entry({"name": "A", "value": "x"}),
    "no name": with_entry({"kind": "public", "value": "x"}),
    "no value": with_entry({"name": "A", "kind": "public"}),
    "no secretRef": with_entry({"name": "A", "kind": "secret"}),
    "another kind": with_entry({"name": "A", "kind": "CANARY", "value": "x"}),
    "kind null": with_entry({"name": "A", "kind": None, "value": "x"}),
    "kind a list": with_entry({"name": "A", "kind": ["secret"], "secretRef": valid.TOKEN.text}),
    "a public entry with a ref": with_entry({"name": "A", "kind": "public", "secretRef": valid.TOKEN.text}),
    "a secret entry with a value": with_entry({"name": "A", "kind": "secret", "value": "CANARY"}),
    "both": with_entry({**public("A"), "secretRef": valid.TOKEN.text}),
    "both, secret": with_entry({**secret("A", valid.TOKEN), "value": "x"}),
    "a name twice": with_entry(public("FIRST")),
    "a name twice, of both kinds": with_entry(secret("FIRST", valid.TOKEN)),
    "a name null": with_entry(public(None)),  # type: ignore[arg-type]
    "a name a number": with_entry(public(1)),  # type: ignore[arg-type]
    "a ref not canonical": with_entry(secret("A", valid.TOKEN.text + "=")),
    "a ref empty": with_entry(secret("A", "")),
    "a ref null": with_entry(secret("A", None)),
    "a ref a list": with_entry(secret("A", [valid.TOKEN.text])),
    "a ref of another project": with_entry(secret("A", OTHER_PROJECT)),
    "a bundle not canonical": {**valid.PLAN, "environmentBundleRef": "CANARY"},
    "a bundle null": {**valid.PLAN, "environmentBundleRef": None},
    "a bundle a list": {**valid.PLAN, "environmentBundleRef": [valid.BUNDLE.text]},
    "a bundle of another project": {**valid.PLAN, "environmentBundleRef": OTHER_PROJECT.text},
    "a bundle without version": {**valid.PLAN, "environmentBundleRef": valid.TOKEN.text},
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_every_fault_is_the_stores(fault: object) -> None:
    """Each fault of contract 6.5 is refused as a store that has no usable answer, and shows nothing of the plan."""
    text = fault if isinstance(fault, str) else json.dumps(fault)
    refused = refuses(REVISION._replace(plan_json=text))
    assert refused.__context__ is None
    assert "CANARY" not in said(refused)


@pytest.mark.parametrize("plan", [None, 1, b"{}", valid.PLAN, True], ids=str)
def test_a_plan_is_json_text(plan: object) -> None:
    """A column that holds no text holds no plan."""
    refuses(REVISION._replace(plan_json=plan))


@pytest.mark.parametrize("schema", [None, "", 1, "qinglong/command-execution@v2", "qinglong/command-execution@v1 "])
def test_other_plan_schemas_are_refused(schema: object) -> None:
    """Only `qinglong/command-execution@v1` is understood."""
    refuses(REVISION._replace(plan_schema=schema))


documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from([valid.TOKEN.text]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["name", "kind", "value", "secretRef", "command", "environment", "environmentBundleRef", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(documents | st.text(max_size=30))
def test_any_document_is_read_or_refused(document: object) -> None:
    """Whatever the column holds, the answer is refs of the project or that one refusal, and nothing else is raised."""
    try:
        secrets, bundles = read(document)
    except Refused as refused:
        assert refused.reason is Reason.AUTHORITY_STORE
    else:
        assert all(ref.project_id == valid.PROJECT for ref in secrets + bundles)
        assert len(set(secrets)) == len(secrets)
        assert len(bundles) <= 1
