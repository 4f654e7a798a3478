"""Link: how late, how fast and how far off in time another process is, by what goes to it and comes back.

One side answers (`Answering`), the other measures (`measure`). All is by one TCP connection and from Python:
a link above some ten Gbit/s is faster than that.

    latency        half of the shortest of many round trips of one byte, in bursts with pauses between them:
                   what disturbs one, a core that slept or was shared, need not disturb the next
    rate           bytes over seconds, the best of several streams: what disturbs one only makes it slower
    clock offset   the other's time less the middle of the round trip in which it was told, of the shortest;
                   it is off by half of that trip at most (Cristian, 1989)
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from samestep.doctor.wire import Channel

NUM_BURSTS, NUM_TRIPS = 5, 40
PAUSE_S = 0.02
NUM_CLOCK_TRIPS = 20
NUM_STREAMS = 3
STREAM_S = 0.25
"""A stream that takes as long is not mistaken for what buffers on the way hold."""
FIRST_BYTES, MOST_BYTES = 1 << 20, 1 << 30
SILENCE_S = 10.0
"""How long nothing may come before the other counts as lost."""

Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class Link:
    """The way to another machine and back; rates are of payload, each way by itself."""

    latency_s: float
    there_bytes_per_s: float
    back_bytes_per_s: float
    clock_offset_s: float
    clock_bound_s: float

    @property
    def bytes_per_s(self) -> float:
        """Of the slower way."""
        return min(self.there_bytes_per_s, self.back_bytes_per_s)

    def to_json(self) -> dict[str, float]:
        return asdict(self) | {"bytes_per_s": self.bytes_per_s}


class Answering:
    """Answers whoever measures, in threads of its own, until it is closed."""

    def __init__(self, *, clock: Clock = time.time) -> None:
        self._clock = clock
        self._listener = listen()
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, KeyError, TypeError), Channel(connection) as channel:
            while True:
                asked = channel.receive(within_s=SILENCE_S)
                if asked["ask"] == "time":
                    channel.send({"time": self._clock()})
                elif asked["ask"] == "echo":
                    for _ in range(asked["count"]):
                        channel.swallow(1)
                        channel.pour(1)
                elif asked["ask"] == "take":
                    channel.send({"seconds": channel.swallow(asked["bytes"])})
                else:
                    channel.pour(asked["bytes"])


def measure(address: str, port: int, *, connect_s: float, clock: Clock = time.time) -> Link:
    """The link to a process that is `Answering`; an OSError says why there is none."""
    with Channel.to(address, port, within_s=connect_s) as channel:
        offset_s, bound_s = _clock_offset(channel, clock)
        return Link(
            latency_s=_latency(channel),
            there_bytes_per_s=_rate(lambda count: _there(channel, count)),
            back_bytes_per_s=_rate(lambda count: _back(channel, count)),
            clock_offset_s=offset_s,
            clock_bound_s=bound_s,
        )


def _latency(channel: Channel) -> float:
    channel.send({"ask": "echo", "count": NUM_BURSTS * NUM_TRIPS})
    trips = []
    for _ in range(NUM_BURSTS):
        time.sleep(PAUSE_S)
        for _ in range(NUM_TRIPS):
            began = time.perf_counter()
            channel.pour(1)
            channel.swallow(1)
            trips.append(time.perf_counter() - began)
    return min(trips) / 2


def _clock_offset(channel: Channel, clock: Clock) -> tuple[float, float]:
    trips = []
    for _ in range(NUM_CLOCK_TRIPS):
        told, began = clock(), time.perf_counter()
        there = float(channel.ask({"ask": "time"}, within_s=SILENCE_S)["time"])
        trip = time.perf_counter() - began
        trips.append((trip, there - (told + trip / 2)))
    shortest, offset = min(trips)
    return offset, shortest / 2


def _rate(stream: Callable[[int], float]) -> float:
    num_bytes = FIRST_BYTES
    while (seconds := stream(num_bytes)) < STREAM_S and num_bytes < MOST_BYTES:
        num_bytes *= 2
    return num_bytes / min(seconds, *(stream(num_bytes) for _ in range(NUM_STREAMS - 1)))


def _there(channel: Channel, num_bytes: int) -> float:
    channel.send({"ask": "take", "bytes": num_bytes})
    channel.pour(num_bytes)
    return float(channel.receive(within_s=SILENCE_S)["seconds"])


def _back(channel: Channel, num_bytes: int) -> float:
    channel.send({"ask": "give", "bytes": num_bytes})
    return channel.swallow(num_bytes)


def listen(port: int = 0) -> socket.socket:
    """A socket at which other machines find this one; 0 is any port that is free."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, backlog=128, dualstack_ipv6=both)


def why(error: OSError) -> str:
    """In words, why there is no link."""
    if isinstance(error, socket.gaierror):
        return "its name leads to no address"
    if isinstance(error, TimeoutError):
        return "nothing came back: packets are lost on the way, or a firewall drops them"
    if isinstance(error, ConnectionRefusedError):
        return "it answers, but nobody listens there, or a firewall refuses"
    return error.strerror or str(error)
