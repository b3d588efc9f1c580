"""A worker process to be scanned: it fetches when told to, leaves the context, and waits.

    python -m tests.kit.client_target PORT DIRECTORY

DIRECTORY holds a worker's files. Each line of standard input is a number of fetches to make; the answer is one line of
JSON, the number of deliveries and of errors among them. It keeps nothing of a delivery, and a broken one is tried again
at once so that a test need not wait.
"""

import gc
import json
import sys
import time
from pathlib import Path

from sidecar import client_retry
from sidecar.client import BlockingClient, FetchError, Offer
from tests.kit.worker import WorkerFiles


def main() -> None:
    """Serve standard input until its end."""
    client_retry.FIRST_PAUSE_S = client_retry.LONGEST_PAUSE_S = 0.002  # type: ignore[misc]
    files = WorkerFiles(Path(sys.argv[2]))
    offer = Offer.read(str(files.offer))
    with BlockingClient(f"https://localhost:{sys.argv[1]}", **files.identity()) as client:
        for line in sys.stdin:
            delivered = errors = length = 0
            for _ in range(int(line)):
                try:
                    with client.fetch(offer, deadline=time.monotonic() + 20) as secrets:
                        length += sum(map(len, secrets.values()))
                        delivered += 1
                except FetchError:
                    errors += 1
            gc.collect()
            print(json.dumps({"delivered": delivered, "errors": errors, "bytes": length}), flush=True)


if __name__ == "__main__":
    main()
