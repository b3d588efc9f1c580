"""provider/authority: any single changed fact of a valid world refuses, for the reason and in the order of contract 6.

Nobody but `verify` and `commit` makes an authority or a permit, and neither leads to the lease token.
"""

import copy
import pickle
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provider.authority import Authority, Permit, Tenure, commit, verify
from provider.command import Command
from provider.credential import Principal
from provider.outcomes import Reason, Refused
from provider.receipts import Receipt
from provider.refs import SecretRef
from provider.snapshot import Snapshot
from tests.kit import valid
from tests.kit.reach import leads_to

MISMATCH = Reason.AUTHORITY_MISMATCH
SCOPE = Reason.SECRET_SCOPE_MISMATCH
STORE = Reason.AUTHORITY_STORE

ROWS = ("attempt", "run", "lease", "session", "revision", "credential")
NOW = valid.NOW_MS
OTHER_DIGEST = "0f" * 32
LEASE = (valid.LEASE_TOKEN, valid.LEASE_DIGEST)


class Hold:
    """A hold that answers COMMIT as it is told."""

    def __init__(self, snapshot: Snapshot = valid.SNAPSHOT, error: BaseException | None = None) -> None:
        """Begin."""
        self.snapshot = snapshot
        self.tenure = Tenure()
        self.error = error
        self.committed: list[tuple[Receipt, ...]] = []

    async def commit(self, authority: Authority, receipts: tuple[Receipt, ...]) -> None:
        """Confirm, or raise."""
        assert authority.secret_refs
        if self.error is not None:
            raise self.error
        self.committed.append(receipts)


def judged(
    snapshot: Snapshot = valid.SNAPSHOT,
    command: Command | None = None,
    principal: Principal | None = None,
    session: str = valid.SESSION,
) -> Reason | None:
    """The reason for which this world is refused, None when it is not."""
    try:
        verify(principal or valid.principal(), session, command or valid.command(), Hold(snapshot))
    except Refused as refused:
        return refused.reason
    return None


def a_principal(**changes: Any) -> Principal:
    """The world's principal with fields changed, which outside tests nobody can do."""
    principal = valid.principal()
    for name, value in changes.items():
        object.__setattr__(principal, name, value)
    return principal


# --- the valid world ----------------------------------------------------------------------------------------------


def test_the_valid_world_holds() -> None:
    """Everything as it must be: the authority names the refs asked for and the facts that the delivery is fenced by."""
    hold = Hold()
    authority = verify(valid.principal(), valid.SESSION, valid.command(), hold)
    assert authority.secret_refs == valid.SECRETS
    assert authority.bundle_refs == (valid.BUNDLE,)
    assert (authority.attempt_id, authority.worker_id) == (valid.ATTEMPT, valid.WORKER)
    assert (authority.credential_id, authority.credential_version) == (valid.CREDENTIAL, valid.CREDENTIAL_VERSION)
    assert (authority.now_ms, authority.read_at) == (NOW, valid.READ_AT)


def test_v1_holds_for_a_plan_without_bundle() -> None:
    """`@v1` counts as no bundle: it holds where the plan has none and nowhere else (contract 6.4)."""
    command = valid.command(valid.body_v1())
    assert judged(valid.changed("revision", plan_json=valid.plan_json(environmentBundleRef=None)), command) is None
    assert judged(command=command) is SCOPE


def test_only_a_bundle_may_be_asked_for() -> None:
    """A plan whose only ref is a bundle is answered in `@v2` with an empty list of secrets."""
    command = valid.command(valid.body(secretRefs=[]))
    assert judged(valid.changed("revision", plan_json=valid.plan_json(environment=[])), command) is None


# --- one changed fact: the store ----------------------------------------------------------------------------------

