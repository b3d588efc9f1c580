"""The worker's side of mutual TLS: certificate, key and CA file, read again when they rotate (contract 5)."""

import ssl
from dataclasses import dataclass
from typing import Final

from sidecar.client_errors import Input, InputUnusable, Tls, TlsFailed
from sidecar.client_files import Stamp, stamp

_OP_CLEANSE_PLAINTEXT: Final = ssl.Options(0x2)
"""OpenSSL zeroes its read buffer behind every byte that was taken from it; `ssl` has no name for it."""
_PASSES: Final = 3
_EXPIRY_CODES: Final = frozenset({9, 10})
_NAME_CODES: Final = frozenset({62, 64})


@dataclass(frozen=True, slots=True)
class IdentityFiles:
    """Paths of the PEM files. The key may be readable by its group and by nobody else."""

    certificate: str
    key: str
    ca: str


class Identity:
    """The TLS context made of the files as they are now."""

    def __init__(self, files: IdentityFiles) -> None:
        """Reads nothing yet."""
        self._files = files
        self._stamps: tuple[Stamp, ...] = ()
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """Return the context for a next connection; the same object as long as no file changed.

        While files are being replaced and do not fit together, the last good context serves on. Raises InputUnusable
        or TlsFailed(IDENTITY) when there is none.
        """
        try:
            for _ in range(_PASSES):
                stamps = self._stat()
                if self._context is not None and stamps == self._stamps:
                    return self._context
                context = self._load()
                # Files of two generations that fit by chance, or a file cut short, are not taken for good.
                if self._stat() == stamps:
                    self._context, self._stamps = context, stamps
                    return context
            raise TlsFailed(Tls.IDENTITY)
        except (InputUnusable, TlsFailed):
            if self._context is None:
                raise
            return self._context

    def _stat(self) -> tuple[Stamp, ...]:
        files = self._files
        return (
            stamp(files.key, Input.KEY),
            stamp(files.certificate, Input.CERTIFICATE),
            stamp(files.ca, Input.CA),
        )

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
        context.options |= _OP_CLEANSE_PLAINTEXT
        context.hostname_checks_common_name = False
        try:
            context.load_verify_locations(self._files.ca)
            # An encrypted key must fail, not ask at the terminal.
            context.load_cert_chain(self._files.certificate, self._files.key, password=b"")
        except (OSError, ValueError):
            raise TlsFailed(Tls.IDENTITY) from None
        return context


def tls_failure(error: ssl.SSLError) -> TlsFailed:
    """Name the cause of a handshake, or of a first read, that TLS ended: codes only, no text of certificates."""
    if isinstance(error, ssl.SSLCertVerificationError):
        code = error.verify_code
        if code in _EXPIRY_CODES:
            return TlsFailed(Tls.SERVER_EXPIRED)
        return TlsFailed(Tls.SERVER_NAME if code in _NAME_CODES else Tls.SERVER_UNTRUSTED)
    reason = error.reason or ""
    refused = "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason or "ACCESS_DENIED" in reason)
    return TlsFailed(Tls.CLIENT_REFUSED if refused else Tls.PROTOCOL)
