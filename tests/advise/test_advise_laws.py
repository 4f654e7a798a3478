"""Laws: known numbers are found again, limits hold, and nothing a person can measure makes a fit fail."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samestep.advise import laws
from samestep.advise.laws import ALL, LinearLaw
from samestep.advise.places import Floats, Places

LINEAR = [law for law in ALL if isinstance(law, LinearLaw)]
WORLDS = Places.of([1, 2, 4, 8, 16, 32], [1, 1, 1, 1, 2, 4])
GRID = Places.of([1, 1, 2, 2, 4, 8, 16, 32], [1, 1, 1, 1, 1, 1, 2, 4], [8, 16, 8, 16, 16, 16, 16, 8])
numbers = st.floats(0.01, 1.0)
step_times = st.lists(st.floats(1e-6, 1e4), min_size=2, max_size=6)


@pytest.mark.parametrize("law", LINEAR, ids=lambda law: law.name)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_a_linear_law_finds_its_own_numbers_again(law: LinearLaw, data: st.DataObject) -> None:
    terms = np.stack(law.terms(GRID), axis=1)
    truth = np.array(data.draw(st.lists(numbers, min_size=terms.shape[1], max_size=terms.shape[1])))
    step_s = terms @ truth
    # as exact as the worst conditioned of the systems allows
    assert law.fit(GRID, step_s)(GRID) == pytest.approx(step_s, rel=1e-7)
    farther = Places.of([64], [8], [16])
    expected = np.stack(law.terms(farther), axis=1) @ truth
    assert law.fit(GRID, step_s)(farther) == pytest.approx(expected, rel=1e-5)


@given(within=st.floats(0.05, 1.0), each=st.floats(0.0, 0.1), overlap=st.floats(1.0, 4.0))
@settings(max_examples=25, deadline=None)
def test_pollux_describes_its_own_steps(within: float, each: float, overlap: float) -> None:
    gpus = WORLDS.gpus
    exchanging = np.where(gpus > 1, within + each * np.maximum(gpus - 2, 0), 0.0)
    step_s = (1.0 + exchanging**overlap) ** (1 / overlap)
    places = Places.of(gpus)
    # the pull towards 0 costs at most its own size
    assert laws.POLLUX.fit(places, step_s)(places) == pytest.approx(step_s, rel=0.02)


@pytest.mark.parametrize("law", ALL, ids=lambda law: law.name)
@given(times=step_times)
@settings(max_examples=25, deadline=None)
def test_any_times_are_fitted_and_steps_stay_positive(law: laws.Law, times: list[float]) -> None:
    step_s = np.array(times)
    curve = law.fit(WORLDS[: len(times)], step_s)
    found = curve(Places.of([1, 3, 64, 4096], [1, 1, 8, 512]))
    assert np.isfinite(found).all()
    assert (found > 0).all()


@pytest.mark.parametrize("law", ALL, ids=lambda law: law.name)
def test_without_overhead_the_step_stays(law: laws.Law) -> None:
    found = law.fit(WORLDS[:3], np.full(3, 0.2))(WORLDS)
    # Pollux ends its search early, and is pulled
    assert found == pytest.approx(np.full(len(WORLDS), 0.2), rel=5e-3)


@pytest.mark.parametrize("law", ALL, ids=lambda law: law.name)
@given(times=step_times)
@settings(max_examples=25, deadline=None)
def test_more_gpus_with_the_same_batch_each_never_make_a_step_shorter(
    law: laws.Law, times: list[float]
) -> None:
    curve = law.fit(WORLDS[: len(times)], np.array(times))
    inside = curve(Places.of(np.arange(1, 9)))
    between = curve(Places.of([16, 32, 64], [2, 4, 8]))
    assert (np.diff(inside) >= -1e-9 * inside[:-1]).all()
    assert (np.diff(between) >= -1e-9 * between[:-1]).all()


@pytest.mark.parametrize("law", ALL, ids=lambda law: law.name)
@given(unit=st.floats(1e-3, 1e3))
@settings(max_examples=10, deadline=None)
def test_the_unit_of_time_does_not_matter(law: laws.Law, unit: float) -> None:
    step_s: Floats = np.array([0.2, 0.23, 0.25])
    one, other = law.fit(WORLDS[:3], step_s)(WORLDS), law.fit(WORLDS[:3], step_s * unit)(WORLDS)
    # the search of Pollux ends when its cost changes by less than 1e-6, so its numbers are good to the root
    assert other / unit == pytest.approx(one, rel=1e-3)


def test_laws_differ_where_they_should() -> None:
    """The negative control: laws that all said the same would make a competition of nothing."""
    step_s = np.array([0.2, 0.23, 0.25])
    found = [float(law.fit(WORLDS[:3], step_s)(WORLDS[5:])[0]) for law in ALL]
    assert max(found) > 1.5 * min(found)
    assert laws.AMDAHL.fit(WORLDS[:3], step_s)(WORLDS[5:]) > laws.LOGARITHMIC.fit(WORLDS[:3], step_s)(
        WORLDS[5:]
    )
