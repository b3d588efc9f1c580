"""TLS over one accepted socket, driven by the event loop: handshake, reading, writing, the end (contract 4 and 5).

asyncio's transport for TLS tells neither what became of what was written nor that its socket is lost, cannot be held
back, and zeroes a quarter of a megabyte for each connection. Here ciphertext passes through one buffer for all
connections; plaintext of an answer is handed to OpenSSL in place, and no view of it outlives the call.
"""

import asyncio
import fcntl
import socket
import ssl
import struct
import termios
from contextlib import suppress
from enum import Enum, unique
from typing import Final, Protocol

READ_BYTES: Final = 32 << 10
"""Size of the buffer that `Transport` reads into: two records of TLS, twice a head."""
_RECORD_BYTES: Final = 16 << 10
"""Most plaintext of one record of TLS."""
_RESET: Final = struct.pack("ii", 1, 0)
_NOTHING: Final = memoryview(b"")


class User(Protocol):
    """Who is told. Never called again after `connection_lost`."""

    def connection_made(self) -> None:
        """The handshake is done."""

    def data_received(self, data: bytes) -> None:
        """Plaintext has arrived."""

    def connection_lost(self) -> None:
        """It is over; called once, also for a handshake that never ended well."""


@unique
class _State(Enum):
    HANDSHAKE = 1
    OPEN = 2
    CLOSING = 3
    """Nothing more is written or told. Our end is said, or what still waits to be sent goes first."""
    CLOSED = 4


class Transport:
    """One connection. For the event loop's thread; `buffer` may be shared by all of them."""

    __slots__ = (
        "_buffer", "_incoming", "_loop", "_number", "_outgoing", "_peer_ended", "_reading", "_socket", "_state", "_tls",
        "_user", "_waiting",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        user: User,
        accepted: socket.socket,
        context: ssl.SSLContext,
        buffer: memoryview,
    ) -> None:
        """Take a non-blocking socket over and wait for the client's first bytes. Raises OSError for want of memory."""
        self._loop = loop
        self._user = user
        self._socket = accepted
        self._number = accepted.fileno()
        self._buffer = buffer
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._state = _State.HANDSHAKE
        self._waiting = _NOTHING
        self._peer_ended = False
        self._reading = False
        self.let_in()

    @property
    def tls(self) -> ssl.SSLObject:
        """The engine, whose peer is known once the handshake is done."""
        return self._tls

    @property
    def unsent(self) -> int:
        """Ciphertext bytes that still wait in this process; once 0, the kernel delivers the rest by itself."""
        return len(self._waiting)

    @property
    def untaken(self) -> int:
        """Bytes of our answers that the peer's kernel has not acknowledged (ciphertext, kernel included)."""
        if self._state is _State.CLOSED:
            return 0
        try:
            queued: int = struct.unpack("i", fcntl.ioctl(self._number, termios.TIOCOUTQ, b"\0\0\0\0"))[0]
        except OSError:  # the socket is of no use any more: nobody will take more
            queued = 0
        return len(self._waiting) + queued

    @property
    def is_over(self) -> bool:
        """Whether nothing that is written will reach the peer."""
        return self._state is not _State.OPEN

    def peername(self) -> object:
        """Return the peer's address, None when it cannot be told any more."""
        try:
            return self._socket.getpeername()
        except OSError:
            return None

    def write(self, data: bytes | memoryview) -> bool:
        """Encrypt all of `data` and hand it to the kernel, as far as that takes it; the rest follows by itself.

        Returns False, and the connection is over, when nothing or not all of it can reach the peer.
        """
        if self._state is not _State.OPEN:
            return False
        try:
            done = self._tls.write(data)
            while done < len(data):
                done += self._tls.write(data[done:])
        except OSError:  # TLS errors are among them
            self.abort()
        else:
            self._flush()
        return self._state is _State.OPEN

    def hold_back(self) -> None:
        """Read nothing more, so that the peer's bytes stay in the kernel. Its end is not noticed then."""
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._number)

    def let_in(self) -> None:
        """Read from the socket again."""
        if not self._reading and not self._peer_ended and self._state is not _State.CLOSED:
            self._reading = True
            self._loop.add_reader(self._number, self._readable)

    def close(self) -> None:
        """Say the end, once everything is sent, and wait for the peer's; whoever bounds that calls `abort`."""
        if self._state is _State.HANDSHAKE:
            self.abort()
        elif self._state is _State.OPEN:
            self._state = _State.CLOSING
            with suppress(OSError):  # the peer has not said its end yet, is what this says
                self._tls.unwrap()
            self._flush()
            self._end_sending()
            self.let_in()

    def reset(self) -> None:
        """End the connection at once and drop what the kernel still holds of our answers; the peer sees a reset."""
        if self._state is not _State.CLOSED:
            with suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.abort()

    def abort(self) -> None:
        """Close the socket; the user is told in the loop's next turn."""
        if self._state is _State.CLOSED:
            return
        self._state = _State.CLOSED
        self.hold_back()
        if self._waiting:
            self._waiting = _NOTHING
            self._loop.remove_writer(self._number)
        self._socket.close()
        self._loop.call_soon(self._user.connection_lost)
        del self._user  # who holds us; let neither wait for the collector

    def _readable(self) -> None:
        try:
            count = self._socket.recv_into(self._buffer)
            if count == 0:
                self._end()
            elif self._state is not _State.CLOSING:
                self._incoming.write(self._buffer[:count])
                if self._state is _State.OPEN or self._shake():
                    self._read()
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # the socket's or TLS's
            self.abort()
        except BaseException:
            self.abort()
            raise

    def _shake(self) -> bool:
        """Go on with the handshake; return whether it is done."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except OSError:
            self._flush()  # the alert that says why
            raise
        self._flush()
        if self._state is _State.HANDSHAKE:
            self._state = _State.OPEN
            self._user.connection_made()
        return True

    def _read(self) -> None:
        # Asked only as long as there is something: an exception for nothing costs more than reading.
        while self._state is _State.OPEN and (self._incoming.pending or self._tls.pending()):
            try:
                data = self._tls.read(_RECORD_BYTES)
            except ssl.SSLWantReadError:
                break
            if not data:
                self._end()
                return
            self._user.data_received(data)
        if self._outgoing.pending and self._state is _State.OPEN:
            self._flush()  # TLS's own answers, to a change of keys for instance

    def _end(self) -> None:
        """The peer has ended its half and with it the connection: there is no half-closed state."""
        self._peer_ended = True
        self.hold_back()
        if self._waiting:
            self._state = _State.CLOSING  # what was given to the peer before still goes out
        else:
            self.abort()

    def _flush(self) -> None:
        data = self._outgoing.read()
        if self._waiting:
            self._waiting = memoryview(bytes(self._waiting) + data)
        elif data:
            self._send(memoryview(data))
            if self._waiting:
                self._loop.add_writer(self._number, self._writable)

    def _send(self, data: memoryview) -> None:
        try:
            self._waiting = data[self._socket.send(data) :]
        except (BlockingIOError, InterruptedError):
            self._waiting = data
        except OSError:
            self.abort()

    def _writable(self) -> None:
        self._send(self._waiting)
        if not self._waiting and self._state is not _State.CLOSED:
            self._loop.remove_writer(self._number)
            if self._peer_ended:
                self.abort()
            elif self._state is _State.CLOSING:
                self._end_sending()

    def _end_sending(self) -> None:
        if self._state is _State.CLOSING and not self._waiting:
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError:
                self.abort()
