"""A sweep from the first look to its result, with runs that nobody made."""

import itertools
import json
from dataclasses import replace
from fractions import Fraction

import pytest
from pretended import Pretended
from rows import row
from synthetic import Job

from samestep.errors import ConfigError, RecordError
from samestep.observed import Group, Layer, Model, Spawn, Step
from samestep.scale.asked import Asked
from samestep.scale.folder import SweepFolder
from samestep.scale.measure import measure
from samestep.scale.variants import Cell, Variant

ASKED = Asked(worlds=(1, 2), most_rounds=3, fewest_rounds=3)


@pytest.fixture
def runner(tmp_path):
    return Pretended(out=tmp_path, num_steps=16)


def measured(runner, asked=ASKED):
    return measure(asked, SweepFolder(runner.out), runner, clock=runner.clock)


def names(runner):
    return [order.name for order in runner.asked]


def test_every_world_is_looked_at_once_and_every_round_has_every_variant_once(runner):
    result = measured(runner).result
    assert names(runner)[:2] == ["looks/1", "looks/2"]
    variants = [name.split("-", 1)[1] for name in names(runner)[2:]]
    a_round = {"full-1x8", "cached-1x8", "full-2x8", "silent-2x8", "cached-2x8", "cached-1x4"}
    assert [set(variants[i : i + 6]) for i in range(0, 18, 6)] == [a_round] * 3
    assert len(variants) == 18
    assert len({tuple(variants[i : i + 6]) for i in range(0, 18, 6)}) > 1
    assert [cell.status for cell in result.cells] == ["measured", "measured"]
    assert result.num_rounds == 3
    assert result.stopped_because.startswith("every interval is narrow enough")
    assert "would make it about" in result.outlook


def test_a_cell_tells_the_devices_of_its_ranks(runner):
    result = measured(runner).result
    assert [dict(cell.devices) for cell in result.cells] == [{"cpu": 1}, {"cpu": 2}]
    assert result.to_json()["cells"][1]["devices"] == {"cpu": 2}
    assert result.environment == {"devices": ["cpu"], "clock_limits_mhz": []}


def test_an_experiment_changes_what_its_variant_says_and_only_training_loaders(runner):
    measured(runner)
    changed = {order.name.split("-", 1)[1]: order.experiment for order in runner.asked[2:]}
    assert not changed["full-1x8"].is_exchange_off and not changed["full-2x8"].are_norms_local
    assert changed["silent-2x8"].is_exchange_off and not changed["silent-2x8"].is_data_cached
    assert changed["cached-2x8"].is_exchange_off and changed["cached-2x8"].is_data_cached
    assert changed["cached-1x4"].batch_size == 4 and not changed["cached-1x4"].is_exchange_off
    assert {experiment.batch_size for name, experiment in changed.items() if name != "cached-1x4"} == {None}
    assert {experiment.loaders for experiment in changed.values()} == {("train.py:10",)}


def test_only_the_first_round_of_whole_programs_is_cold_and_tells_the_start(runner):
    result = measured(runner).result
    cold = {order.name.split("-", 1)[1] for order in runner.asked if order.is_cold}
    assert cold == {"full-1x8", "full-2x8"}
    assert sum(order.is_cold for order in runner.asked) == 2
    assert [cell.start_s for cell in result.cells] == [pytest.approx(3.0)] * 2
    part = next(part for part in result.gaps[0].epoch.parts if part.name == "start-up")
    assert part.seconds == pytest.approx(3.0 - 3.0 / 2)


def test_synchronised_norms_have_a_variant_of_their_own(runner):
    def synchronised(found, rank, size):
        if isinstance(found, Model) and size > 1:
            return replace(found, norms=(row(Layer, kind="SyncBatchNorm"),))
        return found

    runner.edit = synchronised
    runner.job = Job(norms_s=5e-3, noise=1e-3, drift=1e-3)
    result = measured(runner).result
    assert any("local-norms-2x8" in name for name in names(runner))
    assert result.gaps[0].part("synchronised norms").seconds == pytest.approx(5e-3, rel=0.05)


