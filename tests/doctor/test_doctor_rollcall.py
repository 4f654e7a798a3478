"""Who comes to the first is known, who does not is named, and whoever else comes is sent away."""

import contextlib
import socket
import threading
import time

import pytest
from doctor_cases import FACTS

from samestep.doctor.examination import rounds
from samestep.doctor.rollcall import Attendant, call, cannot_come, come, port_of
from samestep.errors import LaunchError
from samestep.launch.machine import free_port
from samestep.launcher import Seat, host_of, hosts_in


def seats(count=3):
    port = free_port()
    return [
        Seat(
            launcher="srun", index=index, count=count, local_index=0, local_count=1,
            address="127.0.0.1", port=port,
        )
        for index in range(count)
    ]  # fmt: skip


def attendant(index):
    return Attendant(index=index, facts=FACTS, port=1000 + index)


@contextlib.contextmanager
def coming(*those):
    """The others, each on its way in a thread."""
    channels = []
    threads = [
        threading.Thread(
            target=lambda seat=seat: channels.append(come(seat, attendant(seat.index), within_s=5))
        )
        for seat in those
    ]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()
    for channel in channels:
        channel.__exit__(None, None, None)


def test_all_come_and_are_known_by_what_they_said():
    first, *others = seats()
    with coming(*others), contextlib.closing(call(first, attendant(0), within_s=5)) as roll:
        assert {index: one.port for index, one in roll.present.items()} == {0: 1000, 1: 1001, 2: 1002}
        assert roll.missing == {}
        assert [one.index for one in roll.nodes] == [0], "all are on one machine"


def test_who_does_not_come_is_missed_by_name_and_soon():
    first, second, _ = seats()
    env = {"SLURM_STEP_NODELIST": "gpu[07-09]", "SLURM_STEP_TASKS_PER_NODE": "1(x3)"}
    began = time.monotonic()
    with coming(second), contextlib.closing(call(first, attendant(0), within_s=1, env=env)) as roll:
        assert roll.missing == {2: "gpu09"}
    assert time.monotonic() - began < 3


def test_a_stranger_is_none_of_those_who_are_awaited():
    first, second = seats(2)

    def knock():
        until = time.monotonic() + 5  # as long as the first may wait; then nobody is there any more
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x02{}"):
            with contextlib.suppress(OSError):
                while time.monotonic() < until:
                    try:
                        stranger = socket.create_connection(("127.0.0.1", first.port))
                    except ConnectionRefusedError:
                        time.sleep(0.01)
                        continue
                    stranger.sendall(data)
                    stranger.close()
                    break

    knocking = threading.Thread(target=knock)
    knocking.start()
    with coming(second), contextlib.closing(call(first, attendant(0), within_s=5)) as roll:
        assert sorted(roll.present) == [0, 1]
    knocking.join()


def test_a_port_that_is_taken_is_refused_with_its_number():
    first, _ = seats(2)
    with (
        socket.create_server(("", first.port)),
        pytest.raises(LaunchError, match=f"port {first.port}.*MASTER_PORT"),
    ):
        call(first, attendant(0), within_s=1)


def test_one_that_cannot_come_says_where_to_and_why():
    _, second = seats(2)
    began = time.monotonic()
    with pytest.raises(ConnectionRefusedError) as error:
        come(second, attendant(1), within_s=0.5)
    assert time.monotonic() - began < 3
    said = cannot_come(second, attendant(1), error.value)
    assert f"cannot reach the first at 127.0.0.1:{second.port}" in said and "10.0.0.1" in said


def test_a_launcher_that_uses_its_port_itself_has_another_for_the_doctor():
    seat = Seat(
        launcher="torchrun", index=0, count=2, local_index=0, local_count=1, address="x", port=29500,
        has_store=True,
    )  # fmt: skip
    assert port_of(seat) != 29500 and port_of(seat) == port_of(seat)


@pytest.mark.parametrize("count", range(1, 9))
def test_all_pairs_meet_once_and_nobody_twice_in_a_round(count):
    turns = rounds(count)
    pairs = [pair for turn in turns for pair in turn]
    assert sorted(pairs) == [(a, b) for a in range(count) for b in range(a + 1, count)]
    for turn in turns:
        members = [one for pair in turn for one in pair]
        assert len(members) == len(set(members))


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("gpu[003-005,12],login1", ["gpu003", "gpu004", "gpu005", "gpu12", "login1"]),
        ("n1", ["n1"]),
        ("a[1-2]-ib,b", ["a1-ib", "a2-ib", "b"]),
        ("", []),
    ],
)
def test_machines_of_a_list(nodes, expected):
    assert hosts_in(nodes) == expected


def test_the_machine_of_another_process():
    env = {"SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_TASKS_PER_NODE": "2,1"}
    assert [host_of(index, env) for index in range(4)] == ["n1", "n1", "n2", None]
    assert host_of(0, {**env, "RANK": "0"}) is None, "torchrun below srun has its own numbers"
    assert host_of(0, {}) is None
