"""Wire: JSON objects and plain bytes between two processes, each of which may vanish at any time.

A frame is its length in four bytes and one JSON object. Whatever comes is data: nothing of it is run, and
what is no frame, or too long for one, ends the connection. All that can go wrong is an OSError.
"""

import json
import socket
import struct
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

_LENGTH = struct.Struct("!I")
_MOST_BYTES = 1 << 20
_ALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 5, "TCP_USER_TIMEOUT": 15_000}
"""An end that does not answer for 15 s is lost; in seconds, a count, and milliseconds."""
_PIECE = memoryview(bytes(1 << 20))


class Channel:
    """One connection; use it in a `with`."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _ALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._buffer = memoryview(bytearray(len(_PIECE)))

    @classmethod
    def to(cls, address: str, port: int, *, within_s: float) -> "Channel":
        """A connection to a process that listens."""
        return cls(socket.create_connection((address, port), timeout=within_s))

    def __enter__(self) -> "Channel":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._socket.close()

    @property
    def peer(self) -> str:
        """The address at the other end."""
        return str(self._socket.getpeername()[0]).removeprefix("::ffff:")

    def send(self, value: Mapping[str, Any]) -> None:
        data = json.dumps(value).encode()
        self._socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self, *, within_s: float | None) -> dict[str, Any]:
        """The next object; a TimeoutError if nothing of it comes in time, None is for ever."""
        self._socket.settimeout(within_s)
        (length,) = _LENGTH.unpack(self._take(_LENGTH.size))
        if length > _MOST_BYTES:
            raise ConnectionError(f"{self.peer} sent {length} bytes at once; it is no samestep doctor")
        try:
            value = json.loads(self._take(length))
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise ConnectionError(f"{self.peer} sent what is no JSON object; it is no samestep doctor")
        return value

    def ask(self, value: Mapping[str, Any], *, within_s: float) -> dict[str, Any]:
        """The answer to one object."""
        self._socket.settimeout(within_s)
        self.send(value)
        return self.receive(within_s=within_s)

    def pour(self, num_bytes: int) -> None:
        """Send so many bytes of no meaning."""
        for start in range(0, num_bytes, len(_PIECE)):
            self._socket.sendall(_PIECE[: num_bytes - start])

    def swallow(self, num_bytes: int) -> float:
        """Receive so many; the seconds from now to the last."""
        began, left = time.perf_counter(), num_bytes
        while left:
            received = self._socket.recv_into(self._buffer, min(left, len(self._buffer)))
            if received == 0:
                raise ConnectionError(f"{self.peer} closed the connection")
            left -= received
        return time.perf_counter() - began

    def _take(self, num_bytes: int) -> bytes:
        parts, left = [], num_bytes
        while left:
            part = self._socket.recv(left)
            if not part:
                raise ConnectionError("the other end closed the connection")
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
