"""The second ceiling: nginx, one worker, the same bytes over the same TLS, as far as this machine has it.

It answers a POST with a fixed body and reads no file, asks nobody and keeps no record. TLS 1.3, P-256 and a client
certificate are required, tickets and session cache are off and a connection ends after as many requests as the
product's. Whatever it cannot do stands in a sentence of the results instead of a figure.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from provider import limits

PLACES: Final = ("/usr/sbin", "/usr/local/sbin", "/usr/local/nginx/sbin", "/opt/nginx/sbin")
START_S: Final = 20.0
CONFIGURATION: Final = """
daemon off;
master_process on;
worker_processes 1;
pid {folder}/pid;
error_log stderr crit;
{user}
events {{ worker_connections 4096; }}
http {{
    access_log off;
    server_tokens off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests {requests};
    tcp_nodelay on;
    client_body_buffer_size 128k;
    server {{
        listen 127.0.0.1:{port} ssl;
        server_name localhost;
        ssl_protocols TLSv1.3;
        ssl_ecdh_curve prime256v1;
        ssl_session_tickets off;
        ssl_session_cache off;
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        ssl_client_certificate {client_ca};
        ssl_verify_client on;
        ssl_verify_depth 4;
        location / {{
            default_type "application/json; charset=utf-8";
            set $kib "{kib}";
            return 200 "{content}";
        }}
    }}
}}
"""


def program() -> str | None:
    """Return the path of nginx; None where there is none."""
    return shutil.which("nginx", path=os.pathsep.join((os.environ.get("PATH", os.defpath), *PLACES)))


def version() -> str:
    """Return what nginx says of itself, or in words that it is not here."""
    found = program()
    if found is None:
        return "not installed: not compared"
    said = subprocess.run([found, "-v"], capture_output=True, text=True, check=False).stderr
    return said.strip().removeprefix("nginx version: ")


@contextmanager
def nginx(environment: dict[str, str], length: int) -> Iterator[tuple[int, int] | None]:
    """Serve `length` bytes with the TLS files that `serve`'s variables name; yield process and port of the worker.

    Yields None where nginx is not installed. Raises RuntimeError, with what it said, when it does not start.
    """
    found = program()
    if found is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="bench-nginx-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        port = _free_port()
        (folder / "nginx.conf").write_text(
            CONFIGURATION.format(
                folder=folder,
                # Root's files are read before the worker gives root up; an ordinary user has nothing to give up.
                user="user root;" if os.geteuid() == 0 else "",
                requests=limits.REQUESTS_PER_CONNECTION,
                port=port,
                certificate=environment["QL3_WORKER_INGRESS_TLS_CERTIFICATE_FILE"],
                key=environment["QL3_WORKER_INGRESS_TLS_PRIVATE_KEY_FILE"],
                client_ca=environment["QL3_WORKER_INGRESS_TLS_CLIENT_CA_FILE"],
                # One word of a configuration holds at most 4 KiB.
                kib="v" * 1024,
                content="${kib}" * (length // 1024) + "v" * (length % 1024),
            )
        )
        command = [found, "-c", str(folder / "nginx.conf"), "-p", name, "-e", "stderr"]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as master:
            try:
                yield _worker(master), port
            finally:
                master.terminate()


def _worker(master: "subprocess.Popen[str]") -> int:
    end = time.monotonic() + START_S
    children = Path(f"/proc/{master.pid}/task/{master.pid}/children")
    while time.monotonic() < end and master.poll() is None:
        if found := children.read_text().split():
            return int(found[0])
        time.sleep(0.01)
    master.kill()
    said = master.stderr.read().strip().splitlines() if master.stderr else []
    raise RuntimeError(f"nginx did not start: {said[-1:]}")


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
