"""`secret-sidecar fetch`: fetch the secrets of an offer as a worker does; a thin front of the client."""

import argparse
import os
import sys

from provider import wire
from provider.memory import BufferPool
from sidecar.cli import worker
from sidecar.cli.common import Exit, Parser
from sidecar.client_errors import FetchError
from sidecar.client_offer import Offer
from sidecar.client_secrets import Secrets

_EXAMPLE = """\
example:
  secret-sidecar fetch --url https://sidecar.example:5801 --offer-file offer.json \\
    --credential-file token --cert worker.pem --key worker.key --ca ca.pem

prints one line for each secret: name, ref and bytes. The environment bundle, where the offer
has one, comes last and has no name.

exit codes: 0 fetched; 64 usage; 65 malformed offer or credential; 66 a file is missing,
unreadable or open to others; 69 unreachable or unavailable; 70 not the contracted answer;
75 lease over, or out of time; 76 TLS; 77 denied."""


def configure(parser: Parser) -> None:
    """Add the arguments."""
    worker.configure(parser)
    parser.add_argument(
        "--show", action="store_true", help="print the values too, each as a JSON string at the end of its line"
    )
    parser.epilog = _EXAMPLE


def run(args: argparse.Namespace) -> int:
    """Fetch and print. Raises Fault."""
    end = worker.deadline(args)
    try:
        offer = Offer.read(args.offer_file)
        with worker.client(args) as client, client.fetch(offer, deadline=end) as secrets:
            _print(offer, secrets, show=args.show)
    except FetchError as error:
        raise worker.fault(error) from None
    return int(Exit.DONE)


def _print(offer: Offer, secrets: Secrets, *, show: bool) -> None:
    command = offer.command
    rows = [(name, ref.text, secrets[name]) for name, ref in offer.environment]
    if secrets.bundle is not None:
        rows.append(("-", command.bundle_refs[0].text, secrets.bundle))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    sys.stdout.flush()
    for name, ref, value in rows:
        line = f"{name:<{widths[0]}}  {ref:<{widths[1]}}  {len(value):>5}"
        if show:
            _write_shown(f"{line}  ".encode(), value)
        else:
            print(line)


def _write_shown(line: bytes, value: memoryview) -> None:
    """Write the line and the value, as a JSON string so that a line stays one, without a copy that nobody wipes."""
    room = len(line) + 2 + wire.escaped_length(value) + 1
    with BufferPool(0).take(room) as buffer:
        at = len(line)
        buffer.view[:at] = line
        buffer.view[at : at + 1] = b'"'
        at = wire.put_escaped(buffer.view, at + 1, value)
        buffer.view[at : at + 2] = b'"\n'
        written = 0
        while written < room:
            written += os.write(sys.stdout.fileno(), buffer.view[written:])
