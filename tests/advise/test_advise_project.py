"""Project: what is said, what is left open, and that intervals hold where the times alone mislead."""

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import samestep.advise
from samestep.advise.cells import Cell
from samestep.advise.project import project
from samestep.advise.rows import MeasuredRow, ProjectedRow
from samestep.errors import ConfigError

# NVIDIA/MinkowskiEngine, docs/demo/multigpu.md: seconds a step of one global batch on 1 to 4 Titan Xp
SPARSE = {
    8: {1: 1.611, 2: 0.916, 4: 0.689},
    12: {1: 2.691, 2: 1.413, 3: 1.064, 4: 1.006},
    16: {1: 3.543, 2: 1.933, 4: 1.322},
    18: {1: 4.391, 2: 2.114, 3: 1.660},
    20: {1: 4.639, 2: 2.426, 4: 1.707},
}


# NVIDIA/DeepLearningExamples, TensorFlow2/LanguageModeling/BERT, DGX-2, mixed precision: sequences a second,
# 60 at once, in 1024 turns on one GPU
TURNS = {1: 206.5, 4: 789.75, 8: 1561.77, 16: 3077.99}


def weak(*times: float, **others: Any) -> list[dict[str, Any]]:
    return [
        {"gpus": 2**power, "batch_per_gpu": 32, "step_s": step_s, **others}
        for power, step_s in enumerate(times)
    ]


def strong(times: dict[int, float], batch_size: int, **others: Any) -> list[dict[str, Any]]:
    return [{"gpus": n, "batch_size": batch_size, "step_s": t, **others} for n, t in times.items()]


def causes(rows: Any) -> set[str]:
    return {finding.cause for finding in rows.findings}


def test_measured_and_projected_are_different_types() -> None:
    rows = project(weak(0.20, 0.21, 0.22), 8)
    assert [row.gpus for row in rows] == [1, 2, 4, 8]
    assert [type(row) for row in rows] == [MeasuredRow, MeasuredRow, MeasuredRow, ProjectedRow]
    assert [row.to_json()["kind"] for row in rows] == ["measured"] * 3 + ["projected"]
    for row in rows:
        assert row.low_s <= row.step_s <= row.high_s
        assert row.speedup is not None
        assert row.speedup_low is not None
        assert row.speedup_high is not None
        assert row.speedup_low <= row.speedup <= row.speedup_high
        assert row.to_json()["efficiency"] == row.speedup / row.gpus
    assert 0.22 <= rows[3].step_s <= 0.24
    assert not rows.findings


def test_numbers_of_numpy_are_numbers() -> None:
    assert project(weak(0.20, 0.21, 0.22), np.int64(16)) == project(weak(0.20, 0.21, 0.22), 16)
    assert [row.gpus for row in project(weak(0.20, 0.21), np.array([4, 8]))] == [1, 2, 4, 8]


def test_it_is_public() -> None:
    assert samestep.advise.project is project


