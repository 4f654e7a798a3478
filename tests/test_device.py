"""What a rank sets for its device, seen from outside: in processes of their own."""

import os
import subprocess
import sys

import pytest

COMES_AND_GOES = """
import resource
import torch
from samestep.device import keep_freed_memory
{call}
def step():
    tensors = [torch.ones(1 << 20) for _ in range(4)]
for _ in range(5):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 20)
"""
PAGES = 4 * (4 << 20) / os.sysconf("SC_PAGE_SIZE")


def pages_asked_for_in_a_step(call, **env):
    text = subprocess.run(
        [sys.executable, "-c", COMES_AND_GOES.format(call=call)],
        env={**os.environ, **env}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return float(text)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have another malloc")
def test_memory_that_was_freed_is_used_again():
    assert pages_asked_for_in_a_step("keep_freed_memory()") < PAGES / 100


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have another malloc")
def test_limits_that_were_set_by_hand_stay():
    assert pages_asked_for_in_a_step("keep_freed_memory()", MALLOC_TRIM_THRESHOLD_="131072") > PAGES / 4