def test_the_gap_of_an_epoch_adds_up_to_the_last_bit(runner):
    runner.job = Job(exchange_s=2e-3, fetch_s=1e-4, sharing_s=1e-3)
    (gap,) = measured(runner).result.gaps
    for each in (gap, gap.epoch):
        total = sum(Fraction(part.seconds) for part in each.parts)
        assert total == Fraction(each.measured_s) - Fraction(each.ideal_s)
    assert len(gap.epoch.parts) > len(gap.parts)


# batches


def test_a_batch_that_grows_with_the_ranks_is_weak_scaling_and_says_so(runner):
    runner.batch = lambda size: 4 * size
    result = measured(runner).result
    assert result.is_weak
    assert [(cell.gpus, cell.batch_size) for cell in result.cells] == [(1, 4), (2, 8)]
    assert "--batch 4" in result.remarks[0] and "other training" in result.remarks[0]
    assert {order.experiment.batch_size for order in runner.asked} == {None}


def test_a_batch_that_neither_stays_nor_grows_is_refused_as_unfair(runner):
    runner.batch = lambda size: 8 if size == 1 else 12
    result = measured(runner).result
    assert not result.is_weak
    assert result.cells[1].status == "refused"
    assert "other-examples" in result.cells[1].marks
    assert not result.gaps


def test_batches_that_are_asked_for_are_given_to_the_training_loaders(runner):
    runner.batch = lambda size: 4 * size
    result = measured(runner, replace(ASKED, batches=(4, 16))).result
    assert not result.is_weak
    assert [(cell.gpus, cell.batch_size) for cell in result.cells] == [(1, 4), (2, 4), (1, 16), (2, 16)]
    changed = {order.name.split("-", 1)[1]: order.experiment.batch_size for order in runner.asked[2:]}
    assert changed["full-1x4"] is None  # as it is
    assert changed["full-2x4"] == 4 and changed["full-2x16"] == 16 and changed["full-1x16"] == 16


def test_a_task_gets_its_batch_as_a_setting(runner):
    measured(runner, replace(ASKED, is_task=True, batches=(8,)))
    assert {order.experiment.batch_size for order in runner.asked} == {None}
    assert {order.batch_size for order in runner.asked[2:]} == {4, 8}
    assert [order.batch_size for order in runner.asked[:2]] == [8, 8]


def test_weak_scaling_that_was_asked_for_gives_each_rank_the_batch(runner):
    result = measured(runner, replace(ASKED, is_weak=True)).result
    assert [(cell.gpus, cell.batch_size) for cell in result.cells] == [(1, 8), (2, 16)]
    assert any(order.experiment.batch_size == 16 for order in runner.asked)
    assert "--weak" in result.remarks[0]


def test_a_batch_smaller_than_the_world_is_refused_before_anything_runs(runner):
    with pytest.raises(ConfigError, match="A batch of 1 was to be shared by 2 GPUs"):
        measured(runner, replace(ASKED, batches=(1,)))
    assert runner.asked == []


# what goes wrong


def test_a_world_that_fails_is_told_and_the_others_are_measured(runner):
    runner.failing = {"looks/4": "Rank 3 was killed by signal 9 (SIGKILL) (out of memory?)"}
    result = measured(runner, replace(ASKED, worlds=(1, 2, 4))).result
    assert [cell.status for cell in result.cells] == ["measured", "measured", "failed"]
    assert "out of memory" in result.cells[2].reason
    assert not any("4x8" in name for name in names(runner))


def test_one_rank_that_fails_leaves_times_without_speedups(runner):
    runner.failing = {"looks/1": "no memory"}
    result = measured(runner).result
    assert [cell.status for cell in result.cells] == ["failed", "measured"]
    assert result.cells[1].step_s and result.cells[1].speedup is None
    # they are worth more rounds: a model may need more than one GPU
    assert result.num_rounds == 3


