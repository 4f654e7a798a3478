import math
import re

from hypothesis import given
from hypothesis import strategies as st

from samestep.report.chart import BOTTOM, HEIGHT, LEFT, NUM_BINS, RIGHT, TOP, WIDTH, chart

values = st.floats(-1e150, 1e150) | st.sampled_from([0.0, math.nan, math.inf, 1e-300])


def places(path):
    return [(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", path)]


@given(st.lists(values, min_size=2, max_size=50), st.integers(1, 10**9))
def test_a_line_stays_in_its_frame_and_ticks_are_in_order(ys, first):
    drawn = chart([(first + i, y) for i, y in enumerate(ys)])
    if sum(map(math.isfinite, ys)) < 2:
        assert drawn is None
        return
    for x, y in places(drawn.path):
        assert LEFT - 0.1 <= x <= WIDTH - RIGHT + 0.1 and TOP - 0.1 <= y <= HEIGHT - BOTTOM + 0.1
    xs, heights = ([float(at) for at, _ in ticks] for ticks in (drawn.x_ticks, drawn.y_ticks))
    assert xs == sorted(xs) and heights == sorted(heights, reverse=True) and 2 <= len(heights) <= 7
    assert drawn.num_not_finite == sum(not math.isfinite(y) for y in ys)


def test_higher_is_up_and_later_is_right():
    left, middle, right = places(chart([(1, 0.5), (2, 2.0), (3, 1.0)]).path)
    assert left[0] < middle[0] < right[0]
    assert middle[1] < right[1] < left[1]


def test_what_is_not_finite_is_a_gap():
    whole, torn = (chart([(k, math.nan if k == at else 1.0 / k) for k in range(1, 9)]) for at in (0, 5))
    assert whole.path.count("M") == 1 and whole.first_not_finite is None
    assert torn.path.count("M") == 2 and torn.first_not_finite == 5


def test_of_many_points_the_extremes_are_kept():
    points = [(k, 100.0 if k == 77_777 else -50.0 if k == 33_333 else math.sin(k)) for k in range(1, 100_000)]
    drawn = chart(points)
    heights = [y for _, y in places(drawn.path)]
    assert len(heights) <= 2 * (NUM_BINS + 1) and (drawn.smallest, drawn.largest) == (-50.0, 100.0)
    middle = sorted(heights)[len(heights) // 2]
    assert min(heights) < middle - 20 and max(heights) > middle + 10


def test_too_little_and_too_far_apart_is_not_drawn():
    assert chart([]) is None and chart([(1, 2.0), (2, math.nan)]) is None
    assert chart([(1, -1.7e308), (2, 1.7e308)]) is None
    assert chart([(1, 3.0), (2, 3.0)]) is not None
