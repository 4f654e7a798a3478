"""Different hardware or versions in one world are said, with the ranks; equal machines are not mentioned."""

import torch

import worlds
from samestep.train import machines
from samestep.train.machines import mixed

A100 = {
    "device": "NVIDIA A100",
    "memory_bytes": 40 * 2**30,
    "clock_limit_mhz": 1410,
    "processor": "EPYC",
    "cores": 64,
}
T4 = A100 | {"device": "Tesla T4", "memory_bytes": 15 * 2**30, "clock_limit_mhz": 1590}
NOW = {"torch": "2.13.0", "python": "3.12.1"}


def test_the_odd_ranks_are_named_with_what_they_have():
    (finding,) = mixed([A100, A100, A100, T4], [NOW] * 4)
    assert finding.cause == "mixed-hardware"
    assert "device NVIDIA A100 on ranks 0, 1, 2, Tesla T4 on rank 3" in finding.message
    assert "memory 40.0 GiB on ranks 0, 1, 2, 15.0 GiB on rank 3" in finding.message
    assert "clock limit 1410 MHz on ranks 0, 1, 2, 1590 MHz on rank 3" in finding.message
    assert "processor" not in finding.message and "--gpu-type" in finding.fix
    assert finding.evidence["device"] == {"NVIDIA A100": [0, 1, 2], "Tesla T4": [3]}


def test_other_versions_are_a_finding_of_their_own():
    (finding,) = mixed([A100] * 2, [NOW, NOW | {"torch": "2.12.0"}])
    assert finding.cause == "versions-differ"
    assert "torch 2.13.0 on rank 0, 2.12.0 on rank 1" in finding.message and "python" not in finding.message


def test_equal_machines_are_not_mentioned_though_firmware_keeps_a_little_memory():
    assert mixed([A100] * 3, [NOW] * 3) == []
    kept = A100 | {"memory_bytes": int(40 * 2**30 * 0.97)}
    assert mixed([A100, kept], [NOW] * 2) == []
    assert mixed([A100, A100 | {"cores": 62}], [NOW] * 2) != [], "a count is exact"


def test_what_only_one_machine_tells_is_a_difference():
    (finding,) = mixed([A100, A100 | {"clock_limit_mhz": None}], [NOW] * 2)
    assert "clock limit 1410 MHz on rank 0, not known on rank 1" in finding.message


def causes_of(world, odd):
    kept = machines.hardware_of
    if world.rank == odd:
        machines.hardware_of = lambda device: kept(device) | {"processor": "of another time"}
    try:
        world.reset(0)
        for _ in range(2):  # a second model is made on the same machines
            world.replicate(torch.nn.Linear(2, 2))
        return [(finding.cause, finding.message) for finding in world.findings]
    finally:
        machines.hardware_of = kept


def test_all_ranks_of_a_world_know_which_differ():
    told = worlds.run(2, causes_of, odd=1)
    assert told[0] == told[1] and [cause for cause, _ in told[0]] == ["mixed-hardware"]
    assert "of another time on rank 1" in told[0][0][1]


def test_a_world_on_one_machine_is_silent():
    assert worlds.run(2, causes_of, odd=None) == [[], []]
