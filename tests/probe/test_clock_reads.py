"""Reads of clocks by the program, with and without waiting for a device."""

import time

import pytest
import torch
from torch import nn
from watching import seen, watching

from samestep.observed import Step


def names_of_events(folder, in_step, num_steps=3):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(folder):
        for _ in range(num_steps):
            model(torch.ones(1, 2)).sum().backward()
            in_step()
            optimizer.step()
    return [{event.name for event in row.events} for row in seen(folder, Step)]


@pytest.mark.parametrize("clock", ["time", "perf_counter", "monotonic", "perf_counter_ns"])
def test_a_clock_that_the_program_reads_is_noted_in_each_step(tmp_path, clock):
    before = getattr(time, clock)
    steps = names_of_events(tmp_path, lambda: [getattr(time, clock)() for _ in range(5)])
    assert len(steps) == 3 and all("clock-read" in names for names in steps)
    assert getattr(time, clock) is before


def test_clocks_that_libraries_read_do_not_count(tmp_path):
    def timed_by_a_library():
        with torch.profiler.profile():
            pass

    assert not any("clock-read" in names for names in names_of_events(tmp_path, timed_by_a_library))


def test_waiting_for_a_device_is_noted(tmp_path, monkeypatch):
    # there may be none here: what counts is that the program asked
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    steps = names_of_events(tmp_path, lambda: torch.cuda.synchronize())
    assert all("synchronize" in names for names in steps)