# Every column, what it is changed to, and why that refuses.
CHANGED: dict[tuple[str, str], list[tuple[object, Reason]]] = {
    ("attempt", "run_id"): [("other", MISMATCH)],
    ("attempt", "status"): [("running", MISMATCH), ("STARTING", MISMATCH), ("", MISMATCH)],
    ("attempt", "executor_type"): [("local", MISMATCH)],
    ("attempt", "worker_id"): [("worker-2", MISMATCH)],
    ("attempt", "worker_session_id"): [("other", MISMATCH)],
    ("attempt", "worker_generation"): [(3, MISMATCH), (5, MISMATCH)],
    ("attempt", "lease_generation"): [(4, MISMATCH), (6, MISMATCH)],
    ("attempt", "lease_version"): [(5, MISMATCH), (7, MISMATCH)],
    ("attempt", "lease_token_digest"): [(OTHER_DIGEST, MISMATCH), ("é" * 64, MISMATCH), ("", MISMATCH)],
    ("attempt", "offer_id"): [("other", MISMATCH)],
    ("run", "project_id"): [("project-2", MISMATCH)],
    ("run", "task_id"): [("task-2", MISMATCH)],
    ("run", "task_revision"): [("qltd:v1:10:" + valid.SOURCE_DIGEST, MISMATCH)],
    ("run", "status"): [("running", MISMATCH), ("cancelled", MISMATCH)],
    ("run", "execution_owner"): [("scheduler", MISMATCH)],
    ("run", "cancel_requested_at_ms"): [(NOW - 1, MISMATCH), (NOW + 1, MISMATCH), (0, MISMATCH)],
    ("lease", "run_id"): [("other", MISMATCH)],
    ("lease", "status"): [("released", MISMATCH), ("expired", MISMATCH)],
    ("lease", "version"): [(5, MISMATCH), (7, MISMATCH)],
    ("lease", "lease_generation"): [(4, MISMATCH), (6, MISMATCH)],
    ("lease", "worker_id"): [("worker-2", MISMATCH)],
    ("lease", "worker_session_id"): [("other", MISMATCH)],
    ("lease", "worker_generation"): [(3, MISMATCH), (5, MISMATCH)],
    ("lease", "lease_token_digest"): [(OTHER_DIGEST, MISMATCH), ("é" * 64, MISMATCH), ("", MISMATCH)],
    ("lease", "offer_id"): [("other", MISMATCH)],
    ("lease", "expires_at_ms"): [(NOW, MISMATCH), (NOW - 1, MISMATCH), (0, MISMATCH)],
    ("session", "session_id"): [("other", MISMATCH)],
    ("session", "generation"): [(3, MISMATCH), (5, MISMATCH)],
    ("session", "status"): [("offline", MISMATCH), ("closed", MISMATCH)],
    ("session", "lease_expires_at_ms"): [(NOW, MISMATCH), (NOW - 1, MISMATCH)],
    ("revision", "source_revision"): [(10, STORE), ("x", STORE), (None, STORE)],
    ("revision", "source_content_digest"): [(OTHER_DIGEST, STORE), (None, STORE), (1, STORE)],
    ("revision", "plan_schema"): [("other", STORE), (None, STORE), (1, STORE)],
    ("revision", "plan_json"): [("{}", STORE), (None, STORE), (1, STORE), (b"{}", STORE)],
    ("revision", "content_digest"): [(OTHER_DIGEST, SCOPE), ("é" * 64, SCOPE), (None, SCOPE), (1, SCOPE)],
    ("credential", "version"): [(2, MISMATCH), (4, MISMATCH)],
    ("credential", "worker_id"): [("worker-2", MISMATCH)],
    ("credential", "state"): [("revoked", MISMATCH), ("ACTIVE", MISMATCH)],
    ("credential", "not_before_at_ms"): [(NOW + 1, MISMATCH)],
    ("credential", "expires_at_ms"): [(NOW, MISMATCH), (NOW - 1, MISMATCH)],
}

COMPARED = [key for key in CHANGED if key[0] != "revision"]
"""The columns that step 3 compares."""


def column_id(value: object) -> str | None:
    """A readable name for a parametrised column."""
    return ".".join(value) if isinstance(value, tuple) else None


def valid_value(row: str, column: str) -> object:
    """What the valid world has there."""
    return getattr(getattr(valid.SNAPSHOT, row), column)


def test_the_table_names_every_column() -> None:
    """No column of the snapshot is left out of the tests below."""
    assert set(CHANGED) == {(row, name) for row in ROWS for name in getattr(valid.SNAPSHOT, row)._fields}


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [(key, value, reason) for key, changes in CHANGED.items() for value, reason in changes],
    ids=column_id,
)
def test_a_changed_column_refuses(column: tuple[str, str], value: object, reason: Reason) -> None:
    """Any other value in any one column refuses the whole, for the reason of its rule."""
    row, name = column
    assert judged(valid.changed(row, **{name: value})) is reason


@pytest.mark.parametrize("column", COMPARED, ids=column_id)
def test_null_equals_nothing(column: tuple[str, str]) -> None:
    """NULL in a compared column is a mismatch; only a cancel that nobody requested is NULL."""
    row, name = column
    expected = None if name == "cancel_requested_at_ms" else MISMATCH
    assert judged(valid.changed(row, **{name: None})) is expected


