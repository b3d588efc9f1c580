"""What `fetch` and `exec` share: arguments, and the fault and exit code for each error of the client (contract 9)."""

import argparse
import time
from typing import Final

from sidecar.cli.common import Exit, Fault, Parser, duration_ms
from sidecar.client_blocking import BlockingClient
from sidecar.client_errors import (
    CredentialInvalid,
    Denied,
    FetchError,
    InputUnusable,
    LeaseOver,
    OfferInvalid,
    OutOfTime,
    Tls,
    TlsFailed,
    Trouble,
    Unavailable,
    UnexpectedAnswer,
)
from sidecar.client_request import Origin

_MEND_INPUT: Final = {
    Trouble.MISSING: "Check its name.",
    Trouble.UNREADABLE: "Give this user the right to read it.",
    Trouble.NOT_REGULAR: "Name the file itself.",
    Trouble.OPEN_TO_OTHERS: "Set its mode with chmod 0600.",
    Trouble.TOO_LARGE: "Name the right file.",
}
_MEND_TLS: Final = {
    Tls.IDENTITY: "Check that --cert, --key and --ca are PEM, the key without a passphrase and the certificate's.",
    Tls.SERVER_UNTRUSTED: "Check that --ca holds the CA of the sidecar's certificate.",
    Tls.SERVER_NAME: "Use the name in the sidecar's certificate, or renew that certificate for this name.",
    Tls.SERVER_EXPIRED: "Renew the sidecar's certificate, or correct the clock.",
    Tls.CLIENT_REFUSED: "Check that --cert is not expired or revoked and comes from a CA that the sidecar trusts.",
    Tls.PROTOCOL: "Check that the URL is the sidecar's worker listener and that nothing in between ends TLS.",
}
_MEND_DENIED: Final = {
    400: "The sidecar does not understand the offer; check that both have the same version.",
    401: "Check that the credential is this worker's, not revoked and not expired.",
    409: "The attempt may not have these secrets now: its lease, session or run has moved on. Take a new offer.",
}


def configure(parser: Parser) -> None:
    """Add the arguments that name sidecar, offer, credential and identity."""
    parser.add_argument("--url", required=True, type=_origin, metavar="U", help="https://host:port of the sidecar")
    parser.add_argument("--offer-file", required=True, metavar="F", help="the offer, mode 0600")
    parser.add_argument("--credential-file", required=True, metavar="F", help="the worker's credential, mode 0600")
    parser.add_argument("--cert", required=True, metavar="F", help="the client certificate and its chain, PEM")
    parser.add_argument("--key", required=True, metavar="F", help="its private key, PEM, mode 0600")
    parser.add_argument("--ca", required=True, metavar="F", help="the CA of the sidecar's certificate, PEM")
    parser.add_argument(
        "--timeout", type=duration_ms, default=30_000, metavar="T", help="try for so long at most (default 30s)"
    )


def client(args: argparse.Namespace) -> BlockingClient:
    """Return the client that the arguments name; nothing is read or connected yet."""
    return BlockingClient(args.url, cert=args.cert, key=args.key, ca=args.ca, credential=args.credential_file)


def deadline(args: argparse.Namespace) -> float:
    """Return the end of `--timeout`, which begins now, on the clock of `time.monotonic`."""
    return time.monotonic() + int(args.timeout) / 1000


def fault(error: FetchError) -> Fault:
    """Return what to tell a person about a failed fetch, and the exit code of contract 9."""
    code, mend = _judge(error)
    tail = f" [request {error.request_id}]" if error.request_id else ""
    return Fault(code, str(error), mend + tail)


def _judge(error: FetchError) -> tuple[Exit, str]:
    match error:
        case OfferInvalid():
            return Exit.BAD_INPUT, "Use the file as the control plane wrote it."
        case CredentialInvalid():
            return Exit.BAD_INPUT, "The file must hold the token and one newline."
        case InputUnusable():
            return Exit.INPUT_UNREADABLE, _MEND_INPUT[error.trouble]
        case Unavailable(status=None):
            return Exit.UNREACHABLE, "Check the URL, the network and that the sidecar is running and ready."
        case Unavailable():
            return Exit.UNREACHABLE, "Try again later, and look at the sidecar's readiness and events."
        case LeaseOver():
            return Exit.LEASE_OVER, "Take a new offer, and check this machine's clock."
        case OutOfTime():
            return Exit.LEASE_OVER, "Allow more with --timeout, or take an offer whose lease lasts longer."
        case TlsFailed():
            return Exit.TLS, _MEND_TLS[error.cause]
        case Denied():
            return Exit.DENIED, _MEND_DENIED[error.status]
        case UnexpectedAnswer():
            return Exit.UNEXPECTED_ANSWER, "Check that the URL is the sidecar's worker listener."
    raise AssertionError("an error without an exit code")


def _origin(text: str) -> str:
    try:
        Origin.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text
