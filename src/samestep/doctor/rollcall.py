"""Rollcall: the processes that a launcher started come to the first of them, or are missed by name.

The first listens, the others come. Whoever is not there in time is named: how long that is, is for the caller
to say. Knows launchers' variables as far as they tell on which machine a missing process should be.
"""

import os
import socket
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from samestep.doctor.facts import Facts
from samestep.doctor.link import listen, why
from samestep.doctor.wire import Channel
from samestep.errors import LaunchError
from samestep.launcher import Seat, host_of

PROTOCOL = "samestep doctor 1"
TRY_S = 2.0
"""One attempt at a connection; a packet that is lost is not sent again before the first second is over."""
PAUSE_S = 0.2
HELLO_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Attendant:
    """A process of the launcher's, with what it told and how it is talked to; the first talks to itself."""

    index: int
    facts: Facts
    port: int
    """Where it answers those that measure."""
    channel: Channel | None = None


@dataclass(kw_only=True)
class Roll:
    """Who came, by index, and who is missed, with the machine that it should be on where that is known."""

    present: dict[int, Attendant]
    missing: dict[int, str | None] = field(default_factory=dict)

    @property
    def nodes(self) -> list[Attendant]:
        """One process of each machine, the first."""
        first: dict[str, Attendant] = {}
        for _, attendant in sorted(self.present.items()):
            first.setdefault(attendant.facts.node, attendant)
        return list(first.values())

    def close(self) -> None:
        for attendant in self.present.values():
            if attendant.channel is not None:
                attendant.channel.__exit__(None, None, None)


def port_of(seat: Seat) -> int:
    """Where to come to: the launcher's port, or another that all can work out where it is in use."""
    if not seat.has_store:
        return seat.port
    return 15_000 + zlib.crc32(f"doctor {seat.port}".encode()) % 15_000


def call(seat: Seat, own: Attendant, *, within_s: float, env: Mapping[str, str] = os.environ) -> Roll:
    """As the first: wait until all have come, or the time is over."""
    roll = Roll(present={own.index: own})
    if seat.count == 1:
        return roll
    port = port_of(seat)
    try:
        listener = listen(port)
    except OSError as error:
        raise LaunchError(
            f"The {seat.count} processes were to meet at port {port} of {seat.address}, which cannot be used "
            f"({error.strerror}): set another MASTER_PORT for all of them."
        ) from None
    deadline = time.monotonic() + within_s
    with listener:
        while len(roll.present) < seat.count and (left := deadline - time.monotonic()) > 0:
            listener.settimeout(left)
            try:
                connection, _ = listener.accept()
                came = _welcomed(Channel(connection))
            except (OSError, KeyError, TypeError, ValueError, AttributeError):
                continue  # the time is over, or whoever came is none of ours
            if came.index in range(1, seat.count):
                roll.present[came.index] = came
    roll.missing = {index: host_of(index, env) for index in range(seat.count) if index not in roll.present}
    return roll


def come(seat: Seat, own: Attendant, *, within_s: float) -> Channel:
    """As one of the others: go to the first and say who is there; an OSError says why that cannot be."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            channel = Channel.to(seat.address, port_of(seat), within_s=TRY_S)
            break
        except OSError as error:
            is_hopeless = isinstance(error, socket.gaierror)
            if is_hopeless or time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_S)
    channel.send({"hello": PROTOCOL, "index": own.index, "port": own.port, "facts": own.facts.to_json()})
    return channel


def cannot_come(seat: Seat, own: Attendant, error: OSError) -> str:
    """The sentence of one that could not reach the first."""
    return (
        f"{own.facts.host} ({own.facts.address}, {seat}) cannot reach the first at "
        f"{seat.address}:{port_of(seat)}: {why(error)}."
    )


def _welcomed(channel: Channel) -> Attendant:
    told = channel.receive(within_s=HELLO_S)
    if told.get("hello") != PROTOCOL:
        raise ValueError(f"{channel.peer} said {told.get('hello')!r}")
    facts = Facts.of(told["facts"])
    return Attendant(index=int(told["index"]), facts=facts, port=int(told["port"]), channel=channel)
