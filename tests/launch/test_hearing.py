"""Machines that fall silent are named once and in seconds, and so is their return; nobody else is."""

import contextlib
import socket
import time

import pytest

from samestep.launch.hearing import AFTER_S, EVERY_S, Beating, HeardAgain, Hearing, Silent
from samestep.launcher import Seat
from samestep.record import read_json


def seat(index, count=2):
    return Seat(
        launcher="x", index=index, count=count, local_index=0, local_count=1, address="127.0.0.1", port=1
    )


@pytest.fixture
def pair(tmp_path):
    hearing = Hearing(tmp_path, seat(0))
    beating = Beating(tmp_path, seat(1), host="gpu02")
    with contextlib.closing(hearing):
        yield hearing, beating


def looked(hearing, now, *, until=lambda news: True):
    """What is new; datagrams take a moment, also on one machine."""
    deadline = time.monotonic() + 5
    while True:
        news = hearing.look(now, lambda index: [2 * index, 2 * index + 1])
        if until(news) or time.monotonic() > deadline:
            return news
        time.sleep(0.01)


def heard(hearing, beating, now):
    beating.beat(now)
    deadline = time.monotonic() + 5
    while not any(other.heard_at == now for other in hearing._others.values()):
        looked(hearing, now)
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_silence_is_told_once_with_its_machine_and_ranks_and_so_is_its_end(pair):
    hearing, beating = pair
    heard(hearing, beating, 100.0)
    assert looked(hearing, 100.0 + AFTER_S) == []
    (silent,) = looked(hearing, 100.0 + AFTER_S + 0.1)
    assert isinstance(silent, Silent)
    assert silent.sentence == ("Nothing has been heard of gpu02 (127.0.0.1), which has ranks 2, 3, for 5 s.")
    assert silent.finding.cause == "node-silent" and silent.finding.evidence["ranks"] == [2, 3]
    assert looked(hearing, 110.0) == []
    beating.beat(112.0)
    (again,) = looked(hearing, 112.0, until=bool)
    assert isinstance(again, HeardAgain) and again.sentence.endswith("is heard again after 12 s.")


def test_who_goes_on_beating_is_never_silent(pair):
    hearing, beating = pair
    for beat in range(40):
        heard(hearing, beating, 10.0 + beat * EVERY_S)
        assert looked(hearing, 10.0 + beat * EVERY_S) == []


def test_who_left_in_good_order_is_not_missed(pair):
    hearing, beating = pair
    heard(hearing, beating, 10.0)
    beating.close()
    deadline = time.monotonic() + 5
    while hearing._others:
        assert looked(hearing, 10.1) == [] and time.monotonic() < deadline
    assert looked(hearing, 100.0) == []


def test_who_leaves_after_a_silence_that_was_told_is_heard_again(pair):
    hearing, beating = pair
    heard(hearing, beating, 10.0)
    (silent,) = looked(hearing, 20.0)
    assert isinstance(silent, Silent)
    beating.close()
    (again,) = looked(hearing, 21.0, until=bool)
    assert isinstance(again, HeardAgain) and again.seconds == 11.0
    assert looked(hearing, 100.0) == []


def test_another_knows_that_it_is_cut_off_once_the_first_is_not_heard_any_more(pair):
    hearing, beating = pair
    assert not beating.is_cut_off(1e6), "who never heard the first does not miss it"
    heard(hearing, beating, 10.0)
    time.sleep(0.05)  # the answer is on its way
    heard(hearing, beating, 10.0 + EVERY_S)
    assert not beating.is_cut_off(10.0 + EVERY_S + AFTER_S)
    hearing.close()
    beating.beat(11.5)
    assert beating.is_cut_off(12.0 + AFTER_S)


def test_who_was_never_heard_is_not_missed(pair):
    hearing, _ = pair
    assert looked(hearing, 1e6) == []


def test_words_of_an_earlier_attempt_and_of_strangers_count_for_nothing(tmp_path):
    earlier = Hearing(tmp_path, seat(0))
    stale = Beating(tmp_path, seat(1), host="gpu02")
    stale.beat(0.0)
    earlier.close()
    with contextlib.closing(Hearing(tmp_path, seat(0))) as hearing:
        place = read_json(tmp_path / "agent" / "hearing.json")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for data in (b"\xff", b"[]", b"{}", b'{"token": "x", "seat": 1}'):
                stranger.sendto(data, ("127.0.0.1", place["port"]))
            time.sleep(0.1)
        assert looked(hearing, 1.0) == [] and hearing._others == {}
        heard(hearing, stale, 2.0)  # it has read the new place


def test_a_run_on_one_machine_listens_to_nobody(tmp_path):
    hearing = Hearing(tmp_path, seat(0, count=1))
    assert hearing.look(1e6, lambda index: []) == []
    assert not (tmp_path / "agent").exists()
