"""The estimate and its interval: however it is moved, it lies in it, and what it knew stays in it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from samestep.advise.estimate import Estimate

SOME = st.floats(-3, 3)


@st.composite
def estimates(draw):
    low, log_s, high = sorted(draw(st.tuples(SOME, SOME, SOME)))
    return Estimate(*(np.array([value]) for value in (log_s, low, high)))


def is_ordered(found):
    return bool(found.low[0] <= found.log_s[0] + 1e-12 and found.log_s[0] <= found.high[0] + 1e-12)


@given(estimates(), SOME, st.one_of(SOME, st.just(-np.inf)))
def test_who_moves_it_widens_it_by_as_much(estimate, by, least):
    found = estimate.moved(np.array([by]), least=np.array([least]))
    assert is_ordered(found)
    assert found.log_s[0] >= least
    # what it was, and that moved along
    moved = found.log_s[0] - estimate.log_s[0]
    assert found.low[0] <= min(estimate.low[0], estimate.low[0] + moved) + 1e-12
    assert found.high[0] >= max(estimate.high[0], estimate.high[0] + moved) - 1e-12


@given(estimates(), st.floats(0, 2))
def test_cells_that_are_not_sure_make_it_no_surer(estimate, deviation):
    found = estimate.blurred(deviation)
    assert found.log_s[0] == estimate.log_s[0]
    assert found.low[0] <= min(estimate.low[0], estimate.log_s[0] - deviation) + 1e-12
    assert found.high[0] >= max(estimate.high[0], estimate.log_s[0] + deviation) - 1e-12


@given(estimates(), SOME, st.floats(0, 1))
def test_a_full_host_raises_it_and_leaves_the_low_end(estimate, least, more):
    found = estimate.raised(np.array([least]), np.array([least + more]))
    assert is_ordered(found)
    assert found.low[0] == estimate.low[0] and found.log_s[0] == max(estimate.log_s[0], least)
    is_near = estimate.log_s[0] < least + more
    assert found.high[0] == (max(estimate.high[0], least + more) if is_near else estimate.high[0])
