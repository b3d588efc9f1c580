"""A witness of a sidecar's traffic: every frame on the far end of its only link, seen from outside."""

import socket
import struct
import threading
from collections import Counter
from typing import Final, Self

_ALL: Final = 0x0003
_IPV4, _ARP = 0x0800, 0x0806
_TCP: Final = 6
_SYN, _ACK = 0x02, 0x10


class Witness:
    """Notes who opened a connection to whom, and frames of any other protocol."""

    def __init__(self, link: str) -> None:
        """Watch this link, once entered."""
        self._link = link
        self.opened: Counter[tuple[str, str, int]] = Counter()
        """Connections by opener, peer and the peer's port."""
        self.other: Counter[str] = Counter()
        """Frames that are neither TCP over IPv4 nor ARP."""

    def __enter__(self) -> Self:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL))
        self._socket.bind((self._link, 0))
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _watch(self) -> None:
        while True:
            try:
                self.see(self._socket.recv(256))
            except OSError:  # closed, or the link is gone
                return

    def see(self, frame: bytes) -> None:
        """Note one Ethernet frame; its first 256 bytes are enough."""
        (kind,) = struct.unpack_from("!H", frame, 12)
        if kind == _ARP:
            return
        if kind != _IPV4 or frame[23] != _TCP:
            self.other[f"0x{kind:04x}" if kind != _IPV4 else f"ip protocol {frame[23]}"] += 1
            return
        begin = 14 + (frame[14] & 0x0F) * 4
        flags = frame[begin + 13]
        if flags & _SYN and not flags & _ACK:
            (port,) = struct.unpack_from("!H", frame, begin + 2)
            self.opened[socket.inet_ntoa(frame[26:30]), socket.inet_ntoa(frame[30:34]), port] += 1