@pytest.mark.parametrize("column", COMPARED, ids=column_id)
def test_a_wrong_type_in_a_compared_column_is_the_stores_fault(column: tuple[str, str]) -> None:
    """Text for a number, a number for text, bytes, floats, lists and booleans are no answer at all (contract 6.5)."""
    row, name = column
    good = valid_value(row, name)
    wrong: list[object] = [b"x", 1.5, [], {}, True, False]
    wrong += [1, float(NOW)] if isinstance(good, str) else ["1", float(NOW + 5000), str(good)]
    for value in wrong:
        assert judged(valid.changed(row, **{name: value})) is STORE, value


def still_holds(row: str, name: str, value: object) -> bool:
    """Tell whether the rule allows this value too."""
    if value == valid_value(row, name) and type(value) is type(valid_value(row, name)):
        return True
    if name in ("expires_at_ms", "lease_expires_at_ms"):
        return type(value) is int and value > NOW
    if name == "not_before_at_ms":
        return type(value) is int and value <= NOW
    return (row, name, value) in (("session", "status", "draining"), ("revision", "source_revision", "9"))


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(NOW - 3, NOW + 3),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=3),
    st.sampled_from([valid.RUN, valid.SESSION, valid.WORKER, "draining", "online", "active", valid.LEASE_DIGEST, "9"]),
    st.lists(st.integers(), max_size=1),
)


@given(st.sampled_from(sorted(CHANGED)), anything)
def test_any_single_changed_fact_of_the_store_refuses(column: tuple[str, str], value: object) -> None:
    """Whatever value stands in whichever column, the world holds only if the rule of that column allows the value."""
    row, name = column
    reason = judged(valid.changed(row, **{name: value}))
    assert (reason is None) == still_holds(row, name, value)
    assert reason in (None, MISMATCH, SCOPE, STORE)


# --- one changed fact: the request --------------------------------------------------------------------------------

OTHER_REF = SecretRef.of(valid.PROJECT, "other", 7)

ASKED: dict[str, list[tuple[object, Reason]]] = {
    "run_id": [("other", MISMATCH)],
    "offer_id": [("other", MISMATCH)],
    "project_id": [("project-2", MISMATCH)],
    "task_id": [("task-2", MISMATCH)],
    "task_revision": [("qltd:v1:10:" + valid.SOURCE_DIGEST, MISMATCH)],
    "execution_digest": [(OTHER_DIGEST, SCOPE)],
    "worker_generation": [(3, MISMATCH), (5, MISMATCH)],
    "lease_generation": [(4, MISMATCH), (6, MISMATCH)],
    "expected_lease_version": [(5, MISMATCH), (7, MISMATCH)],
    "lease_token_digest": [(OTHER_DIGEST, MISMATCH)],
    "secret_refs": [
        ((), SCOPE),
        ((valid.TOKEN,), SCOPE),
        ((valid.KEY,), SCOPE),
        ((valid.KEY, valid.TOKEN), SCOPE),
        ((valid.TOKEN, valid.KEY, OTHER_REF), SCOPE),
        ((valid.TOKEN, valid.KEY, valid.TOKEN), SCOPE),
        ((valid.TOKEN, OTHER_REF), SCOPE),
        ((valid.TOKEN, SecretRef.of(valid.PROJECT, "key")), SCOPE),
        ((valid.TOKEN, SecretRef.of(valid.PROJECT, "key", 3)), SCOPE),
    ],
    "bundle_refs": [((), SCOPE), ((OTHER_REF,), SCOPE), ((SecretRef.of(valid.PROJECT, "bundle", 8),), SCOPE)],
}


def test_the_table_names_every_field_of_the_command() -> None:
    """No field is left out; the attempt is what the store reads by, the schema is what the answer is written in."""
    assert set(ASKED) | {"attempt_id", "schema"} == {field.name for field in fields(Command)}


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [(field, value, reason) for field, changes in ASKED.items() for value, reason in changes],
)
def test_a_changed_field_of_the_command_refuses(field: str, value: object, reason: Reason) -> None:
    """Any one claim of the request that is not the store's refuses the whole."""
    command: Any = valid.command()
    assert judged(command=replace(command, **{field: value})) is reason


@pytest.mark.parametrize(
    ("field", "value"), [("worker_id", "worker-2"), ("credential_version", 2), ("credential_version", 4)]
)
def test_a_changed_principal_refuses(field: str, value: object) -> None:
    """Another worker, or another version of its credential, is refused."""
    assert judged(principal=a_principal(**{field: value})) is MISMATCH


