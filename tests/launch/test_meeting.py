"""The rendezvous of members, without any rank: three of them in threads, at a real store."""

import threading
import time

import pytest
from torch.distributed.elastic.rendezvous import RendezvousClosedError

from samestep.launch.elastic import meeting
from samestep.launch.elastic.meeting import HERE, LOST, Meeting, TCPStore
from samestep.launch.limits import Limits


def meet(stores, limits):
    """The (rank, size) that each member gets, and the seconds that it took."""
    meetings = [Meeting(store, limits) for store in stores]
    met = {}

    def join(number):
        info = meetings[number].next_rendezvous()
        met[number] = (info.rank, info.world_size)

    began = time.monotonic()
    threads = [threading.Thread(target=join, args=(number,)) for number in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return met, time.monotonic() - began


def test_those_that_are_left_meet_at_once(monkeypatch):
    monkeypatch.setattr(meeting.dynamic_rendezvous, "_delay", meeting.dynamic_rendezvous._delay)
    meeting.hasten()
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
        Meeting(stores[0], limits).next_rendezvous()