def test_where_only_one_rank_runs_a_round_is_enough(runner):
    runner.failing = {"looks/2": "no memory"}
    result = measured(runner).result
    assert [cell.status for cell in result.cells] == ["measured", "failed"] and result.num_rounds == 1


def test_a_variant_that_fails_leaves_the_gap_in_one_piece(runner):
    runner.failing = {"silent-2x8": "it hung"}
    result = measured(runner).result
    assert [part.name for part in result.gaps[0].parts] == ["not told apart"]
    assert sum("silent" in name for name in names(runner)) == 1
    (mark,) = [each for each in result.fairness if each.mark == "failed-run"]
    assert "failed, and parts of the gap are not told apart. it hung. " in mark.reason and mark.gpus == 2


def test_a_program_without_steps_is_refused_in_a_sentence(runner):
    runner.edit = lambda found, rank, size: None if isinstance(found, Step) else found
    with pytest.raises(ConfigError, match="took no step of an optimizer"):
        measured(runner)
    assert len(runner.asked) == 2


def test_a_program_that_starts_its_own_processes_is_told_apart(runner):
    runner.edit = lambda found, rank, size: row(Spawn) if isinstance(found, Step) else found
    with pytest.raises(ConfigError, match="started processes of its own"):
        measured(runner)


def test_a_program_that_ends_too_soon_is_refused(runner):
    runner.num_steps = 6
    with pytest.raises(ConfigError, match="ended after 6 steps on 1 rank, and at least 8"):
        measured(runner)


# going on


def test_an_interrupted_sweep_goes_on_and_ends_as_one_that_was_not(runner, tmp_path):
    whole = measured(runner).result
    other = tmp_path / "other"
    first = Pretended(out=other, num_steps=16, interrupted_at=11)
    part = measured(first)
    assert part.is_interrupted and part.result.stopped_because == "it was interrupted"
    assert part.result.num_rounds == 1
    second = Pretended(out=other, num_steps=16)
    rest = measured(second)
    assert not rest.is_interrupted
    assert names(first)[:-1] + names(second) == names(runner)
    assert rest.result.to_json() == whole.to_json()


def test_an_interruption_during_the_looks_leaves_no_result(runner):
    runner.interrupted_at = 2
    found = measured(runner)
    assert found.is_interrupted and found.result is None


def test_a_line_that_was_cut_off_is_measured_again(runner):
    measured(runner)
    path = runner.out / "cells.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    again = Pretended(out=runner.out, num_steps=16)
    result = measured(again).result
    assert len(again.asked) == 1 and result.num_rounds == 3
    assert names(again) == names(runner)[-1:]
    third = Pretended(out=runner.out, num_steps=16)
    measured(third)
    assert third.asked == []


def test_what_failed_is_tried_again_when_the_sweep_goes_on(runner):
    runner.failing = {"silent-2x8": "it hung", "looks/4": "no memory"}
    measured(runner, replace(ASKED, worlds=(1, 2, 4)))
    again = Pretended(out=runner.out, num_steps=16)
    result = measured(again, replace(ASKED, worlds=(1, 2, 4))).result
    assert [cell.status for cell in result.cells] == ["measured"] * 3
    assert len(result.gaps[0].parts) > 1
    assert names(again)[0] == "looks/4" and not set(names(again)[1:]) & set(names(runner))
    third = Pretended(out=runner.out, num_steps=16)
    measured(third, replace(ASKED, worlds=(1, 2, 4)))
    assert third.asked == []


def test_other_settings_and_other_versions_are_refused(runner, tmp_path):
    folder = SweepFolder(tmp_path)
    folder.begin({"--gpus": [1, 2]})
    measured(runner)
    folder.begin({"--gpus": [1, 2]})
    with pytest.raises(ConfigError, match="--gpus is 1,2 there and now 1,4"):
        folder.begin({"--gpus": [1, 4]})
    (tmp_path / "sweep.json").write_text(json.dumps({"version": 99, "settings": {}}))
    with pytest.raises(RecordError, match="version 99"):
        folder.begin({})
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(RecordError, match="cannot be read"):
        folder.begin({})


