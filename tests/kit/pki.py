"""The certificates of the valid world: one root, one intermediate, a server, clients of both CAs, and their CRLs."""

import datetime
import re
import ssl
from base64 import b64decode, encodebytes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sidecar import devcerts
from sidecar.devcerts import Pair, issue, make_crl
from sidecar.identityfiles import IdentityFiles

WORKER = "worker-1"


@dataclass(frozen=True, slots=True)
class Pki:
    """All pairs of the world. `client` is WORKER's, issued by the intermediate; `direct` is issued by the root."""

    root: Pair
    intermediate: Pair
    server: Pair
    client: Pair
    direct: Pair
    other_root: Pair
    stranger: Pair
    """A client of `other_root`, which is no client CA here."""

    @property
    def ca_pem(self) -> bytes:
        """The client CA file: root and intermediate."""
        return self.root.pem + self.intermediate.pem

    def crl_pem(self, *revoked: Pair, number: int = 1) -> bytes:
        """The CRL file: one CRL of each CA, with these pairs revoked by whoever issued them."""
        return b"".join(
            devcerts.make_crl(
                ca,
                [one.serial for one in revoked if one.certificate.issuer == ca.certificate.subject],
                number=number,
            )
            for ca in (self.root, self.intermediate)
        )

    def write(self, directory: Path, *, crl: bytes | None = None) -> IdentityFiles:
        """Write the four files (three without `crl`) into a directory and return their paths."""
        directory.mkdir(parents=True, exist_ok=True)
        contents = {"tls.key": self.server.key_pem, "tls.crt": self.server.chain_pem, "ca.crt": self.ca_pem}
        if crl is not None:
            contents["ca.crl"] = crl
        for name, data in contents.items():
            devcerts.write(directory / name, data)
        return files_in(directory, crl=crl is not None)

    def client_context(self, pair: Pair | None, directory: Path) -> ssl.SSLContext:
        """A client's context that trusts the root and shows `pair`, whose files are written into `directory`."""
        context = ssl.create_default_context(cadata=self.root.pem.decode())
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if pair is not None:
            path = directory / f"{pair.serial:x}.pem"
            if not path.exists():
                directory.mkdir(parents=True, exist_ok=True)
                devcerts.write(path, pair.chain_pem + pair.key_pem)
            context.load_cert_chain(path)
        return context


def files_in(directory: Path, *, crl: bool) -> IdentityFiles:
    """Return the paths that `Pki.write` uses, as the configuration would hold them."""
    return IdentityFiles(
        private_key=str(directory / "tls.key"),
        certificate=str(directory / "tls.crt"),
        client_ca=str(directory / "ca.crt"),
        client_crl=str(directory / "ca.crl") if crl else None,
    )


def put(path: str | None, data: bytes) -> None:
    """Write one file as a projector would, with mode 0600."""
    devcerts.write(Path(str(path)), data)


def put_server(files: IdentityFiles, pair: Pair) -> None:
    """Write key and certificate of a server."""
    put(files.private_key, pair.key_pem)
    put(files.certificate, pair.chain_pem)


def put_trust(files: IdentityFiles, *authorities: Pair, crl: bytes | None = None) -> None:
    """Write a client CA file and a CRL file, by default one that fits it."""
    put(files.client_ca, b"".join(one.pem for one in authorities))
    put(files.client_crl, crl or b"".join(make_crl(one, number=9) for one in authorities))


def server(ca: Pair, not_before: datetime.datetime | None = None) -> Pair:
    """Issue a server leaf for localhost."""
    return issue(ca, "localhost", server=True, dns=["localhost"], not_before=not_before)


def der_blocks(pem: bytes) -> list[tuple[str, bytes]]:
    """What the blocks of a PEM file hold, each with its label."""
    blocks = re.finditer(rb"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END", pem, re.DOTALL)
    return [(block[1].decode(), b64decode(block[2])) for block in blocks]


def armoured(label: str, der: bytes) -> bytes:
    """A PEM block."""
    return f"-----BEGIN {label}-----\n{encodebytes(der).decode()}-----END {label}-----\n".encode()


def oddly_named(der: bytes) -> bytes:
    """Every common name of a certificate or CRL as a BIT STRING, of which the parser makes no name."""
    common_name = b"\x06\x03\x55\x04\x03"
    assert common_name + b"\x0c" in der
    return der.replace(common_name + b"\x0c", common_name + b"\x03")


def shake(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    """Speak TLS in memory until both sides are done; return the server's side. Raises ssl.SSLError of either side."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    waiting = [theirs, ours]
    while waiting:
        side = waiting.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(side)
    return ours


@cache
def pki() -> Pki:
    """Return the world of this test process; it is made once and nothing changes it."""
    root = devcerts.make_ca("test root", path_len=1)
    intermediate = devcerts.make_ca("test intermediate", issuer=root, path_len=0)
    other_root = devcerts.make_ca("other root")
    return Pki(
        root=root,
        intermediate=intermediate,
        server=devcerts.issue(root, "localhost", server=True, dns=["localhost"], ip=["127.0.0.1", "::1"]),
        client=devcerts.issue(intermediate, WORKER, client=True, dns=[WORKER], uri=[f"urn:ql3:worker:{WORKER}"]),
        direct=devcerts.issue(root, "worker-2", client=True, dns=["worker-2"]),
        other_root=other_root,
        stranger=devcerts.issue(other_root, "stranger", client=True),
    )
