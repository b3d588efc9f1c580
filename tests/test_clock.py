"""A wall clock that is stepped under a real `serve`: bounds do not see it, what is judged by the time of day does."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from provider import limits
from sidecar import devcerts
from sidecar.devcerts import make_crl
from tests.kit.pki import pki
from tests.kit.stand import Stand, make_stand
from tests.kit.stepped import Clock
from tests.kit.waiting import wait_for

DAY_S: Final = 86_400.0
SLACK_S: Final = 6.0
GOOD: Final = {"admission": "ok", "authority": "ok", "root": "ok", "tls": "ok", "crl": "ok", "drain": "ok"}


@contextmanager
def served(directory: Path, crl_days: float = 1.0, **variables: str) -> Iterator[tuple[Stand, Clock]]:
    """Run a sidecar whose store's facts outlast the steps, whose CRLs last so long, and whose certificates a week."""
    stand, clock = make_stand(directory / "stand"), Clock(directory / "clock")
    for table, column in (
        ("worker_credentials", "expires_at_ms"), ("run_dispatch_leases", "expires_at_ms"),
        ("worker_sessions", "lease_expires_at_ms"),
    ):  # fmt: skip
        stand.world.change(table, **{column: int((time.time() + 400 * DAY_S) * 1000)})
    stand.world.change("worker_credentials", not_before_at_ms=0)
    devcerts.write(crl_file(stand), lists(crl_days, number=1))
    stand.environment["QL3_WORKER_INGRESS_TLS_CLIENT_CRL_FILE"] = str(crl_file(stand))
    with stand:
        stand.start(program=clock.program, **variables)
        yield stand, clock


def crl_file(stand: Stand) -> Path:
    """The CRL file of a stand."""
    return stand.directory / "tls" / "ca.crl"


def lists(days: float, number: int) -> bytes:
    """Return a CRL of each client CA that is current for so many days."""
    return b"".join(make_crl(ca, days=days, number=number) for ca in (pki().root, pki().intermediate))


def test_bounds_do_not_see_the_wall_clock(tmp_path: Path) -> None:
    """Stepped by a day to either side, no bound comes early or late: idle, body, and the shield's window."""
    with served(tmp_path, QL3_WORKER_INGRESS_AUTH_RATE_PER_PEER="2") as (stand, clock):
        guesser = devcerts.issue(pki().intermediate, "guesser", client=True)

        def idle() -> float:
            with stand.wire() as wire:
                wire.send(stand.request())
                assert wire.answer().status == 200
                began = time.monotonic()
                assert wire.ended(30)
                return time.monotonic() - began

        def body() -> float:
            with stand.wire() as wire:
                wire.send(stand.request()[:-1])
                began = time.monotonic()
                assert wire.answer().code == "body_timeout"
                return time.monotonic() - began

        def guess() -> str:
            with stand.wire(guesser) as wire:
                wire.send(stand.request(token="ql3w_nobody_x"))
                return wire.answer().code

        assert [guess(), guess()] == ["worker_authentication_required"] * 2
        with ThreadPoolExecutor(2) as threads:
            took = {"idle": threads.submit(idle), "body": threads.submit(body)}
            wait_for(lambda: stand.metric("in_flight") == 1 and stand.metric("connections") == 2)
            # The client is good for a week: a day on, nothing has become of it, and the shield's minute is not over.
            clock.step(DAY_S / 2)
            assert guess() == "authentication_rate_limited"
            wait_for(lambda: stand.metric("connections") == 2)
            clock.step(-DAY_S)
            seconds = {name: one.result() for name, one in took.items()}
        for name, bound in (("idle", limits.IDLE_S), ("body", limits.BODY_S)):
            assert bound - 0.2 <= seconds[name] < bound + SLACK_S, name
        assert stand.metric('silent_closes_total{cause="idle_timeout"}') == 1


def test_trust_follows_the_wall_clock(tmp_path: Path) -> None:
    """Certificates and lists are judged by the time of day, on a connection that is there too, whichever way it steps.

    Each gate that breaks by it is named alone in readiness, and is well again once the clock is.
    """
    with served(tmp_path) as (stand, clock):

        def expect(seconds: float, broken: set[str], code: str) -> None:
            with stand.wire() as kept:
                kept.send(stand.request())
                assert kept.answer().status == 200
                clock.step(seconds)
                assert stand.checks() == GOOD | dict.fromkeys(broken, "failed")
                assert stand.get("/readyz")[0] == (503 if broken else 200)
                kept.send(stand.request())
                answer = kept.answer()
                assert (answer.code, answer.header("connection")) == (code, None if code == "delivered" else "close")
            clock.step(0)
            assert stand.checks() == GOOD

        expect(DAY_S / 2, set(), "delivered")
        # The lists are over, the certificates are not.
        expect(2 * DAY_S, {"crl"}, "tls_context_reloaded")
        # Nothing is valid yet.
        expect(-2 * DAY_S, {"tls", "crl"}, "tls_context_reloaded")
        devcerts.write(crl_file(stand), lists(30, number=2))
        wait_for(lambda: stand.metric("identity_reloads_total") == 1)
        # Now the certificates are over first.
        expect(8 * DAY_S, {"tls"}, "tls_context_reloaded")
        before = stand.metric('certificate_expiry_seconds{kind="crl"}')
        clock.step(DAY_S)
        assert DAY_S - 60 < before - stand.metric('certificate_expiry_seconds{kind="crl"}') < DAY_S + 60


def test_files_are_taken_once_the_clock_is_right(tmp_path: Path) -> None:
    """What is of tomorrow is refused while it is, and taken without a further change once the clock is right."""
    with served(tmp_path, crl_days=30) as (stand, clock):
        clock.step(-DAY_S)
        devcerts.write(crl_file(stand), lists(30, number=2))
        stand.event("identity_rejected")
        assert stand.metric("identity_reloads_total") == 0
        clock.step(0)
        wait_for(lambda: stand.metric("identity_reloads_total") == 1)
        assert stand.ask().status == 200
