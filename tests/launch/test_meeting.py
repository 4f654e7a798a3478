"""The rendezvous of members, without any rank: three of them in threads, at a real store."""

import threading
import time
from datetime import datetime, timedelta

import pytest
from torch.distributed.elastic.rendezvous import RendezvousClosedError

from samestep.launch.elastic import meeting
from samestep.launch.elastic.meeting import HERE, LOST, Meeting, TCPStore
from samestep.launch.limits import Limits


def meet(stores, limits):
    """The (rank, size) that each member gets, and the seconds that it took."""
    return meet_again([Meeting(store, limits, number=number) for number, store in enumerate(stores)])


def meet_again(meetings):
    met = {}

    def join(number):
        info = meetings[number].next_rendezvous()
        met[number] = (info.rank, info.world_size)

    began = time.monotonic()
    threads = [threading.Thread(target=join, args=(number,)) for number in range(len(meetings))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return met, time.monotonic() - began


@pytest.fixture(autouse=True)
def _hastened(monkeypatch):
    monkeypatch.setattr(meeting.dynamic_rendezvous, "_delay", meeting.dynamic_rendezvous._delay)
    meeting.hasten()


def test_those_that_are_left_meet_at_once():
    server = TCPStore(HERE, 0, is_master=True, wait_for_workers=False)
    stores = [TCPStore(HERE, server.port, is_master=False) for _ in range(3)]
    limits = Limits(least=2, most=3)
    met, seconds = meet(stores, limits)
    assert sorted(met.values()) == [(0, 3), (1, 3), (2, 3)]
    # torch itself looks once a second; that it can be hastened hangs on names that it does not promise
    assert seconds < 0.9
    server.add(LOST, 1)
    met, _ = meet(stores[:2], limits)
    assert sorted(met.values()) == [(0, 2), (1, 2)]
    server.add(LOST, 1)
    with pytest.raises(RendezvousClosedError):
        Meeting(stores[0], limits, number=0).next_rendezvous()


class Tomorrow(datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.now(tz) + timedelta(days=1)


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "control: given up, as torch does"])
def test_a_clock_that_jumps_makes_nobody_lose_another(monkeypatch, is_kept):
    if not is_kept:
        monkeypatch.setattr(meeting, "_FOR_EVER_S", 15)
    server = TCPStore(HERE, 0, is_master=True, wait_for_workers=False)
    limits = Limits(most=2, restarts=1)
    stores = [TCPStore(HERE, server.port, is_master=False) for _ in range(2)]
    first, second = (Meeting(store, limits, number=number) for number, store in enumerate(stores))
    met, _ = meet_again([first, second])
    assert sorted(met.values()) == [(0, 2), (1, 2)]
    monkeypatch.setattr(meeting.dynamic_rendezvous, "datetime", Tomorrow)
    waiting = threading.Thread(target=first.next_rendezvous, daemon=True)
    waiting.start()
    deadline = time.monotonic() + 2
    while second.num_nodes_waiting() == 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert second.num_nodes_waiting() == (1 if is_kept else 0)
    second.next_rendezvous()
    waiting.join(20)
