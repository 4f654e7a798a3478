"""Hearing: whether the other machines of a run are still there, told within seconds, whatever ranks wait for.

A rank that waits cannot tell a slow partner from a cut cable. So the launcher on each machine says twice a
second to the first one that it is there, by a datagram; the first answers. Who was heard and falls silent is
named, once, and so is its return. Nothing is ended: connections outlive a cut that is mended, and how long
ranks wait is the user's to decide. Where datagrams do not get through nobody is heard, and nothing is said.
"""

import contextlib
import json
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samestep.findings import Finding
from samestep.launch.machine import address_at, interface_at
from samestep.launcher import Seat
from samestep.record import read_json, write_json

EVERY_S = 0.5
AFTER_S = 5.0
"""Ten in a row that did not come: a machine that is merely busy sends one of them."""
_MOST_BYTES = 1024
_INTERFACES = Path("/sys/class/net")


@dataclass(frozen=True, kw_only=True)
class Silent:
    """A machine that has not been heard for `seconds`, and the ranks that it has."""

    seat: int
    host: str
    address: str
    seconds: float
    ranks: tuple[int, ...]
    link_down: str | None = None
    """The interface of this machine towards the others, if it is down."""

    @property
    def sentence(self) -> str:
        have = (
            f"rank{'s' * (len(self.ranks) > 1)} {', '.join(map(str, self.ranks))}"
            if self.ranks
            else "no rank"
        )
        here = f": the interface {self.link_down} here is down or has no link" if self.link_down else ""
        return (
            f"Nothing has been heard of {self.host} ({self.address}), which has {have}, for "
            f"{self.seconds:.0f} s{here}."
        )

    @property
    def finding(self) -> Finding:
        """The same for the record."""
        return Finding(
            cause="node-silent",
            message=self.sentence,
            evidence={
                "seat": self.seat,
                "host": self.host,
                "address": self.address,
                "seconds": round(self.seconds, 1),
                "ranks": list(self.ranks),
                "link_down": self.link_down,
            },
            fix="Look at the network between the machines, and whether that one still runs. If it comes back "
            "before --timeout is over, the run goes on by itself; else go on with --resume.",
        )


@dataclass(frozen=True, kw_only=True)
class HeardAgain:
    """The end of a silence that was told."""

    host: str
    address: str
    seconds: float

    @property
    def sentence(self) -> str:
        return f"{self.host} ({self.address}) is heard again after {self.seconds:.0f} s."


@dataclass(kw_only=True)
class _Other:
    host: str
    address: str
    heard_at: float
    is_told: bool = False


class Hearing:
    """The first launcher's ear; where there are no others to hear it is deaf and costs nothing."""

    def __init__(self, folder: Path, seat: Seat) -> None:
        self._others: dict[int, _Other] = {}
        self._socket: socket.socket | None = None
        self._interface: str | None = None
        self._token = secrets.token_hex(8)
        if seat.count == 1:
            return
        self._interface = interface_at(seat)
        self._socket = _datagrams()
        self._socket.bind(("", 0))
        path = _place(folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"port": self._socket.getsockname()[1], "token": self._token})

    def look(self, now: float, ranks_at: Callable[[int], Sequence[int]]) -> list[Silent | HeardAgain]:
        """What is new at `now`; `ranks_at` tells the ranks of a seat. To be called every now and then."""
        news: list[Silent | HeardAgain] = []
        for seat, told in self._received():
            before = self._others.pop(seat, None)
            if before is not None and before.is_told:
                seconds = now - before.heard_at
                news.append(HeardAgain(host=before.host, address=before.address, seconds=seconds))
            if told.get("bye"):
                continue
            host, address = str(told.get("host")), str(told.get("address"))
            self._others[seat] = _Other(host=host, address=address, heard_at=now)
        for seat, other in self._others.items():
            if not other.is_told and now - other.heard_at > AFTER_S:
                other.is_told = True
                news.append(
                    Silent(
                        seat=seat,
                        host=other.host,
                        address=other.address,
                        seconds=now - other.heard_at,
                        ranks=tuple(ranks_at(seat)),
                        link_down=self._interface if _is_down(self._interface) else None,
                    )
                )
        return news

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _received(self) -> list[tuple[int, dict[str, Any]]]:
        """All that has come and is ours; each is answered."""
        found: list[tuple[int, dict[str, Any]]] = []
        while self._socket is not None:
            try:
                data, sender = self._socket.recvfrom(_MOST_BYTES)
            except OSError:  # nothing more has come, or the network says that an answer did not arrive
                break
            told = _object(data)
            if told.get("token") == self._token and isinstance(told.get("seat"), int):
                found.append((told["seat"], told))
                with contextlib.suppress(OSError):
                    self._socket.sendto(json.dumps({"token": self._token}).encode(), sender)
        return found


class Beating:
    """What another launcher does to be heard: call `beat` every now and then, and `close` at the end."""

    def __init__(self, folder: Path, seat: Seat, *, host: str) -> None:
        self._path = _place(folder)
        self._first = _resolved(seat.address)
        self._own = {"seat": seat.index, "host": host, "address": address_at(seat)}
        self._socket = _datagrams()
        self._where: Mapping[str, Any] | None = None
        self._heard_at: float | None = None
        self._next = 0.0

    def beat(self, now: float) -> None:
        """Say that this machine is there, if it is time to."""
        if now < self._next:
            return
        self._next = now + EVERY_S
        if self._heard_at is None:
            # what an earlier attempt left is replaced by the first, and then not read again: the file system
            # may be behind the very link that is cut
            self._where = read_json(self._path) or self._where
        if self._hears_the_first():
            self._heard_at = now
        self._send({})

    def is_cut_off(self, now: float) -> bool:
        """Whether the first was heard, and then fell silent."""
        return self._heard_at is not None and now - self._heard_at > AFTER_S

    def close(self) -> None:
        """Say that this machine leaves in good order; more than once, since datagrams may be lost."""
        for _ in range(3):
            self._send({"bye": True})
        self._socket.close()

    def _send(self, more: Mapping[str, Any]) -> None:
        if self._where is not None:
            told = {"token": self._where["token"], **self._own, **more}
            with contextlib.suppress(OSError):  # as long as the network is down
                self._socket.sendto(json.dumps(told).encode(), (self._first, int(self._where["port"])))

    def _hears_the_first(self) -> bool:
        is_heard = False
        with contextlib.suppress(OSError):  # nothing more has come
            while self._where is not None:
                is_heard |= _object(self._socket.recv(_MOST_BYTES)).get("token") == self._where["token"]
        return is_heard


def _place(folder: Path) -> Path:
    return folder / "agent" / "hearing.json"


def _datagrams() -> socket.socket:
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.setblocking(False)
    return datagrams


def _resolved(name: str) -> str:
    """The address of a machine, asked for once: names may be behind the very link that is cut."""
    try:
        return socket.gethostbyname(name)
    except OSError:
        return name


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _is_down(interface: str | None) -> bool:
    """Whether the system says that an interface has no link."""
    try:
        return (_INTERFACES / str(interface) / "operstate").read_text().strip() in ("down", "lowerlayerdown")
    except OSError:
        return False
