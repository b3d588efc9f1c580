"""What a worker on a host has: offer, credential, certificate, key and CA as files, and arguments that name them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sidecar import devcerts
from sidecar.devcerts import Pair
from tests.kit.pki import pki
from tests.kit.world import World


@dataclass(frozen=True)
class WorkerFiles:
    """The worker's five files; all private."""

    directory: Path

    @property
    def offer(self) -> Path:
        """The offer file."""
        return self.directory / "offer.json"

    @property
    def credential(self) -> Path:
        """The credential file."""
        return self.directory / "token"

    @property
    def cert(self) -> Path:
        """The client certificate and its chain."""
        return self.directory / "worker.crt"

    @property
    def key(self) -> Path:
        """The client's private key."""
        return self.directory / "worker.key"

    @property
    def ca(self) -> Path:
        """The CA of the server's certificate."""
        return self.directory / "ca.crt"

    def identify(self, pair: Pair) -> None:
        """Put a client certificate and its key in place."""
        devcerts.write(self.cert, pair.chain_pem)
        devcerts.write(self.key, pair.key_pem)

    def write_offer(self, offer: Mapping[str, object]) -> None:
        """Put an offer in place."""
        devcerts.write(self.offer, json.dumps(offer).encode())

    def identity(self) -> dict[str, str]:
        """Return the keyword arguments of a client."""
        return {
            "cert": str(self.cert),
            "key": str(self.key),
            "ca": str(self.ca),
            "credential": str(self.credential),
        }

    def arguments(self, port: int) -> list[str]:
        """Return the arguments of `fetch` and `exec`."""
        return [
            *("--url", f"https://localhost:{port}", "--offer-file", str(self.offer)),
            *("--credential-file", str(self.credential), "--cert", str(self.cert)),
            *("--key", str(self.key), "--ca", str(self.ca)),
        ]


def write_worker(directory: Path, world: World) -> WorkerFiles:
    """Write the files of the world's worker."""
    directory.mkdir(parents=True, exist_ok=True)
    files = WorkerFiles(directory)
    files.write_offer(world.offer)
    files.identify(pki().client)
    devcerts.write(files.credential, world.token.encode() + b"\n")
    devcerts.write(files.ca, pki().root.pem)
    return files
