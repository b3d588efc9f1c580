"""Nothing under the root is opened before authority is given: the kernel is the witness, and the metric agrees."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from provider.outcomes import Reason, Stage
from sidecar import devcerts
from tests.kit.inotify import OpenWitness
from tests.kit.stand import make_stand, value_of
from tests.kit.surface import Surface, without
from tests.kit.waiting import wait_for

LATER = (Stage.PROVIDER, Stage.DEADLINE, Stage.INTERNAL)
BEFORE_THE_PROVIDER = {reason for reason in Reason if reason.value.stage not in LATER} | {Reason.DEADLINE}
REFS = 3
PER_PEER = 3


class Refusals:
    """Every refusal that is decided before the provider, made on one sidecar."""

    def __init__(self, surface: Surface) -> None:
        self.surface, self.stand = surface, surface.stand

    def _ask(self, reason: Reason, **changed: Any) -> Callable[[], None]:
        kept = {key: changed.pop(key) for key in ("pair", "retry_after") if key in changed}

        def act() -> None:
            self.surface.ask(self.stand.request(**changed), reason, **kept)

        return act

    def _inside(self, context: Callable[[], AbstractContextManager[object]], reason: Reason) -> Callable[[], None]:
        def act() -> None:
            with context():
                self.surface.ask(self.stand.request(), reason)

        return act

    @contextmanager
    def _changed(self, table: str, **columns: object) -> Iterator[None]:
        row = self.stand.world.rows[table]
        self.stand.world.change(table, **columns)
        yield
        self.stand.world.change(table, **{name: row[name] for name in columns})

    def _malformed(self) -> None:
        self.surface.ask(b"POST /x HTTP/1.0\r\nhost: a\r\n\r\n", Reason.MALFORMED)

    def _revoked(self) -> None:
        peer = self.surface.peer()
        with self.stand.wire(peer) as wire:
            wire.send(self.stand.request(b"{}"))
            self.surface.read(wire, Reason.COMMAND)
            crl = self.stand.pki.crl_pem(peer, number=2)
            devcerts.write(self.stand.directory / "tls" / "ca.crl", crl)
            wait_for(lambda: self.stand.metric("identity_reloads_total") == 1)
            wire.send(self.stand.request())
            self.surface.read(wire, Reason.PEER_NOT_GOOD)

    def _shielded(self) -> None:
        peer = self.surface.peer()
        for _ in range(PER_PEER):
            self._ask(Reason.UNAUTHENTICATED, token="ql3w_x", pair=peer)()
        self._ask(Reason.SHIELDED, pair=peer, retry_after=True)()

    def _full(self) -> None:
        second = self.surface.second_credential()
        with self.surface.holding(2, body=b"{", reason=Reason.JSON):
            self._ask(Reason.CREDENTIAL_IN_FLIGHT_LIMIT, retry_after=True)()
            with self.surface.holding(1, second, body=b"{", reason=Reason.JSON):
                self._ask(Reason.IN_FLIGHT_LIMIT, retry_after=True)()

    def _late(self, reason: Reason) -> None:
        with self.stand.wire() as wire:
            wire.send(self.stand.request(b"", headers={"content-length": "5"}))
            self.surface.read(wire, reason)

    def __call__(self, late: Reason) -> Iterator[tuple[set[Reason], Callable[[], None]]]:
        """Yield the reasons that an act shows, and the act. `late`: what a body that never comes meets here."""
        body = self.stand.world.body_bytes
        yield {Reason.MALFORMED}, self._malformed
        yield {Reason.EXPECTATION}, self._ask(Reason.EXPECTATION, headers={"expect": "100-continue"})
        yield {Reason.PEER_NOT_GOOD, Reason.COMMAND}, self._revoked
        yield {Reason.INVALID_TARGET}, self._ask(Reason.INVALID_TARGET, target="*", method="OPTIONS")
        yield {Reason.OUTSIDE_API}, self._ask(Reason.OUTSIDE_API, target="/elsewhere")
        yield {Reason.UNAUTHENTICATED, Reason.SHIELDED}, self._shielded
        yield {Reason.METHOD}, self._ask(Reason.METHOD, method="GET")
        yield {Reason.CREDENTIAL_IN_FLIGHT_LIMIT, Reason.IN_FLIGHT_LIMIT, Reason.JSON}, self._full
        yield {Reason.UNKNOWN_WORKER_PATH}, self._ask(Reason.UNKNOWN_WORKER_PATH, target="/api/v3/x")
        for reason, table in (
            (Reason.CREDENTIAL_STORE, "worker_credentials"),
            (Reason.AUDIT_STORE, "security_audit_events"),
            (Reason.AUTHORITY_STORE, "run_attempts"),
        ):
            yield {reason}, self._inside(partial(without, self.stand, table), reason)
        yield {Reason.CONTENT_ENCODING}, self._ask(Reason.CONTENT_ENCODING, headers={"content-encoding": "gzip"})
        yield {Reason.NO_LENGTH}, self._ask(Reason.NO_LENGTH, body=b"", headers={"content-length": None})
        yield {Reason.DECLARED_TOO_LARGE}, self._ask(Reason.DECLARED_TOO_LARGE, headers={"content-length": "70000"})
        yield {Reason.CONTENT_TYPE}, self._ask(Reason.CONTENT_TYPE, headers={"content-type": None})
        yield {late}, lambda: self._late(late)
        scope = body(secretRefs=[self.stand.world.refs[0].text])
        yield {Reason.SECRET_SCOPE_MISMATCH}, self._ask(Reason.SECRET_SCOPE_MISMATCH, body=scope)
        fence = {Reason.AUTHORITY_MISMATCH}
        yield fence, self._ask(Reason.AUTHORITY_MISMATCH, body=body(leaseToken="x" * 40))
        for table, columns in (
            ("runs", {"cancel_requested_at_ms": 1}),
            ("run_attempts", {"status": "running"}),
            ("run_dispatch_leases", {"expires_at_ms": 1}),
            ("worker_sessions", {"status": "closed"}),
        ):
            yield fence, self._inside(partial(self._changed, table, **columns), Reason.AUTHORITY_MISMATCH)
        malformed = partial(self._changed, "task_execution_revisions", plan_json="{")
        yield {Reason.AUTHORITY_STORE}, self._inside(malformed, Reason.AUTHORITY_STORE)


@pytest.mark.parametrize(("layout", "timeout_ms", "late", "not_here"), [
    ("flat", "15000", Reason.BODY_TIMEOUT, Reason.DEADLINE),
    ("linked", "900", Reason.DEADLINE, Reason.BODY_TIMEOUT),
])  # fmt: skip
def test_nothing_is_opened_before_authority(
    layout: str, timeout_ms: str, late: Reason, not_here: Reason, tmp_path: Path
) -> None:
    """For every refusal decided before the provider no file is opened; for deliveries witness and metric agree."""
    stand = make_stand(tmp_path / "stand", refs=REFS)
    directories = [stand.root]
    if layout == "linked":
        for ref in stand.world.refs:
            (stand.root / ref.file_name).unlink()
        directories.append(stand.link({ref: value_of(n) for n, ref in enumerate(stand.world.refs)}))
    crl = stand.directory / "tls" / "ca.crl"
    devcerts.write(crl, stand.pki.crl_pem())
    stand.environment["QL3_WORKER_INGRESS_TLS_CLIENT_CRL_FILE"] = str(crl)
    with Surface(stand) as surface:
        stand.start(
            QL3_WORKER_INGRESS_REQUEST_TIMEOUT_MS=timeout_ms,
            QL3_WORKER_INGRESS_AUTH_RATE_PER_PEER=str(PER_PEER),
            QL3_WORKER_INGRESS_MAX_IN_FLIGHT="3",
            QL3_SECRET_SIDECAR_MAX_IN_FLIGHT_PER_CREDENTIAL="2",
        )
        opened_at_start = stand.metric("material_opens_total")
        with OpenWitness(*directories) as witness:
            shown: set[Reason] = set()
            for reasons, act in Refusals(surface)(late):
                act()
                assert witness.names() == [], reasons
                shown |= reasons
            assert stand.metric("material_opens_total") == opened_at_start
            # A process that ends is watched in tests/test_process.py, one without a provider has no root.
            assert shown == BEFORE_THE_PROVIDER - {not_here, Reason.NOT_ADMITTING, Reason.PROVIDER_DISABLED}
            stand.checks()
            assert [name for name in witness.names() if name] == []
            seen_before = witness.opens()
            for _ in range(3):
                surface.ask(stand.request(), None)
            _agree(surface, witness, seen_before, opened_at_start, 3 * REFS)
            # A refusal by the provider opens files, too, and counts them.
            (stand.root / stand.world.refs[-1].file_name).resolve().chmod(0o444)
            surface.ask(stand.request(), Reason.MATERIAL_UNAVAILABLE)
            _agree(surface, witness, seen_before, opened_at_start, 4 * REFS)


def _agree(surface: Surface, witness: OpenWitness, seen_before: int, opened_before: float, files: int) -> None:
    counted = surface.stand.metric("material_opens_total") - opened_before
    assert counted == files
    names = [name for name in witness.names()[seen_before:] if name and name != "..data"]
    assert len(names) == files
    assert set(names) == {ref.file_name for ref in surface.stand.world.refs}
