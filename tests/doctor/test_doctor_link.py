"""Links by real connections on this machine: reached or not, clocks that are off, bytes that count."""

import contextlib
import socket
import threading
import time

import pytest

from samestep.doctor import link
from samestep.doctor.link import Answering, listen, measure, why
from samestep.doctor.wire import Channel


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """Streams need not be long where nothing is shaped."""
    monkeypatch.setattr(link, "STREAM_S", 0.01)


@contextlib.contextmanager
def answering(**options):
    with contextlib.closing(Answering(**options)) as server:
        yield server.port


def relayed(port, delay_s):
    """A port at which all that goes to another port, and comes back, is late by `delay_s` each way."""
    listener = listen()

    def pump(source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                time.sleep(delay_s)
                sink.sendall(data)
            sink.close()

    def serve():
        near, _ = listener.accept()
        far = socket.create_connection(("127.0.0.1", port))
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=pump, args=(near, far), daemon=True).start()
        threading.Thread(target=pump, args=(far, near), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return listener.getsockname()[1]


def test_a_machine_is_in_step_with_itself():
    with answering() as port:
        found = measure("127.0.0.1", port, connect_s=3)
    assert 0 < found.latency_s <= found.clock_bound_s, "an answer is more than an echo"
    assert abs(found.clock_offset_s) <= found.clock_bound_s
    assert found.bytes_per_s == min(found.there_bytes_per_s, found.back_bytes_per_s) > 0


def test_a_clock_that_is_off_is_told_within_its_bound():
    with answering(clock=lambda: time.time() + 7.5) as port:
        found = measure("127.0.0.1", port, connect_s=3)
    assert abs(found.clock_offset_s - 7.5) <= found.clock_bound_s


def test_a_link_that_is_late_has_its_latency(monkeypatch):
    monkeypatch.setattr(link, "NUM_TRIPS", 1)
    monkeypatch.setattr(link, "FIRST_BYTES", 1 << 16)
    monkeypatch.setattr(link, "MOST_BYTES", 1 << 16)
    with answering() as port:
        near = measure("127.0.0.1", port, connect_s=3)
        far = measure("127.0.0.1", relayed(port, 0.02), connect_s=3)
    # nothing sleeps for less than it is told, each way
    assert far.latency_s >= 0.02 > near.latency_s


def test_why_there_is_no_link():
    with listen() as closed:
        port = closed.getsockname()[1]
    with pytest.raises(ConnectionRefusedError) as refused:
        measure("127.0.0.1", port, connect_s=3)
    assert "nobody listens there" in why(refused.value)
    with pytest.raises(socket.gaierror) as unknown:
        measure("no-such-host.invalid", port, connect_s=3)
    assert "leads to no address" in why(unknown.value)
    assert "packets are lost" in why(TimeoutError())


def test_who_speaks_another_language_is_left_alone():
    with answering() as port:
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(100) == b""
        measure("127.0.0.1", port, connect_s=3)  # it still answers others


def test_what_is_no_object_ends_a_connection():
    with listen() as listener:
        there = socket.create_connection(("127.0.0.1", listener.getsockname()[1]))
        with there, Channel(listener.accept()[0]) as channel:
            there.sendall(b"\x00\x00\x00\x02[]")
            with pytest.raises(OSError, match="no JSON object"):
                channel.receive(within_s=3)
            there.sendall(b"\xff\xff\xff\xff")
            with pytest.raises(OSError, match="it is no samestep doctor"):
                channel.receive(within_s=3)
