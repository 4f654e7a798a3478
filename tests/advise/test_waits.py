"""Waits: what was given is kept, gaps are between their neighbours, and what cannot be meant is refused."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.advise.waits import Wait, Waits, count_waits, parse_waits, seconds_of
from samestep.errors import ConfigError

SECONDS = st.integers(0, 10**6).map(float)


def test_given_waits_are_kept_and_have_units():
    waits = parse_waits("1=2m, 2 = 90s,4=3h, 8=1-12:00:00")
    assert [waits.at(n).expected_s for n in (1, 2, 4, 8)] == [120, 90, 10800, 129600]
    assert waits.at(4) == Wait(expected_s=10800, high_s=10800)
    assert "counts as certain" in waits.remarks[0]


def test_one_wait_is_for_any_number():
    waits = parse_waits("2h")
    assert {waits.at(n).expected_s for n in (1, 3, 64)} == {7200}
    assert not any("not given" in said for said in waits.about([1, 2, 64]))


def test_a_median_and_a_90_percent():
    waits = parse_waits("4=1h..5h")
    assert waits.at(4).high_s == 5 * 3600
    assert 3600 < waits.at(4).expected_s < 5 * 3600
    assert waits.remarks == ()


def test_what_is_expected_is_the_mean_of_the_shape_that_is_described():
    draw = random.Random(0)
    median_s, high_s = 100.0, 160.0
    above_s = (high_s - median_s) / math.log(5)
    waits = [
        median_s + draw.expovariate(1 / above_s) if draw.random() < 0.5 else draw.uniform(40.0, median_s)
        for _ in range(40_000)
    ]
    spread = (sum((wait - 103.6) ** 2 for wait in waits) / len(waits)) ** 0.5
    found = Wait.spread(median_s, high_s).expected_s
    assert found == pytest.approx(sum(waits) / len(waits), abs=4 * spread / len(waits) ** 0.5)


@given(SECONDS, SECONDS, SECONDS)
def test_a_longer_median_or_90_percent_is_never_a_shorter_wait(median_s, more_s, even_s):
    less = Wait.spread(median_s, median_s + more_s + even_s)
    for longer in (
        Wait.spread(median_s + more_s, median_s + more_s + even_s),
        Wait.spread(median_s, median_s + more_s + 2 * even_s),
    ):
        assert longer.expected_s >= less.expected_s * (1 - 1e-12)
        assert longer.high_s >= less.high_s * (1 - 1e-12)


@given(st.dictionaries(st.integers(1, 512), SECONDS, min_size=1, max_size=6), st.integers(1, 4096))
def test_gaps_are_between_their_neighbours_and_ends_never_shrink(known, gpus):
    waits = Waits(known={n: Wait(expected_s=s, high_s=s) for n, s in known.items()}, source="given")
    found = waits.at(gpus).expected_s
    below, above = ([n for n in known if n <= gpus], [n for n in known if n >= gpus])
    if gpus in known:
        assert found == pytest.approx(known[gpus])
    elif below and above:
        low, high = sorted((known[max(below)], known[min(above)]))
        assert low * (1 - 1e-12) <= found <= high * (1 + 1e-12)
    elif below:
        assert found >= known[max(below)]
    else:
        assert found == known[min(above)]


@given(
    st.dictionaries(st.integers(1, 512), SECONDS, min_size=2, max_size=6),
    st.data(),
    st.integers(1, 4096),
)
def test_a_wait_known_to_be_longer_makes_no_other_shorter(known, data, gpus):
    def at(waits):
        return Waits(known={n: Wait(expected_s=s, high_s=s) for n, s in waits.items()}, source="given").at(
            gpus
        )

    longer = data.draw(st.sampled_from(sorted(known)))
    more = known | {longer: 2 * known[longer] + 60}
    assert at(more).expected_s >= at(known).expected_s * (1 - 1e-12)


def test_what_was_not_given_is_said():
    waits = parse_waits("2=1h..2h,8=3h..4h")
    said = " ".join(waits.about([1, 2, 4, 8, 16]))
    assert "The wait of 1 GPU is not given: taken to be as long as for 2" in said
    assert "The wait of 4 GPUs is not given: taken to be between" in said
    assert "The wait of 16 GPUs is not given: taken to be as long as for 8, and 25 % of that more" in said
    assert "Waits of 3, 4 GPUs are not given" in " ".join(waits.about([3, 4]))
    assert waits.about([2, 8]) == []
    # one that is given tells of smaller and of larger ones alike
    (remark, _) = reversed(parse_waits("4=3h").about([1, 2, 4, 8]))
    assert remark == "Waits of 1, 2, 8 GPUs are not given: taken to be as long as for 4."
    assert waits.at(4).high_s == 3 * 3600
    assert waits.at(16).high_s == pytest.approx(5 * 3600)


def test_the_90_percent_is_never_below_what_is_expected_even_far_beyond():
    waits = parse_waits("1=1m..10h,4=11h..11h")
    assert all(waits.at(n).high_s >= waits.at(n).expected_s for n in (1, 2, 4, 8, 1024))


def test_waits_that_fall_are_kept_and_said():
    waits = parse_waits("1=5h..6h,4=1h..2h")
    assert waits.at(4).expected_s < waits.at(1).expected_s
    assert waits.at(8).high_s == pytest.approx(4 / 3 * waits.at(4).high_s)
    assert any("4 GPUs wait less than 1" in said for said in waits.about([1, 4]))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("4=3", "no time with a unit"),
        ("4=3 weeks", "no time with a unit"),
        ("4=-3h", "no time with a unit"),
        ("4=", "no time with a unit"),
        ("1=2m,3h", "no number of GPUs"),
        ("0=3h", "no number of GPUs"),
        ("four=3h", "no number of GPUs"),
        (f"{'9' * 320}=3h", "no number of GPUs"),
        ("4=3h,4=2h", "twice"),
        ("4=5h..1h", "less than the median"),
        ("", "no time with a unit"),
    ],
)
def test_what_cannot_be_meant_is_refused(text, said):
    with pytest.raises(ConfigError, match=said):
        parse_waits(text)


def test_jobs_are_counted_by_their_gpus():
    jobs = [(1, 60.0)] * 20 + [(4, float(s)) for s in range(0, 11_000, 1000)] + [(0, 9e9), (8, 7200.0)]
    waits = count_waits([*jobs, (2, -5.0), (2, math.nan)], source="known")
    assert waits.num_jobs == {1: 20, 4: 11, 8: 1}
    assert waits.at(4) == Wait(expected_s=5000, high_s=9000)
    assert any("Fewer than 10 jobs tell the wait of 8 GPUs" in said for said in waits.about([8]))


def test_no_jobs_are_no_queue_and_said():
    waits = count_waits([], source="known to Slurm")
    assert waits.at(64) == Wait(expected_s=0, high_s=0)
    assert "The queue counts as empty" in waits.about([1])[0]


def test_times():
    assert [seconds_of(text) for text in ("0", "1.5h", "2 min", "1:00:05", "3")] == [0, 5400, 120, 3605, None]
    assert seconds_of(f"1{'0' * 400}h") is None
