"""A TCP proxy of our own between a store and its server, which loses what it is told to lose."""

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

_HARD = struct.pack("ii", 1, 0)
"""SO_LINGER of no time at all: closing is a reset."""


class TcpProxy:
    """Listens on a port of 127.0.0.1 and forwards each connection to another one. A context manager."""

    def __init__(self, port: int) -> None:
        """Forward to this port; `port` of the proxy is known at once."""
        self._to = port
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.deaf = False
        """While true, whatever arrives from either side is lost, and the connections stay open."""
        self.refuses = False
        """While true, new connections are reset."""
        self.sent: Callable[[bytes], None] = lambda _data: None
        """Sees what the client sends before it is forwarded."""
        self.mute_server = False
        """While true, what the server answers is lost; it gets what the client sends."""
        self._ending = threading.Lock()
        self._ended = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.refuses:
                    _reset(client)
                    continue
                try:
                    server = socket.create_connection(("127.0.0.1", self._to))
                except OSError:
                    _reset(client)
                    continue
                for sock in (client, server):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._ending:
                    if self._ended:
                        _reset(client)
                        _reset(server)
                        return
                    self._pairs.append((client, server))
                threading.Thread(target=self._pump, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._pump, args=(server, client, False), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, from_client: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if from_client:
                    self.sent(data)
                if not self.deaf and (from_client or not self.mute_server):
                    sink.sendall(data)
        with suppress(OSError):
            # What stays open on the other side of a network that is lost is not for us to end.
            if not self.deaf:
                sink.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        """Reset every connection on both sides; new ones are taken."""
        while self._pairs:
            for sock in self._pairs.pop():
                _reset(sock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        with self._ending:
            self._ended = True
        self.cut()


def _reset(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _HARD)
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
