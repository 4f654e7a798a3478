"""Line: what the conductor of a comparison and a rank say to each other, one JSON object a message."""

import json
import socket
from typing import Any

Message = dict[str, Any]


class Closed(Exception):
    """The other side is gone."""


class Line:
    """One end of a connection between two processes of this machine."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._file = connection.makefile("rb")

    @classmethod
    def to(cls, path: str) -> "Line":
        """Connect to the conductor that listens at `path`."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        return cls(connection)

    def say(self, **message: Any) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def hear(self, timeout_s: float | None = None) -> Message:
        """The next message; raises Closed at the end and TimeoutError if none comes."""
        self._socket.settimeout(timeout_s)
        text = self._file.readline()
        if not text:
            raise Closed
        message: Message = json.loads(text)
        return message

    def close(self) -> None:
        self._file.close()
        self._socket.close()
