"""The worst case is never better than the simulation, and is a closed form where links were measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.advise.cluster import read_cluster, shipped
from samestep.advise.simulate import Step, simulate
from samestep.advise.worst_case import LEAST_ACHIEVED, at_worst

CLUSTERS = [cluster for name in shipped() if (cluster := read_cluster(name)).between is not None]
STEPS = st.builds(
    Step, compute_s=st.floats(1e-4, 10), gradient_bytes=st.floats(1e4, 1e10), noise=st.sampled_from([0, 0.1])
)


@given(STEPS, st.sampled_from(CLUSTERS), st.integers(1, 4096))
def test_it_is_never_better(step, cluster, gpus):
    best, worst = simulate(step, cluster, gpus), simulate(*at_worst(step, cluster), gpus)
    assert worst.step_s >= best.step_s * (1 - 1e-12)
    assert gpus > 1 or worst.step_s == pytest.approx(best.step_s)


def test_a_link_that_somebody_measured_is_taken_at_that():
    """Two ranks, a ring: the bytes over the rate and two latencies, all after computing."""
    plain = read_cluster("rtx-pcie")
    measured = plain.model_copy(update={"inside": plain.inside.model_copy(update={"achieved": 0.5})})
    step = Step(compute_s=0.1, gradient_bytes=1e8)
    for cluster, achieved in ((measured, 0.5), (plain, LEAST_ACHIEVED)):
        link = cluster.inside
        due_s = 0.1 + 1e8 / (achieved * link.bytes_per_s) + 2 * link.latency_s
        assert simulate(*at_worst(step, cluster), 2).step_s == pytest.approx(due_s, rel=1e-12)