def test_a_projection_takes_well_under_a_second() -> None:
    cells = [
        {"gpus": n, "step_s": 1 + 0.01 * n, "nodes": -(-n // 4)} for n in (1, 2, 3, 4, 8, 12, 16, 24, 32, 48)
    ]
    project(cells, 64)
    began = time.process_time()
    project(cells, 4096)
    assert time.process_time() - began < 1.0


def test_who_says_how_many_turns_there_are_is_told_better() -> None:
    batch_size = 60 * 1024
    cells = [{"gpus": n, "batch_size": batch_size, "examples_per_s": TURNS[n]} for n in (1, 4)]
    said = [cell | {"accumulate": 1024 // cell["gpus"]} for cell in cells]
    for gpus in (8, 16):
        told, untold = (project(each, [gpus], gpus_per_node=16)[-1] for each in (said, cells))
        truth = batch_size / TURNS[gpus]
        assert told.low_s <= truth <= told.high_s
        assert abs(told.step_s / truth - 1) < abs(untold.step_s / truth - 1) / 2


def test_turns_stay_as_large_until_there_is_one() -> None:
    """Two turns are left on 4 GPUs and one on 8; a GPU of 16 has less at once, which is another matter."""
    cells = [{"gpus": n, "batch_size": 64, "accumulate": 8 // n, "step_s": 8.0 / n + 0.1} for n in (1, 2, 4)]
    at_8, at_16 = project(cells, [8, 16], gpus_per_node=16)[-2:]
    # the one does not depend on whether the other is asked for
    assert at_8.step_s == pytest.approx(project(cells, [8], gpus_per_node=16)[-1].step_s, rel=1e-9)
    untold = project([cell | {"accumulate": 1} for cell in cells], [8, 16], gpus_per_node=16)
    # as large as before, turns lose less than smaller shares; smaller than before, they lose at least as much
    assert at_8.step_s < untold[-2].step_s
    assert at_16.step_s >= untold[-1].step_s


@pytest.mark.parametrize("batch_size", SPARSE)
def test_a_host_that_fills_up_unseen_is_within_the_interval(batch_size: int) -> None:
    truth = SPARSE[batch_size]
    first = {n: truth[n] for n in (1, 2)}
    asked = [n for n in truth if n > 2]
    for row in project(strong(first, batch_size), asked):
        if isinstance(row, ProjectedRow):
            assert row.low_s <= truth[row.gpus] <= row.high_s


def test_cpu_use_in_the_record_warns_of_a_full_host() -> None:
    cells = strong({1: 1.611, 2: 0.916}, 8)
    busy = [cell | {"cpu_utilisation": use} for cell, use in zip(cells, (0.33, 0.58), strict=True)]
    rows = project(busy, 4)
    assert "host-saturates" in causes(rows)
    assert rows[-1].low_s <= 0.689 <= rows[-1].high_s
    # with cores to spare there is no warning, and less to fear
    idle = project([cell | {"cpu_utilisation": 0.02} for cell in cells], 4)
    assert "host-saturates" not in causes(idle)
    assert idle[-1].high_s < project(cells, 4)[-1].high_s


def test_ranks_that_keep_a_core_busy_while_they_wait_are_no_full_host() -> None:
    """Each rank spins one of 16 cores: the smallest share must not tell what an example costs."""
    use = {1: (1.0, 1 / 16), 2: (0.55, 2 / 16), 8: (0.2, 0.5), 64: (0.1, 0.5)}
    cells = [
        {"gpus": n, "batch_size": 1024, "step_s": s, "cpu_utilisation": used} for n, (s, used) in use.items()
    ]
    rows = project(cells, [1, 2, 4, 8, 16, 64], gpus_per_node=8)
    assert "host-saturates" not in causes(rows)
    assert rows[2].step_s == pytest.approx(0.325, rel=0.1)
    times = [row.step_s for row in rows]
    assert times == sorted(times, reverse=True)


def test_the_cores_are_a_floor_under_the_step() -> None:
    rows = project(weak(0.20, 0.20, cpu_utilisation=0.4), 8, batch="grows")
    # two ranks took 0.4 of the host for 0.2 s: eight take 1.6 hosts for as long
    assert rows[-1].step_s == pytest.approx(0.32)
    assert rows[-1].high_s >= 0.32


def test_a_host_that_is_nearly_full_is_warned_of_and_widens_the_interval() -> None:
    """Ranks wait for cores from 85 % on: the row may be as it was, its high end is not."""

    def four(use: float) -> tuple[ProjectedRow, set[str]]:
        cells = [
            {"gpus": n, "batch_size": 64, "step_s": s, "cpu_utilisation": part}
            for n, s, part in ((1, 1.0, use / 2), (2, 0.515, use))
        ]
        rows = project(cells, 4)
        (found,) = (row for row in rows if isinstance(row, ProjectedRow) and row.gpus == 4)
        return found, causes(rows)

    near, said = four(0.49)
    assert "host-saturates" in said and near.with_cores_s is None
    assert near.high_s >= 0.49 * 0.515 / 0.85 > near.step_s
    calm, said = four(0.2)
    assert "host-saturates" not in said and calm.step_s == near.step_s


@pytest.mark.filterwarnings("error")
def test_a_host_that_does_nothing_is_no_limit() -> None:
    idle = [cell | {"cpu_utilisation": 0} for cell in weak(0.80, 0.82, 0.83)]
    assert [row.high_s for row in project(idle, 8)] == [
        row.high_s for row in project(weak(0.80, 0.82, 0.83), 8)
    ]


def test_the_machine_says_where_its_nodes_end() -> None:
    def nodes(**others: Any) -> list[int]:
        return [row.nodes for row in project(weak(0.20, 0.21, **others), 16)]

    assert nodes() == [1, 1, 1, 1, 2]
    assert nodes(gpus_per_node=4) == [1, 1, 1, 2, 4]
    assert nodes(gpus_per_node=1) == [1, 2, 4, 8, 16]
    # who had two ranks on a node has room for two, whatever the machine is said to have
    assert nodes(gpus_per_node=1, nodes=1) == [1, 1, 2, 4, 8]
    assert [row.nodes for row in project(weak(0.2, 0.21, gpus_per_node=4), 16, gpus_per_node=16)] == [1] * 5


def test_one_world_size_is_no_basis() -> None:
    rows = project(weak(0.20), 64)
    assert [row.kind for row in rows] == ["measured"]
    assert causes(rows) == {"one-world-size"}
    assert rows.next_cell is not None
    assert rows.next_cell.gpus > 1
    assert f"Measure {rows.next_cell.gpus} GPUs" in rows.findings[0].fix
    assert rows.next_cell.why in rows.findings[0].fix
    assert 150 * 0.2 <= rows.next_cell.takes_s < 150 * 0.3
    # also if nobody asked about more
    for to in (1, [1]):
        found = project(weak(0.20), to).next_cell
        assert found is not None and found.gpus == 2


def test_far_and_over_the_nodes_there_is_a_range_and_a_cell_that_settles_it() -> None:
    rows = project(weak(0.20, 0.21, 0.22), [8, 16, 64])
    assert [row.is_range for row in rows if isinstance(row, ProjectedRow)] == [False, True, True]
    assert rows.next_cell is not None
    assert (rows.next_cell.gpus, rows.next_cell.nodes) == (16, 2)
    assert "far-from-measured" in causes(rows)
    # within one large node it is the distance alone
    inside = project(weak(0.20, 0.21), [4, 8, 16], gpus_per_node=16)
    assert [row.is_range for row in inside if isinstance(row, ProjectedRow)] == [False, False, True]
    # and with that cell the range is a projection, and narrower
    settled = project(
        [*weak(0.20, 0.21, 0.22), {"gpus": 16, "nodes": 2, "batch_per_gpu": 32, "step_s": 0.25}], 64
    )
    assert settled[-1].high_s / settled[-1].low_s < rows[-1].high_s / rows[-1].low_s
    assert [row.is_range for row in settled if isinstance(row, ProjectedRow)] == [False, False, False]


def test_odd_cells_are_kept_and_said_and_widen_the_interval() -> None:
    even, superlinear, erratic = (
        project(weak(*times), 8) for times in ((0.20, 0.21, 0.22), (0.20, 0.17, 0.16), (0.20, 0.27, 0.19))
    )
    width = [rows[-1].high_s / rows[-1].low_s for rows in (even, superlinear, erratic)]
    assert causes(superlinear) == {"superlinear"}
    assert causes(erratic) >= {"erratic"}
    assert len(superlinear) == len(erratic) == 4
    assert width[0] < width[1]
    assert width[0] < width[2]


def test_noisy_cells_widen_the_interval() -> None:
    sharp = project(weak(0.20, 0.21, 0.22), 8)
    noisy = project([cell | {"step_low_s": 0.15, "step_high_s": 0.27} for cell in weak(0.20, 0.21, 0.22)], 8)
    assert noisy[-1].high_s > sharp[-1].high_s
    assert noisy[-1].low_s < sharp[-1].low_s
    assert causes(noisy) == {"noisy"} and not causes(sharp)
    # repeats that do not agree are no better
    twice = project([*weak(0.20, 0.21, 0.22), {"gpus": 1, "batch_per_gpu": 32, "step_s": 0.40}], 8)
    assert "noisy" in causes(twice) and twice[-1].high_s > sharp[-1].high_s


def test_figures_of_one_gpu_are_asked_about() -> None:
    def said(*rates: float, **others: Any) -> set[str]:
        cells = [
            {"gpus": 2**power, "batch_per_gpu": 32, "examples_per_s": rate, **others}
            for power, rate in enumerate(rates)
        ]
        return causes(project(cells, 8))

    assert "no-gain" in said(320, 315, 300)
    assert "no-gain" not in said(320, 630, 1200)
    # little is gained, but something; and what a sweep measured is of all GPUs
    assert "no-gain" not in said(320, 360, 380)
    assert "no-gain" not in said(320, 315, 300, conditions={"torch": "2.9"})
    # a global batch that is the batch of one
    assert "no-gain" in causes(project(strong({1: 0.1, 2: 0.102, 4: 0.105}, 32), 8))


def test_long_steps_are_asked_about() -> None:
    assert "long-steps" in causes(project(weak(100, 104, 108), 8))
    assert "long-steps" not in causes(project(weak(3.3, 3.4, 3.5), 8))


def test_short_steps_are_asked_about_where_somebody_wrote_them_down() -> None:
    assert "short-steps" in causes(project(weak(0.0008, 0.0009, 0.001), 8))
    assert not {"short-steps", "long-steps"} & causes(project(weak(0.08, 0.09, 0.1), 8))
    # a sweep knows its unit, and examples a second without a batch tell no step
    sweep = [
        {"gpus": n, "batch_per_gpu": 32, "step_s": 0.0008, "conditions": {"torch": "2.13"}} for n in (1, 2, 4)
    ]
    assert "short-steps" not in causes(project(sweep, 8))
    rates = [{"gpus": n, "examples_per_s": 2000 * n} for n in (1, 2, 4)]
    assert "short-steps" not in causes(project(rates, 8))


def test_a_number_of_gpus_has_one_row_that_of_the_quickest_placement() -> None:
    cells = [
        {"gpus": gpus, "nodes": nodes, "batch_per_gpu": 64, "step_s": step_s}
        for gpus, nodes, step_s in ((1, 1, 0.8), (4, 1, 1.6), (4, 2, 0.85))
    ]
    rows = project(cells, 4)
    assert [row.gpus for row in rows] == [1, 2, 4]
    assert (rows[-1].nodes, rows[-1].step_s, rows[-1].kind) == (2, 0.85, "measured")
    assert "several-placements" in causes(rows)
    assert "several-placements" not in causes(project(cells[:2], 4))


def test_far_smaller_shares_than_were_measured_are_a_range() -> None:
    shared = project(weak(0.20, 0.21, 0.22), 16, batch="same")
    assert [row.batch_per_gpu for row in shared] == [32, 16, 8, 4, 2]
    assert [getattr(row, "is_range", False) for row in shared] == [False, False, False, True, True]


def test_a_speedup_that_rounds_do_not_agree_about_widens_the_interval() -> None:
    cells = [{"gpus": n, "batch_per_gpu": 32 / n, "step_s": 0.2 / n**0.5} for n in (1, 2)]
    plain = project(cells, 4)
    unsure = project([cells[0], cells[1] | {"speedup_around": (0.2, 1.8)}], 4)
    assert unsure[1].speedup_low == pytest.approx(0.2 * 2**0.5)
    assert unsure[1].speedup_high == pytest.approx(1.8 * 2**0.5)
    assert plain[1].speedup_low == plain[1].speedup_high == pytest.approx(2**0.5)
    assert unsure[2].high_s / unsure[2].low_s > 1.5 * plain[2].high_s / plain[2].low_s


def test_without_one_gpu_there_is_no_speedup() -> None:
    rows = project(weak(0.20, 0.21, 0.22)[1:], 8)
    assert "no-single-gpu" in causes(rows)
    assert all(row.speedup is None for row in rows)
    assert [row.kind for row in rows] == ["projected", "measured", "measured", "projected"]


def test_the_batch_stays_or_grows() -> None:
    grows = project(weak(0.20, 0.21, 0.22), 8)[-1]
    assert grows.batch_per_gpu == 32
    same = project(strong({1: 0.8, 2: 0.42, 4: 0.24}, 64), 8)[-1]
    assert same.batch_per_gpu == 8
    assert 0.1 <= same.step_s <= 0.24
    # one odd cell does not change what the others did, and is fitted with them
    odd = project([{"gpus": 1, "batch_per_gpu": 24, "step_s": 0.16}, *weak(0.20, 0.21, 0.22)[1:]], 8)
    assert {row.batch_per_gpu for row in odd} == {32}
    assert odd[-1].speedup == pytest.approx(8 * 32 / odd[-1].step_s / (24 / 0.16))
    # a grid of batches is fitted as one, and the rows are of one batch
    grid = [*strong({1: 0.8, 2: 0.42, 4: 0.24}, 64), *strong({1: 0.42, 2: 0.24, 4: 0.15}, 32)]
    assert [row.gpus * row.batch_per_gpu for row in project(grid, 8)] == [64] * 4


def test_parts_are_projected_each_by_its_own_law() -> None:
    cells = [
        Cell(gpus=1, step_s=0.8, batch_per_gpu=64),
        Cell(gpus=2, step_s=0.44, batch_per_gpu=32,
             parts_s={"exchange not hidden": 0.03, "sharing the host": 0.01}),
        Cell(gpus=4, step_s=0.275, batch_per_gpu=16,
             parts_s={"exchange not hidden": 0.045, "sharing the host": 0.03}),
    ]  # fmt: skip
    row = project(cells, 8)[-1]
    assert isinstance(row, ProjectedRow)
    # a ring of which (N−1)/N is left: 0.06 · 7/8; sharing: 0.01 · (N − 1)
    assert row.parts_s == pytest.approx({"exchange not hidden": 0.0525, "sharing the host": 0.07}, rel=1e-6)
    without = project([Cell(gpus=c.gpus, step_s=c.step_s, batch_per_gpu=c.batch_per_gpu) for c in cells], 8)[
        -1
    ]
    assert min(without.step_s, 0.2225) <= row.step_s <= max(without.step_s, 0.2225)


def test_parts_say_nothing_of_links_that_were_not_measured() -> None:
    cells = [Cell(gpus=1, step_s=0.8), Cell(gpus=2, step_s=0.9, parts_s={"exchange not hidden": 0.1})]
    inside, between = project(cells, [4, 16])[-2:]
    assert isinstance(inside, ProjectedRow)
    assert isinstance(between, ProjectedRow)
    assert inside.parts_s == pytest.approx({"exchange not hidden": 0.15})
    assert between.parts_s == {}


def test_a_second_node_does_not_make_up_for_what_the_first_one_lost() -> None:
    """Parts move what laws say of a full node, and of what lies beyond it; nothing beats what was seen."""

    def of(*cells: tuple[int, float, float]) -> dict[int, float]:
        found = [
            Cell(gpus=n, step_s=s, parts_s={"waiting for the slowest": lost} if n > 1 else {})
            for n, s, lost in cells
        ]
        return {row.gpus: row.step_s for row in project(found, [4, 8, 16], gpus_per_node=8)}

    # parts see more coming than laws do: also on two nodes
    growing = of((1, 1.0, 0.0), (2, 1.2, 0.2), (4, 1.3, 0.3))
    assert growing[4] < growing[8] < growing[16]
    # the full node was measured, and is slow: two are no quicker a GPU than it
    measured = of((1, 1.0, 0.0), (2, 1.02, 0.02), (4, 1.03, 0.03), (8, 1.6, 0.6))
    assert measured[16] >= 1.6


def test_cells_of_another_batch_do_not_blur_a_projection_of_one() -> None:
    alone = {row.gpus: row for row in project(weak(0.80, 0.82, 0.83), [8, 16])}
    other = [
        {"gpus": n, "batch_per_gpu": 16, "step_s": 0.41 + 0.01 * n, "step_low_s": 0.2, "step_high_s": 0.8}
        for n in (1, 2, 4)
    ]
    for more in (other[:1], other):
        found = {row.gpus: row for row in project([*weak(0.80, 0.82, 0.83), *more], [8, 16], batch="grows")}
        for gpus in alone:
            assert (found[gpus].step_s, found[gpus].high_s) == (alone[gpus].step_s, alone[gpus].high_s)
    # the control: a larger world that has another batch tells something, and so it counts
    far = [*weak(0.80, 0.82, 0.83), {"gpus": 8, "batch_per_gpu": 16, "step_s": 0.9}]
    assert next(row for row in project(far, [16], batch="grows") if row.gpus == 16).step_s > alone[16].step_s


def test_what_is_gained_is_gained_with_one_batch() -> None:
    """A large batch on one GPU may do more examples a second than a small one on four: that is no loss."""
    cells = strong({1: 0.5, 2: 0.27, 4: 0.16}, 64)
    odd = {"gpus": 1, "batch_per_gpu": 512, "step_s": 1.0}
    for table in (cells, [*cells, odd]):
        (eight,) = (row for row in project(table, 8) if isinstance(row, ProjectedRow) and row.gpus == 8)
        assert not eight.is_range


@pytest.mark.parametrize(
    ("to", "options", "said"),
    [
        (0, {}, "0 GPUs were asked for"),
        ([2, -1], {}, "-1 GPUs were asked for"),
        ([], {}, "no number of GPUs"),
        (8, {"level": 1.0}, "level is 1.0"),
        ("16", {}, "1 GPUs were asked for"),
        (8, {"batch": "weak"}, "batch is 'weak', but must be one of 'same', 'grows'"),
        (8, {"gpus_per_node": 0}, "0 GPUs a node were given"),
    ],
)
def test_questions_that_cannot_be(to: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        project(weak(0.2, 0.21), to, **options)


@given(
    times=st.lists(st.floats(0.1, 1.0), min_size=2, max_size=5),
    unit=st.floats(1e-3, 1e3),
    to=st.sampled_from([32, 64, 100]),
)
@settings(max_examples=30, deadline=None)
def test_anything_measured_gives_rows_in_order_with_intervals(
    times: list[float], unit: float, to: int
) -> None:
    rows = project(weak(*times), to)
    assert [row.gpus for row in rows] == sorted({row.gpus for row in rows})
    assert all(0 < row.low_s <= row.step_s <= row.high_s < np.inf for row in rows)
    # examples of which nobody knows how many a step has may be tokens as well: only ratios count
    few, many = (
        project([{"gpus": 2**i, "examples_per_s": each * 2**i / s} for i, s in enumerate(times)], to)
        for each in (1, unit)
    )
    assert [row.step_s * unit for row in many] == pytest.approx([row.step_s for row in few], rel=1e-3)


@given(level=st.floats(0.1, 0.89))
@settings(max_examples=15, deadline=None)
def test_a_surer_interval_is_wider(level: float) -> None:
    one, other = (project(weak(0.2, 0.21, 0.23), 64, level=value)[-1] for value in (level, level + 0.05))
    assert other.low_s <= one.low_s
    assert one.high_s <= other.high_s


def test_every_range_comes_with_a_cell_that_settles_it() -> None:
    """Also where the most GPUs asked for have less than an example each, or lie between two doublings."""
    for batch_size, node, expected in ((6, 4, 6), (12, 8, 12)):
        cells = [
            {"gpus": n, "batch_size": batch_size, "step_s": s} for n, s in ((1, 0.8), (2, 0.43), (4, 0.245))
        ]
        rows = project(cells, [1, 2, 4, 6, 8, 12, 16], gpus_per_node=node)
        assert any(row.is_range for row in rows if isinstance(row, ProjectedRow))
        assert rows.next_cell is not None and (rows.next_cell.gpus, rows.next_cell.nodes) == (expected, 2)


def test_a_share_may_be_told_as_a_whole_number() -> None:
    """64 examples on 3 GPUs are 21, 22 or 21.33 each: measured, and part of the same batch."""
    for share in (21, 22, 21.3333):
        cells = [
            {"gpus": n, "batch_per_gpu": m, "step_s": s}
            for n, m, s in ((1, 64, 0.8), (2, 32, 0.43), (3, share, 0.31), (4, 16, 0.245))
        ]
        assert [row.kind for row in project(cells, 4)] == ["measured"] * 4
    odd = [{**cell, "step_s": 0.1} if cell["gpus"] == 3 else cell for cell in cells]
    assert "superlinear" in {finding.cause for finding in project(odd, 4).findings}
    # the control: a batch that is another one
    cells[2]["batch_per_gpu"] = 24
    assert [row.kind for row in project(cells, [1, 2, 3, 4])] == [
        "measured", "measured", "projected", "measured",
    ]  # fmt: skip


def test_speedups_are_no_surer_than_the_one_that_they_are_over() -> None:
    cells = [
        {"gpus": 1, "batch_size": 64, "step_s": 1.0, "step_low_s": 0.8, "step_high_s": 1.25},
        {"gpus": 2, "batch_size": 64, "step_s": 0.6, "step_low_s": 0.6, "step_high_s": 0.6},
    ]
    one, two, four = project(cells, 4)[0], *[row for row in project(cells, 4) if row.gpus in (2, 4)]
    assert (one.speedup_low, one.speedup, one.speedup_high) == (1.0, 1.0, 1.0)
    assert two.speedup == pytest.approx(1 / 0.6)
    assert two.speedup_low == pytest.approx(0.8 / 0.6) and two.speedup_high == pytest.approx(1.25 / 0.6)
    assert four.speedup is not None and four.speedup_high is not None and four.speedup_low is not None
    assert four.speedup_high / four.speedup > 1.25 and four.speedup / four.speedup_low > 1.25


def test_a_full_host_has_an_interval_and_a_way_out() -> None:
    cells = [
        {"gpus": 1, "batch_size": 8, "step_s": 1.611, "cpu_utilisation": 0.45},
        {"gpus": 2, "batch_size": 8, "step_s": 0.916, "cpu_utilisation": 0.85},
    ]
    four = next(row for row in project(cells, 4) if row.gpus == 4)
    assert isinstance(four, ProjectedRow)
    needed_s = 0.85 * 0.916
    assert four.step_s == pytest.approx(needed_s)
    assert four.high_s >= needed_s / 0.85
    # ranks may keep cores busy while they wait: without such a host it would be as if nobody had looked
    (unseen,) = (row for row in project(strong({1: 1.611, 2: 0.916}, 8), 4) if row.gpus == 4)
    assert four.low_s == pytest.approx(unseen.low_s) and four.low_s < SPARSE[8][4] < four.high_s
    assert four.with_cores_s is not None and four.with_cores_s < four.step_s
    # the control: a host with cores enough
    free = [{**cell, "cpu_utilisation": 0.1} for cell in cells]
    four = next(row for row in project(free, 4) if row.gpus == 4)
    assert isinstance(four, ProjectedRow) and four.with_cores_s is None
