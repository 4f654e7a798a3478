"""How far apart rounding may put two runs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from samestep.verify.rounding import BLIND, DRAWS, UNIT_ROUNDOFF, relative_error, unit_roundoff

KINDS = sorted(UNIT_ROUNDOFF, key=UNIT_ROUNDOFF.__getitem__)


@pytest.mark.parametrize("name", ["float64", "float32", "float16"])
def test_a_unit_is_half_the_distance_from_one_to_the_next(name):
    assert unit_roundoff(name) == float(np.finfo(name).eps) / 2


def test_formats_of_eight_bits_are_the_coarsest_and_whole_numbers_as_single_precision():
    assert unit_roundoff("float8_e4m3fn") > max(UNIT_ROUNDOFF.values())
    assert unit_roundoff("int64") == unit_roundoff("float32")


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.sampled_from(KINDS))
def test_more_terms_allow_no_less(some, more, kind):
    unit = unit_roundoff(kind)
    assert 0 < relative_error(some, unit) <= relative_error(some + more, unit)


@pytest.mark.parametrize("terms", [1, 100, 10**6])
def test_coarser_numbers_allow_more(terms):
    errors = [relative_error(terms, unit_roundoff(kind)) for kind in KINDS]
    assert errors == sorted(errors)
    assert len(set(errors)) == len(errors)


@given(arrays.arrays(np.float32, st.integers(2, 60), elements=st.floats(-1e3, 1e3, width=32)), st.randoms())
def test_another_order_of_a_sum_stays_within_it(numbers, random):
    turned = numbers.copy()
    random.shuffle(turned)
    sums = [float(np.add.accumulate(each, dtype=np.float32)[-1]) for each in (numbers, turned)]
    exact = float(np.abs(numbers).sum(dtype=np.float64))
    # each order errs by n·u at most, and 2·n·u is within 16·√n·u for n up to 64
    assert abs(sums[0] - sums[1]) <= DRAWS * relative_error(len(numbers), unit_roundoff("float32")) * exact


def test_a_fault_is_outside_of_it():
    """One of a thousandth in single precision, and one of a factor of two in half."""
    assert DRAWS * relative_error(10**5, unit_roundoff("float32")) < 1e-3
    assert DRAWS * relative_error(10**5, unit_roundoff("bfloat16")) < BLIND
