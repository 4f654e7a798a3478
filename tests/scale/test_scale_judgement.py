"""Finished runs → the result: cells, their relations, and what is written."""

import json
import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import Job

from samestep.scale.cells import CellResult
from samestep.scale.judgement import half_widths, judge
from samestep.scale.plan import Sweep
from samestep.scale.runs import line_of, read_lines
from samestep.scale.variants import Cell

COST = st.floats(0, 0.05)
JOBS = st.builds(
    Job, example_s=st.floats(1e-4, 1e-2), fixed_s=COST, sharing_s=COST, exchange_s=COST,
    fetch_s=st.floats(0, 1e-2), noise=st.floats(0, 0.3), drift=st.floats(0, 0.3), seed=st.integers(0, 99),
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(JOBS, st.booleans(), st.integers(1, 4))
def test_speedup_efficiency_and_throughput_are_one_thing(job, is_weak, rounds):
    result = job.result(worlds=(1, 2, 4), rounds=rounds, is_weak=is_weak)
    one = result.cells[0]
    assert (one.speedup, one.efficiency) == (1.0, 1.0)
    for cell in result.cells:
        growth = cell.batch_size / one.batch_size
        # three roundings of a double each
        assert cell.speedup == pytest.approx(growth * one.step_s / cell.step_s, rel=1e-14)
        assert cell.efficiency == pytest.approx(cell.speedup / cell.gpus, rel=1e-14)
        assert cell.speedup == pytest.approx(cell.examples_per_s / one.examples_per_s, rel=1e-12)
        assert cell.ideal_speedup == cell.gpus
        assert cell.batch_per_gpu * cell.gpus == cell.batch_size
        assert cell.step_low_s <= cell.step_s <= cell.step_high_s
        assert cell.speedup_low <= cell.speedup <= cell.speedup_high
    for gap in result.gaps:
        cell = result.cell(gap.cell)
        assert gap.measured_s == cell.step_s
        # the ideal is a whole number of ticks
        assert gap.ideal_s / gap.measured_s == pytest.approx(cell.efficiency, rel=1e-5)
        assert sum(Fraction(part.seconds) for part in gap.parts) == Fraction(gap.measured_s) - Fraction(
            gap.ideal_s
        )


def test_the_speedup_of_a_round_is_not_blurred_by_other_rounds():
    cells = Job(drift=0.3, noise=1e-3).result(worlds=(1, 2)).cells
    assert cells[1].relative_half_width > 0.05
    assert (cells[1].speedup_high - cells[1].speedup_low) / 2 < 0.02
    assert cells[1].speedup == pytest.approx(2.0, abs=0.02)


@pytest.mark.parametrize("rounds", [1, 2])
def test_no_speedup_is_below_nothing(rounds):
    (_, cell) = Job(drift=0.5, seed=1).result(worlds=(1, 2), rounds=rounds).cells
    assert 0 <= cell.speedup_low <= cell.speedup <= cell.speedup_high


def test_a_result_is_the_same_from_lines_of_a_file():
    sweep = Sweep(worlds=(1, 2), batches=(16, 32))
    runs = Job(exchange_s=0.01).runs(sweep)
    again = list(read_lines(line_of(run).encode() for run in reversed(runs)))
    assert judge(sweep, again).to_json() == judge(sweep, runs).to_json()


def test_what_is_written():
    result = Job(exchange_s=0.01, facts={"num_threads": (1,)}).result(worlds=(1, 2), rounds=1)
    found = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert set(found) >= {"cells", "gaps", "findings", "fairness", "environment", "rounds", "precision"}
    assert set(found["cells"][1]) >= {
        "gpus", "batch_size", "batch_per_gpu", "step_s", "step_low_s", "step_high_s", "examples_per_s",
        "speedup", "ideal_speedup", "efficiency", "epoch_s", "cpu_utilisation", "memory_bytes", "status",
        "marks",
    }  # fmt: skip
    (gap,) = found["gaps"]
    assert set(gap) == {"gpus", "batch_size", "ideal_s", "measured_s", "parts", "epoch"}
    assert set(gap["parts"][0]) == {"name", "seconds", "low", "high", "is_noise"}
    assert math.fsum(part["seconds"] for part in gap["parts"]) == gap["measured_s"] - gap["ideal_s"]
    assert set(found["fairness"][0]) >= {"mark", "reason"}
    assert found["rounds"] == 1


def test_an_epoch_has_its_evaluations():
    # 106 steps of the 313 of an epoch were seen, with 1 s of evaluation and half a second of checkpoints
    facts = {"evaluation_s": 1.0, "checkpoint_s": 0.5}
    cell = Job(facts=facts).result(worlds=(1,)).cells[0]
    assert cell.steps_per_epoch == 313
    assert cell.epoch_s == pytest.approx(313 * cell.step_s + 1.5 * 313 / 106)
    assert cell.evaluation_s == pytest.approx(313 / 106)


def test_an_epoch_of_nobody_knows_how_many_examples():
    cell = Job(loading={"num_examples": None}).result(worlds=(1,)).cells[0]
    assert (cell.epoch_s, cell.steps_per_epoch) == (None, None)


def test_how_busy_the_host_was():
    cells = Job(num_cores=4).result(worlds=(1, 4)).cells
    assert cells[0].cpu_utilisation == pytest.approx(0.25, abs=0.02)
    assert cells[1].cpu_utilisation == pytest.approx(1.0, abs=0.05)
    sweep = Sweep(worlds=(1,), batches=(32,))
    unknown = [replace(run, host=None) for run in Job().runs(sweep)]
    assert judge(sweep, unknown).cells[0].cpu_utilisation is None


def test_one_gpu_is_as_fast_as_itself_however_noisy():
    for rounds in (1, 2, 6):
        one = Job(drift=0.5, run_noise=0.5).result(worlds=(1, 2), rounds=rounds).cells[0]
        assert one.speedup_low == one.speedup == one.speedup_high == one.efficiency == 1.0


def test_no_step_takes_less_than_nothing():
    cells = Job(drift=1.0, run_noise=1.0).result(rounds=2).cells
    assert all(cell.relative_half_width > 0.5 for cell in cells)
    assert min(cell.step_low_s for cell in cells) == 0.0


class TestFailures:
    def test_a_cell_says_why(self):
        result = Job(failing=("full-4x32",)).result()
        cell = result.cell(Cell(gpus=4, batch_size=32))
        assert (cell.status, cell.reason, cell.step_s, cell.speedup) == (
            "failed",
            "out of memory",
            None,
            None,
        )
        assert result.cell(Cell(gpus=2, batch_size=32)).status == "measured"
        assert Cell(gpus=4, batch_size=32) not in half_widths(result)
        json.dumps(result.to_json(), allow_nan=False)

    def test_without_one_gpu_there_are_times_and_no_speedup(self):
        cell = Job(failing=("full-1x32",)).result().cells[1]
        assert cell.status == "measured" and cell.step_s and cell.speedup is None

    def test_nothing_was_measured_yet(self):
        result = judge(Sweep(worlds=(1, 2), batches=(32,)), [])
        assert {cell.status for cell in result.cells} == {"not measured"}
        assert result.findings == result.gaps == result.fairness == []
        assert half_widths(result) == dict.fromkeys((cell.cell for cell in result.cells), None)

    def test_a_round_under_way_counts_as_far_as_it_goes(self):
        sweep = Sweep(worlds=(1, 2, 4), batches=(32,))
        runs = Job(exchange_s=0.01).runs(sweep, rounds=3)
        for count in range(len(runs) + 1):
            result = judge(sweep, runs[:count])
            assert result.num_rounds == count // 10
            json.dumps(result.to_json(), allow_nan=False)


def test_more_rounds_make_intervals_narrower():
    widths = [
        Job(drift=0.1, seed=3).result(worlds=(1,), rounds=n).cells[0].relative_half_width for n in (5, 45)
    ]
    # by the root of nine, if rounds were alike
    assert widths[1] < widths[0] / 2


def test_a_cell_without_times_has_no_width():
    empty = CellResult(gpus=1, batch_size=1, batch_per_gpu=1.0, ideal_speedup=1.0, status="not measured")
    assert empty.relative_half_width is None