@pytest.mark.parametrize("session", ["", "other", valid.SESSION.upper(), valid.SESSION[:-1]])
def test_another_session_refuses(session: str) -> None:
    """The path's session must be the one of attempt, lease and session row."""
    assert judged(session=session) is MISMATCH


# --- rows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS)
def test_a_missing_row_is_a_mismatch(row: str) -> None:
    """No such attempt, run, lease, session, revision or credential: fenced, not unavailable."""
    missing: Any = {row: None}
    assert judged(replace(valid.SNAPSHOT, **missing)) is MISMATCH


def test_a_second_row_is_the_stores_fault() -> None:
    """Two rows where one is meant are no answer."""
    assert judged(replace(valid.SNAPSHOT, second_row=True)) is STORE


# --- order --------------------------------------------------------------------------------------------------------

MISSING: dict[str, Any] = {"session": None}
STRANGER = "worker-2"
BAD_PLAN = valid.changed("revision", plan_json="{}").revision
OTHER_SCOPE = valid.command(valid.body(secretRefs=[OTHER_REF.text]))


def test_a_missing_row_comes_before_a_second_one() -> None:
    """A missing row is a mismatch, also where another table has two."""
    assert judged(replace(valid.SNAPSHOT, second_row=True, **MISSING)) is MISMATCH


def test_a_second_row_comes_before_the_fences() -> None:
    """A store without one answer is unavailable, also for who would be fenced."""
    assert judged(replace(valid.changed("run", status="cancelled"), second_row=True)) is STORE


def test_a_wrong_type_comes_before_the_fences() -> None:
    """A malformed row is unavailable, also where another column is a mismatch."""
    assert (
        judged(replace(valid.changed("run", status="cancelled"), lease=valid.changed("lease", version="6").lease))
        is STORE
    )


@pytest.mark.parametrize("row", ["attempt", "lease"])
def test_a_stranger_learns_nothing_of_the_plan(row: str) -> None:
    """Who is not the attempt's worker is fenced alike, whether the plan is good, broken or another's (contract 6.5)."""
    theirs = valid.changed(row, worker_id=STRANGER)
    for snapshot in (theirs, replace(theirs, revision=BAD_PLAN)):
        for command in (valid.command(), OTHER_SCOPE):
            assert judged(snapshot, command) is MISMATCH


def test_the_plans_faults_come_before_the_scope() -> None:
    """A broken plan is unavailable, whatever was asked for."""
    assert judged(replace(valid.SNAPSHOT, revision=BAD_PLAN), OTHER_SCOPE) is STORE
    wrong_source = valid.changed("revision", source_revision=10)
    assert judged(wrong_source, OTHER_SCOPE) is STORE


# --- the clock ----------------------------------------------------------------------------------------------------

EXPIRIES = [("lease", "expires_at_ms"), ("session", "lease_expires_at_ms"), ("credential", "expires_at_ms")]


@pytest.mark.parametrize("column", EXPIRIES, ids=column_id)
def test_equal_is_expired(column: tuple[str, str]) -> None:
    """Lease, session and credential end at their expiry: the last good moment is 1 ms before."""
    row, name = column
    assert judged(valid.changed(row, **{name: NOW})) is MISMATCH
    assert judged(valid.changed(row, **{name: NOW + 1})) is None


def test_a_credential_begins_at_its_not_before() -> None:
    """`not_before` itself is good, 1 ms earlier is not."""
    assert judged(valid.changed("credential", not_before_at_ms=NOW)) is None
    assert judged(valid.changed("credential", not_before_at_ms=NOW + 1)) is MISMATCH


@pytest.mark.parametrize("column", EXPIRIES, ids=column_id)
def test_the_earliest_expiry_fences_the_delivery(column: tuple[str, str]) -> None:
    """The authority ends with the first of lease, session and credential to end."""
    row, name = column
    authority = verify(valid.principal(), valid.SESSION, valid.command(), Hold(valid.changed(row, **{name: NOW + 1})))
    assert authority.expires_at_ms == NOW + 1


def test_a_draining_session_is_good() -> None:
    """A session that takes no new work still finishes what it has."""
    assert judged(valid.changed("session", status="draining")) is None


async def permit_of(snapshot: Snapshot = valid.SNAPSHOT) -> Permit:
    """A permit for this world."""
    hold = Hold(snapshot)
    return await commit(hold, verify(valid.principal(), valid.SESSION, valid.command(), hold), ())


