"""Renewal that does not bite, on a real `serve`: leaf and key are swapped under load, and nothing is lost by it."""

import os
import shutil
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from sidecar import devcerts
from tests.kit.pki import pki, server
from tests.kit.stand import Stand, Wire, make_stand
from tests.kit.waiting import wait_for

NAMES: Final = ("tls.key", "tls.crt", "ca.crt")
VARIABLES: Final = ("PRIVATE_KEY", "CERTIFICATE", "CLIENT_CA")


class Projected:
    """The identity's directory as the kubelet keeps it: every renewal is one swap of `..data`."""

    def __init__(self, stand: Stand) -> None:
        """Fill a first generation and name its files to `serve`."""
        self._directory = stand.directory / "projected"
        self._directory.mkdir(mode=0o755)
        self._count = 0
        self.renew()
        for name, variable in zip(NAMES, VARIABLES, strict=True):
            (self._directory / name).symlink_to(f"..data/{name}")
            stand.environment[f"QL3_WORKER_INGRESS_TLS_{variable}_FILE"] = str(self._directory / name)

    def renew(self) -> None:
        """Put a new leaf with a new key in place, and remove the old generation at once."""
        self._count += 1
        pair, generation = server(pki().root), self._directory / f"..{self._count}"
        generation.mkdir()
        contents = (pair.key_pem, pair.chain_pem, pki().ca_pem)
        for name, data in zip(NAMES, contents, strict=True):
            devcerts.write(generation / name, data)
        link = self._directory / "..data"
        old = os.readlink(link) if link.is_symlink() else None
        (self._directory / "..data_tmp").symlink_to(generation.name)
        (self._directory / "..data_tmp").rename(link)
        if old is not None:
            shutil.rmtree(self._directory / old)


@dataclass
class Workers:
    """Workers that ask all the while, some on kept connections and some on fresh ones; everything is counted."""

    stand: Stand
    ended: threading.Event = field(default_factory=threading.Event)
    answers: Counter[str] = field(default_factory=Counter)
    handshakes: int = 0
    lost: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def kept(self) -> None:
        """Ask on one connection until it is told to end, then on the next."""
        while not self.ended.is_set():
            with self._connect() as wire:
                while self._ask(wire) and not self.ended.is_set():
                    pass

    def fresh(self) -> None:
        """Ask once on each connection."""
        while not self.ended.is_set():
            with self._connect() as wire:
                self._ask(wire)

    def _connect(self) -> Wire:
        wire = self.stand.wire()
        with self._lock:
            self.handshakes += 1
        return wire

    def _ask(self, wire: Wire) -> bool:
        """Ask once; tell whether the connection goes on."""
        wire.send(self.stand.request())
        answer = wire.answer()
        with self._lock:
            self.answers[answer.code] += 1
        return answer.header("connection") is None

    def run(self, how: str) -> None:
        """Do one of these until told to end; note what goes wrong."""
        try:
            getattr(self, how)()
        except (OSError, EOFError) as error:
            self.lost.append(f"{how}: {error!r}")


def storm(stand: Stand, *, renewals: int, handshakes: int) -> Workers:
    """Renew as often as asked, and until so many handshakes were made; no worker may notice."""
    projected = Projected(stand)
    stand.start(QL3_SECRET_SIDECAR_MAX_IN_FLIGHT_PER_CREDENTIAL="64")
    # Written once and not by several threads.
    stand.pki.client_context(stand.pki.client, stand.directory)
    workers = Workers(stand)
    threads = [threading.Thread(target=workers.run, args=(how,)) for how in ("kept", "kept", "fresh", "fresh")]
    for thread in threads:
        thread.start()
    try:
        for number in range(1, renewals + 1):
            projected.renew()
            wait_for(lambda count=number: stand.metric("identity_reloads_total") == count)  # type: ignore[misc]
        end = time.monotonic() + 60
        while workers.handshakes < handshakes and not workers.lost:
            assert time.monotonic() < end, "too few handshakes"
            time.sleep(0.05)
    finally:
        workers.ended.set()
        for thread in threads:
            thread.join()
    assert workers.lost == []
    assert set(workers.answers) == {"delivered"}
    wait_for(lambda: stand.metric("connections") == 0)
    assert stand.metric('requests_total{code="delivered"}') == workers.answers["delivered"]
    assert stand.metric('requests_total{code="unanswered"}') == 0
    for cause in ("handshake_failed", "handshake_timeout", "handshake_evicted"):
        assert stand.metric(f'silent_closes_total{{cause="{cause}"}}') == 0, cause
    assert stand.stderr() == ""
    return workers


def test_renewals_under_load_lose_nothing(tmp_path: Path) -> None:
    """While the leaf is renewed again and again every handshake is made and every delivery comes."""
    with make_stand(tmp_path / "stand") as stand:
        workers = storm(stand, renewals=6, handshakes=100)
        assert workers.answers["delivered"] >= 100


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_hundred_renewals_under_load_lose_nothing(tmp_path: Path) -> None:
    """A hundred renewals, at least a thousand handshakes and as many deliveries: none is lost (issue 4)."""
    with make_stand(tmp_path / "stand") as stand:
        workers = storm(stand, renewals=100, handshakes=1000)
        assert workers.handshakes >= 1000
        assert workers.answers["delivered"] >= 1000