def test_where_nothing_was_measured_something_else_may_be_asked_for(runner):
    folder = SweepFolder(runner.out)
    folder.begin({"program": ["train.py"]})
    runner.num_steps = 6
    with pytest.raises(ConfigError, match="ended after 6 steps"):
        measured(runner)
    folder.keep(Job(failing=("full-2x8",)).run(Variant(gpus=2, batch_size=8, kind="full"), 1))
    folder.begin({"program": ["longer.py"]})
    assert folder.look(1) is None and folder.runs == []
    longer = Pretended(out=runner.out, num_steps=16)
    assert measured(longer).result.cells[1].speedup
    with pytest.raises(ConfigError, match=r"program is longer\.py there"):
        folder.begin({"program": ["train.py"]})


def test_a_round_that_failed_is_told_beside_those_that_did_not(runner):
    fine = measured(runner).result
    assert "failed-run" not in fine.cells[1].marks
    last = max(int(name[5:8]) for name in names(runner) if "full-2x8" in name)
    again = Pretended(out=runner.out / "again", num_steps=16, failing={f"{last:03d}-full-2x8": "no memory."})
    result = measured(again).result
    assert result.cells[1].status == "measured" and result.cells[1].marks.count("failed-run") == 1
    (mark,) = [each for each in result.fairness if each.mark == "failed-run"]
    assert "Round 3 of full (2 GPUs, batch 8) failed, and its other rounds count. no memory. " in mark.reason
    assert f"runs/{last:03d}-full-2x8" in mark.reason


def test_many_runs_that_failed_are_told_each_and_marked_once(runner):
    runner.failing = {"silent-2x8": "it hung", "cached-2x8": "no memory"}
    result = measured(runner).result
    assert len([each for each in result.fairness if each.mark == "failed-run"]) == 2
    assert result.cells[1].marks.count("failed-run") == 1


def test_of_what_is_refused_nothing_better_is_promised(runner):
    assert measured(runner).result.outlook
    runner.out /= "alone"
    runner.batch = lambda size: 8 * size
    runner.edit = lambda found, rank, size: None if isinstance(found, Group) else found
    result = measured(runner).result
    assert result.cells[1].status == "refused" and result.outlook == "" and result.num_rounds == 1
    assert result.stopped_because.startswith("no number of GPUs can be compared with one")
    assert result.cells[1].marks[0] == "no-process-group" and result.remarks == []


def test_it_stops_when_the_time_is_up_and_says_how_long_is_left(runner):
    runner.job = Job(noise=0.3, run_noise=0.3)
    asked = replace(ASKED, fewest_rounds=1, most_rounds=50, budget_s=20.0)
    result = measured(runner, asked).result
    # 2 looks, then rounds of 6 runs of a second each: another round would not fit
    assert len(runner.asked) == 2 + 18
    assert "a round takes 6 s" in result.stopped_because or "used up" in result.stopped_because
    left = [order.remaining_s for order in runner.asked[2:]]
    assert left[0] is None and left[1] == pytest.approx(17.0)
    assert all(a >= b for a, b in itertools.pairwise(left[1:]))


def test_curves_and_noise_are_told(runner):
    value = measured(runner).result.to_json()
    assert [(curve["gpus"], curve["batch_size"]) for curve in value["curves"]] == [(1, 8), (2, 8)]
    step, examples, seconds, loss = json.loads(json.dumps(value["curves"][1]["points"]))[9]
    assert (step, examples, loss) == (10, 80, 1.0) and seconds > 0
    noise = value["noise_scale"]
    assert noise is None or (noise["from_gpus"] == 2 and noise["low"] <= noise["value"] <= noise["high"])


def test_cells_of_one_sweep_are_found_by_their_place(runner):
    result = measured(runner).result
    assert result.cell(Cell(gpus=2, batch_size=8)) is result.cells[1]