@pytest.mark.parametrize("column", EXPIRIES, ids=column_id)
async def test_a_permit_is_fenced_by_elapsed_time(column: tuple[str, str]) -> None:
    """Store time plus elapsed monotonic time must be before the first expiry; equal is too late (contract 6.7)."""
    row, name = column
    permit = await permit_of(valid.changed(row, **{name: NOW + 3000}))
    permit.check(valid.READ_AT)
    permit.check(valid.READ_AT + 2.999)
    for late in (3.0, 3.001, 1e6):
        with pytest.raises(Refused) as caught:
            permit.check(valid.READ_AT + late)
        assert caught.value.reason is MISMATCH


# --- nobody else --------------------------------------------------------------------------------------------------


def test_an_authority_is_made_by_verify_alone() -> None:
    """Whoever calls the class gets TypeError; an empty shell of it opens nothing."""
    make: Any = Authority
    for seal in (None, object(), True):
        with pytest.raises(TypeError, match="only verify"):
            make(seal, Tenure(), valid.principal(), valid.command(), valid.SNAPSHOT, NOW + 1)
    shell = object.__new__(Authority)
    with pytest.raises(AttributeError):
        shell.secret_refs  # noqa: B018


async def test_a_permit_is_made_by_commit_alone() -> None:
    """Whoever calls the class gets TypeError; an empty shell of it permits nothing."""
    hold = Hold()
    authority = verify(valid.principal(), valid.SESSION, valid.command(), hold)
    make: Any = Permit
    for seal in (None, object(), True):
        with pytest.raises(TypeError, match="only commit"):
            make(seal, authority)
    shell = object.__new__(Permit)
    with pytest.raises(AttributeError):
        shell.check(0.0)


@pytest.mark.parametrize("send", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"])
async def test_neither_is_ever_copied(send: Callable[[object], object]) -> None:
    """Neither copy nor pickle makes a second authority or permit."""
    hold = Hold()
    authority = verify(valid.principal(), valid.SESSION, valid.command(), hold)
    with pytest.raises(TypeError, match="never serialised"):
        send(authority)
    with pytest.raises(TypeError, match="never serialised"):
        send(await commit(hold, authority, ()))


def test_an_authority_is_dead_outside_its_hold() -> None:
    """Once the store's hold has ended no ref can be had from it (contract 6.7)."""
    hold = Hold()
    authority = verify(valid.principal(), valid.SESSION, valid.command(), hold)
    hold.tenure.open = False
    with pytest.raises(RuntimeError, match="outside"):
        authority.secret_refs  # noqa: B018
    with pytest.raises(RuntimeError, match="outside"):
        authority.bundle_refs  # noqa: B018


async def test_commit_gives_a_permit_and_ends_the_hold() -> None:
    """A confirmed COMMIT makes the permit, with the receipts written, and the authority is dead."""
    hold = Hold()
    authority = verify(valid.principal(), valid.SESSION, valid.command(), hold)
    given = (Receipt("name", "mark", ("1", "2")),)
    permit = await commit(hold, authority, given)
    assert hold.committed == [given]
    assert not hold.tenure.open
    assert (permit.attempt_id, permit.worker_id) == (valid.ATTEMPT, valid.WORKER)
    assert (permit.credential_id, permit.credential_version) == (valid.CREDENTIAL, valid.CREDENTIAL_VERSION)


@pytest.mark.parametrize("error", [Refused(STORE), KeyboardInterrupt(), OSError()], ids=["refused", "cancel", "error"])
async def test_without_a_confirmed_commit_there_is_no_permit(error: BaseException) -> None:
    """Whatever COMMIT raises is passed on, and the authority is dead all the same."""
    hold = Hold(error=error)
    authority = verify(valid.principal(), valid.SESSION, valid.command(), hold)
    with pytest.raises(type(error)):
        await commit(hold, authority, ())
    assert not hold.tenure.open
    with pytest.raises(RuntimeError, match="outside"):
        authority.secret_refs  # noqa: B018


async def test_no_lease_token_can_be_reached() -> None:
    """Neither an authority nor a permit leads to the lease token or its digest (contract 4 and 6.6)."""
    hold = Hold()
    authority = verify(valid.principal(), valid.SESSION, valid.command(), hold)
    assert leads_to(authority, valid.TOKEN.text)
    assert not leads_to(authority, *LEASE)
    assert not leads_to(await commit(hold, authority, ()), *LEASE)


def test_the_search_would_find_a_lease_token() -> None:
    """The search that finds nothing in an authority finds the token in a body and its digest in command and hold."""
    assert leads_to([{"x": valid.body()}], valid.LEASE_TOKEN)
    assert leads_to(valid.command(), valid.LEASE_DIGEST)
    assert leads_to(Hold(), valid.LEASE_DIGEST)
