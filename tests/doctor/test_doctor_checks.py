"""Each thing that can be wrong is found, alone, and nothing is found on machines that are sound."""

from dataclasses import replace

import pytest
from doctor_cases import FACTS, between, diagnosis, node

from samestep.doctor.checks import MOST_SKEW_S, judge


def causes(found):
    return [finding.cause for finding in judge(found)]


def test_nothing_is_wrong_with_sound_machines():
    assert judge(diagnosis()) == []


@pytest.mark.parametrize(
    ("found", "cause", "words"),
    [
        (diagnosis(num_processes=3, missing={2: "gpu03"}), "node-unreachable", "Process 2 of 3 on gpu03"),
        (
            diagnosis(links=[between(error="nothing came back")]),
            "node-unreachable",
            "gpu01 (10.0.0.1) cannot reach gpu02 (10.0.0.2): nothing came back",
        ),
        (diagnosis(node(0), node(1, gloo="eth7")), "interface-unusable", "GLOO_SOCKET_IFNAME is eth7"),
        (diagnosis(node(0), node(1, nccl="ib")), "interface-unusable", "NCCL_SOCKET_IFNAME is ib"),
        (diagnosis(node(0), node(1, gloo="lo")), "interface-unusable", "which no other machine reaches"),
        (diagnosis(exchange_error="rank 3 ended"), "exchange-failed", "rank 3 ended"),
        (
            diagnosis(node(0), replace(node(1), seen_s=None)),
            "folder-not-shared",
            "is not seen on gpu02 (10.0.0.2)",
        ),
        (
            diagnosis(node(0), node(1, versions={**FACTS.versions, "torch": "2.12.1"})),
            "versions-differ",
            "torch is not the same everywhere: 2.13.0 on gpu01 (10.0.0.1); 2.12.1 on gpu02 (10.0.0.2)",
        ),
        (
            diagnosis(node(0), node(1, versions={"python": "3.11.7", "samestep": "0.1.0"})),
            "versions-differ",
            "none on gpu02",
        ),
        (diagnosis(links=[between(clock_offset_s=-61.0)]), "clocks-differ", "61.00 s behind that of gpu01"),
        (diagnosis(node(0, num_cores=1), node(1)), "too-few-cores", "gives 1 core to 2 ranks"),
        (diagnosis(node(0, threads_asked=8), node(1)), "too-many-threads", "16 threads on 8 cores"),
        (diagnosis(node(0, open_files=256), node(1)), "limit-too-low", "open files (ulimit -n) is 256"),
        (diagnosis(node(0, processes=100), node(1)), "limit-too-low", "processes (ulimit -u) is 100"),
        (diagnosis(node(0, has_infiniband=True, num_gpus=2), node(1)), "limit-too-low", "(ulimit -l)"),
        (diagnosis(node(0, shared_memory_bytes=64 << 20), node(1)), "shared-memory-small", "64 MiB free"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_machine(found, cause, words):
    (finding,) = judge(found)
    assert finding.cause == cause
    assert words in finding.message
    assert finding.fix


@pytest.mark.parametrize(
    "found",
    [
        diagnosis(node(0), node(1, gloo="eth0", nccl="eth")),
        diagnosis(node(0), node(1, nccl="^docker")),
        diagnosis(node(0, gloo="lo"), links=[]),
        diagnosis(node(0), replace(node(1), seen_s=None), folder=None),
        diagnosis(links=[between(clock_offset_s=MOST_SKEW_S + 0.1, clock_bound_s=0.2)]),
        diagnosis(node(0, threads_asked=4), node(1)),
        diagnosis(node(0, has_infiniband=True, num_gpus=2, locked_bytes=None), node(1)),
        diagnosis(node(0, shared_memory_bytes=None), node(1)),
    ],
    ids=["chosen", "excluded", "one machine", "no folder", "clocks in doubt", "threads", "locked", "no shm"],
)
def test_what_only_looks_wrong_is_not_found(found):
    assert judge(found) == []


def test_a_link_is_slow_only_beside_others():
    three = [node(index) for index in range(3)]
    links = [between(0, 1), between(0, 2), between(1, 2, bytes_per_s=1e7)]
    (finding,) = judge(diagnosis(*three, links=links))
    assert finding.cause == "slow-link" and "gpu02 (10.0.0.2) and gpu03 (10.0.0.3)" in finding.message
    assert judge(diagnosis(links=[between(bytes_per_s=1e7)])) == []
    assert judge(diagnosis(*three, links=[replace(link, bytes_per_s=1e7) for link in links])) == []
