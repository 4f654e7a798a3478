"""Drawings of a sweep as numbers: places, widths and texts. How they look: test_page_in_browser."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.observed import Span
from samestep.report.figures import Unit, seconds, short
from samestep.report.plot import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, plot
from samestep.report.speedup import HEIGHT as SPEEDUP_HEIGHT
from samestep.report.speedup import speedup
from samestep.report.sweep import BarsRow, CellRow, PartRow
from samestep.report.sweep_runs import FullRun, Spans
from samestep.report.timeline import MOST_RANKS, chosen_steps, phase_means, timeline
from samestep.report.waterfall import LEAST_WIDTH, ROW, waterfall
from samestep.scale.variants import Cell

amounts = st.floats(-1e3, 1e3, allow_subnormal=False)


@st.composite
def bars(draw):
    """Bars that add up, with intervals around them."""
    ideal = draw(st.floats(1e-6, 1e3))
    parts = []
    for k in range(draw(st.integers(0, 6))):
        value = draw(amounts)
        below, above = draw(st.floats(0, 100)), draw(st.floats(0, 100))
        parts.append(PartRow(name=f"part {k}", seconds=value, low=value - below, high=value + above))
    measured = math.fsum([ideal, *(part.seconds for part in parts)])
    return BarsRow(ideal_s=ideal, measured_s=measured, parts=tuple(parts))


def percent(text):
    assert text.endswith("%")
    return float(text[:-1])


@given(bars())
def test_bars_stay_in_the_picture_and_each_begins_where_the_last_ended(rows):
    drawn = waterfall(rows, ideal="ideal", measured="measured")
    assert drawn.height == ROW * len(drawn.bars) and [bar.top for bar in drawn.bars] == list(
        range(0, drawn.height, ROW)
    )
    for bar in drawn.bars:
        assert percent(bar.x) >= -0.01 and percent(bar.x) + percent(bar.width) <= 100.02
        assert percent(bar.width) >= LEAST_WIDTH - 0.01
        assert bar.name in drawn.words
    for before, after in zip(drawn.bars[:-2], drawn.bars[1:-1], strict=True):
        assert before.join == after.begin
    # the last part ends where the measured bar does; places have two digits behind the point
    assert percent(drawn.bars[-2].join) == pytest.approx(percent(drawn.bars[-1].join), abs=0.02)


def test_kinds_of_bars_follow_from_their_intervals():
    parts = [("a", 2.0, 1.0, 3.0), ("b", -2.0, -3.0, -1.0), ("c", 2.0, -1.0, 5.0), ("d", 0.0, 0.0, 0.0)]
    rows = BarsRow(
        ideal_s=10.0,
        measured_s=12.0,
        parts=tuple(PartRow(name=n, seconds=s, low=low, high=high) for n, s, low, high in parts),
    )
    drawn = waterfall(rows, ideal="ideal", measured="measured")
    assert [(bar.name, bar.kind) for bar in drawn.bars] == [
        ("ideal", "end"), ("a", "lost"), ("b", "won"), ("c", "noise"), ("measured", "end"),
    ]  # fmt: skip
    scale = 100 / 15  # the interval of c reaches furthest
    noise = drawn.bars[3]
    assert percent(noise.x) == pytest.approx(9 * scale, abs=0.01)
    assert percent(noise.width) == pytest.approx(6 * scale, abs=0.01)
    assert (noise.value, noise.range) == ("+2.00 s", "−1.00 to 5.00")
    assert "c +2.00 s (noise)" in drawn.words and "a +2.00 s;" in drawn.words


def cell(gpus, ratio, low=None, high=None, batch=32):
    return CellRow(
        gpus=gpus,
        batch_size=batch,
        batch_per_gpu=batch / gpus,
        status="measured",
        ideal_speedup=gpus,
        speedup=ratio,
        speedup_low=low,
        speedup_high=high,
    )


def test_speedup_is_drawn_against_ideal_with_intervals():
    drawn = speedup([[cell(1, 1.0), cell(2, 1.5, 1.4, 1.6), cell(4, 2.5, 2.0, 3.0)]])
    (spots, links) = drawn.series[0]
    assert [text for _, text in drawn.x_ticks] == ["1", "2", "4"] and len(links) == len(drawn.ideal) == 2
    for spot in spots[1:]:
        assert float(spot.high) < float(spot.y) < float(spot.low) < SPEEDUP_HEIGHT
    # the ideal of 4 is the highest tick, and twice as far up as that of 2
    zero = float(drawn.y_ticks[0][0])
    tops = [zero - float(drawn.ideal[0][3]), zero - float(drawn.ideal[1][3])]
    assert tops[1] == pytest.approx(2 * tops[0], abs=0.2)
    assert [spot.label for spot in spots] == ["", "1.50×", "2.50×"]


def test_batches_stand_side_by_side_and_without_speedups_there_is_no_picture():
    drawn = speedup([[cell(1, 1.0, batch=b), cell(2, 1.5, batch=b)] for b in (8, 16)])
    first, second = (spots[1] for spots, _ in drawn.series)
    assert percent(first.x) < percent(second.x) and first.y == second.y and not first.label
    assert speedup([[cell(1, 1.0), cell(2, None)]]) is None
    assert speedup([]) is None


def spans(world=2, steps=(3, 4, 5, 6, 21, 22, 23, 24), shift=0.0):
    by_rank = {
        rank: tuple(
            Span(step=step, phase=phase, began_s=step * 0.01 + at + rank * shift, seconds=0.004)
            for step in steps
            for phase, at in (("forward", 0.0), ("backward", 0.004), ("<b>", 0.008))
        )
        for rank in range(world)
    }
    run = FullRun(number=1, cell=Cell(gpus=world, batch_size=8), folder=None)
    return Spans(run=run, by_rank=by_rank)


def test_the_chosen_steps_in_a_row_are_drawn_and_other_phases_are_other():
    drawn = timeline(spans())
    assert drawn.shown_steps == (21, 22, 23, 24) and [step for _, step in drawn.steps] == [21, 22, 23, 24]
    assert drawn.phases == ("forward", "backward", "other") and len(drawn.lanes) == 2
    for lane in drawn.lanes:
        assert len(lane.bars) == 12
        for bar in lane.bars:
            assert percent(bar.x) >= 0 and percent(bar.x) + percent(bar.width) <= 100.01
    assert drawn.x_ticks[0] == ("0.00%", "0 ms", "start")
    assert {anchor for _, _, anchor in drawn.x_ticks[1:]} <= {"middle", "end"}
    assert phase_means(spans(), drawn.phases)[1][1] == pytest.approx([0.004] * 3)


def test_steps_that_only_some_ranks_have_are_not_drawn():
    some = spans()
    some.by_rank[1] = tuple(span for span in some.by_rank[1] if span.step in (5, 6, 22))
    assert chosen_steps(some) == timeline(some).shown_steps == (5, 6)
    some.by_rank[1] = tuple(span for span in some.by_rank[1] if span.step in (5, 22))
    assert chosen_steps(some) == (22,)
    some.by_rank[1] = (Span(step=99, phase="data", began_s=0.0, seconds=1.0),)
    assert timeline(some) is None


def test_of_many_ranks_some_are_left_out_and_counted():
    drawn = timeline(spans(world=MOST_RANKS + 3))
    assert len(drawn.lanes) == MOST_RANKS and drawn.num_hidden_ranks == 3


points = st.tuples(st.floats(0, 1e9), st.floats(-1e9, 1e9) | st.sampled_from([math.nan, math.inf]))


@given(st.lists(st.lists(points, max_size=30), max_size=4))
def test_lines_stay_in_their_frame(lines):
    lines = [sorted(line, key=lambda point: point[0]) for line in lines]
    drawn = plot(lines)
    finite = {point for line in lines for point in line if math.isfinite(point[1])}
    if drawn is None:
        assert len(finite) < 2 or len({x for x, _ in finite}) == 1
        return
    assert len(drawn.paths) == len(lines)
    for path in drawn.paths:
        for x, y in re.findall(r"([\d.]+) ([\d.]+)", path):
            assert LEFT - 0.1 <= float(x) <= WIDTH - RIGHT + 0.1
            assert TOP - 0.1 <= float(y) <= HEIGHT - BOTTOM + 0.1


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0123456, "12.3 ms"), (0.99997, "1.00 s"), (4.2e-5, "42.0 µs"), (90.0, "90.0 s"), (240.0, "4.00 min"),
     (36000.0, "10.0 h"), (0.0, "0.00 µs")],
)  # fmt: skip
def test_times_have_three_digits(value, text):
    assert seconds(value) == text


def test_differences_have_signs_and_ticks_are_short():
    unit = Unit.of(0.0123, digits=4)
    assert [unit.signed(value) for value in (0.001, -0.001, 1e-9, -1e-9)] == [
        "+1.00 ms", "−1.00 ms", "0.00 ms", "0.00 ms",
    ]  # fmt: skip
    assert unit.range(0.001, 0.002) == "1.00–2.00" and unit.range(-0.001, 0.002) == "−1.00 to 2.00"
    assert [short(v) for v in (0.5, 2000.0, 120_000.0, 3e6)] == ["0.5", "2,000", "120k", "3M"]
