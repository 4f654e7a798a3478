"""Experience: what it forecasts, how sure it is, and that it is learnt from series and not from nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samestep.advise.calibration import shipped
from samestep.advise.competition import Competition
from samestep.advise.experience import forecast
from samestep.advise.learning import learn
from samestep.advise.next_cell import candidates_for, next_cell
from samestep.advise.places import Places
from samestep.advise.series import Series

EXPERIENCE = shipped().learnt.experience


def test_farther_is_less_sure_and_more_cells_are_surer() -> None:
    asked = Places.of([8, 16, 32, 64], [1, 2, 4, 8])
    two = forecast(EXPERIENCE, Places.of([1, 2]), np.array([1.0, 1.02]), asked)
    three = forecast(EXPERIENCE, Places.of([1, 2, 4]), np.array([1.0, 1.02, 1.04]), asked)
    assert (np.diff(two.scale) > 0).all()
    assert (three.scale < two.scale).all()


def test_several_nodes_that_were_not_measured_are_less_sure_than_as_many_gpus_in_one() -> None:
    cells, step_s = Places.of([1, 2, 4]), np.array([1.0, 1.02, 1.04])
    inside, between = (forecast(EXPERIENCE, cells, step_s, Places.of([16], [nodes])) for nodes in (1, 2))
    assert between.scale[0] > 1.5 * inside.scale[0]
    assert between.log_s[0] > inside.log_s[0]


def test_erratic_cells_are_less_sure() -> None:
    asked = Places.of([8])
    smooth = forecast(EXPERIENCE, Places.of([1, 2, 4]), np.array([1.0, 1.02, 1.04]), asked)
    erratic = forecast(EXPERIENCE, Places.of([1, 2, 4]), np.array([1.0, 1.3, 0.9]), asked)
    assert erratic.scale[0] > 3 * smooth.scale[0]


@given(unit=st.floats(1e-4, 1e4))
@settings(max_examples=20, deadline=None)
def test_the_unit_of_time_does_not_matter(unit: float) -> None:
    cells, asked, step_s = Places.of([1, 2, 4]), Places.of([8]), np.array([1.0, 1.1, 1.15])
    one, other = (forecast(EXPERIENCE, cells, step_s * factor, asked) for factor in (1.0, unit))
    assert other.log_s[0] - np.log(unit) == pytest.approx(one.log_s[0], abs=1e-9)
    assert other.scale[0] == pytest.approx(one.scale[0], rel=1e-6)


def test_a_fixed_cost_of_every_step_is_seen_in_a_fixed_global_batch() -> None:
    gpus = np.array([1.0, 2.0, 4.0])
    step_s = 0.2 + 0.8 / gpus
    found = forecast(EXPERIENCE, Places.of(gpus, None, 1 / gpus), step_s, Places.of([8], None, [1 / 8]))
    # nearer to 0.2 + 0.8 / 8 than to the 0.125 of perfect sharing, or the 0.2 · 2 of the last efficiency
    assert np.exp(found.log_s[0]) == pytest.approx(0.3, rel=0.15)


def test_with_fewer_turns_of_the_same_size_a_gpu_stays_as_busy() -> None:
    """Of 1024 turns a step, 4 % are lost on 4 GPUs: that is 10 turns, and no exchange is as long."""
    gpus = np.array([1.0, 4.0])
    step_s, asked = 1024 / gpus * np.array([1.0, 1.04]), np.array([16.0])
    many = forecast(
        EXPERIENCE, Places.of(gpus, None, 1024 / gpus, 1024 / gpus), step_s,
        Places.of(asked, None, 1024 / asked, 1024 / asked),
    )  # fmt: skip
    one = forecast(EXPERIENCE, Places.of(gpus, None, 1024 / gpus), step_s, Places.of(asked, None, 64))
    # between no more losses, and as much again for as many doublings again
    assert 1024 / 16 * 1.04 <= np.exp(many.log_s[0]) <= 1024 / 16 * 1.04**2
    # all at once, it may as well be a cost of every step: the control
    assert np.exp(one.log_s[0]) > 1024 / 16 * 1.04**2


def test_as_many_turns_everywhere_are_as_one() -> None:
    """Each world has a share that is cut into four: a smaller share is a smaller turn."""
    gpus = np.array([1.0, 2.0, 4.0])
    step_s, asked = 0.2 + 0.8 / gpus, np.array([8.0])

    def found(turns: int) -> float:
        cells, at = Places.of(gpus, None, 1 / gpus, turns), Places.of(asked, None, 1 / 8, turns)
        return float(forecast(EXPERIENCE, cells, step_s, at).log_s[0])

    # not to the last digit: of a turn and of a step, there are more guesses of what is fixed
    assert found(4) == pytest.approx(found(1), abs=0.02)


def _series(seed: int, per_doubling: float) -> list[Series]:
    generator = np.random.default_rng(seed)
    gpus = np.array([1, 2, 4, 8, 16])
    places = Places.of(gpus, [1, 1, 1, 1, 2])
    return [
        Series(
            str(index), "made up", "model", False, places,
            np.exp(per_doubling * np.log2(gpus) + generator.normal(0, 0.005, len(gpus))),
        )
        for index in range(30)
    ]  # fmt: skip


def test_learning_sees_what_series_have_in_common() -> None:
    asked, cells, step_s = Places.of([16], [2]), Places.of([1, 2]), np.array([1.0, 1.05])
    flat, steep = (
        forecast(learn(_series(1, slope)).experience, cells, step_s, asked).log_s[0] for slope in (0.01, 0.2)
    )
    assert steep > flat + 0.1


def test_the_next_cell_is_between_nodes_if_the_question_is() -> None:
    cells, step_s, target = Places.of([1, 2, 4]), np.array([1.0, 1.02, 1.04]), Places.of([64], [8])
    worlds = candidates_for(cells, target, 8)
    places = Places.of(worlds, [-(-n // 8) for n in worlds])
    found = next_cell(EXPERIENCE, cells, step_s, places, target)
    assert found is not None
    assert (found.gpus, found.nodes) == (16, 2)
    assert found.narrows < 0.6
    assert found.takes_s == pytest.approx(150 * 1.1, rel=0.2)
    # and inside one, if that is where the question is
    near = next_cell(EXPERIENCE, cells[:2], step_s[:2], Places.of([4]), Places.of([8]))
    assert near is not None
    assert near.gpus == 4


def test_there_is_no_next_cell_where_everything_is_out_of_reach() -> None:
    cells, target = Places.of([1, 2]), Places.of([4096], [1])
    assert next_cell(EXPERIENCE, cells, np.ones(2), Places.of([4096]), target) is None


def test_the_next_cell_has_an_example_for_every_gpu() -> None:
    cells, step_s = Places.of([1, 2], batch_per_gpu=[12, 6]), np.array([1.0, 0.6])
    worlds, target = [4, 8, 16], Places.of([16], [2], 12 / 16)
    places = Places.of(worlds, [1, 1, 2], [12 / n for n in worlds])
    found = next_cell(EXPERIENCE, cells, step_s, places, target)
    assert found is not None and found.gpus < 16
    # the control: a batch that is large enough
    target, places = (Places.of(each.gpus, each.nodes, 4 * each.batch_per_gpu) for each in (target, places))
    found = next_cell(EXPERIENCE, cells, step_s, places, target)
    assert found is not None and found.gpus == 16


def test_a_batch_that_is_shared_without_gain_takes_longer_but_not_without_bound() -> None:
    """What is lost to overhead adds up; it does not multiply with every GPU that comes."""
    for second_s in (0.12, 0.15, 0.35):
        cells, step_s = Places.of([1, 2], None, [64, 32]), np.array([0.1, second_s])
        gpus = np.array([4, 8, 16, 32, 64])
        at = Places.of(gpus, np.maximum(gpus / 8, 1), 64 / gpus)
        found = forecast(EXPERIENCE, cells, step_s, at)
        assert (np.exp(found.log_s) < second_s * gpus / 2).all()
        outlook = Competition(cells, step_s, at).outlook(shipped().learnt)
        assert (np.exp(shipped().interval(outlook, 0.8)[1]) < second_s * 4 * gpus).all()


def test_a_larger_batch_than_was_measured_costs_about_as_many_times_more() -> None:
    cells, step_s = Places.of([1, 2, 4], None, [64, 64, 64]), np.array([0.8, 0.83, 0.85])
    found = forecast(EXPERIENCE, cells, step_s, Places.of([1], None, [512]))
    assert 0.85 < np.exp(found.log_s[0]) / (8 * 0.8) <= 1.0
    # cells of several batches say more than what is usual: here most of a step is fixed
    mostly = forecast(EXPERIENCE, Places.of([1, 1], None, [32, 64]), np.array([0.7, 0.8]),
                      Places.of([1], None, [512]))  # fmt: skip
    assert np.exp(mostly.log_s[0]) < 0.6 * np.exp(found.log_s[0])
