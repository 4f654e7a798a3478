"""What was found by sweeps over programs of many kinds: each case with the one that is almost it."""

from dataclasses import replace

import numpy as np
import pytest
from pretended import Pretended
from rows import row
from synthetic import Job
from timing_rows import blocks, loader, machine, model
from typer.testing import CliRunner

from samestep.cli import app
from samestep.errors import ConfigError
from samestep.observed import Batch, Group, Loader, Pass, Spawn, Step
from samestep.scale.asked import Asked
from samestep.scale.curves import curve
from samestep.scale.facts import facts
from samestep.scale.folder import SweepFolder
from samestep.scale.looks import Look
from samestep.scale.measure import measure
from samestep.scale.timing import run_times
from samestep.scale.variants import Cell

TIMES = np.full(40, 0.02)


def read(*ranks):
    rows = dict(enumerate(ranks))
    return facts(rows, run_times(rows))


def good(size, **seen):
    return Look(world_size=size, status="cut", num_steps=16, **seen)


class TestProcessorTime:
    def rows(self, *, start_cpu_s=0.0, evaluation_s=0.0):
        """The first step has a block of its own, with start-up in it; the last block has an evaluation."""
        timed = blocks(TIMES[:1]) + [
            replace(block, first_step=block.first_step + 1) for block in blocks(TIMES[1:], length=13)
        ]
        first, last = timed[0], timed[-1]
        timed[0] = replace(
            first,
            seconds=first.seconds + 10,
            cpu_s=first.cpu_s + start_cpu_s,
            phases_s={"other": 10.0},
        )
        timed[-1] = replace(
            last,
            seconds=last.seconds + evaluation_s,
            cpu_s=last.cpu_s + evaluation_s,
            step_s=(*last.step_s[:-1], last.step_s[-1] + evaluation_s),
            phases_s={"evaluation": evaluation_s},
        )
        return [machine(), *timed]

    @pytest.mark.parametrize("changes", [{}, {"start_cpu_s": 3.0}, {"evaluation_s": 2.0}])
    def test_start_up_and_evaluation_are_not_that_of_steps(self, changes):
        found = read(self.rows(**changes))
        assert found.cpu_s == pytest.approx(0.02)
        assert found.phases_s.get("other", 0.0) == 0.0

    def test_what_steps_use_counts(self):
        rows = [replace(row, cpu_s=2 * row.cpu_s) if hasattr(row, "cpu_s") else row for row in self.rows()]
        assert read(rows).cpu_s == pytest.approx(0.04)


class TestExamplesOfAPass:
    def rows(self, planned, **changes):
        passed = Pass(
            step=1, loader=0, number=1, base_seed=None, sampler_settings={}, random=None, num_planned=planned
        )  # fmt: skip
        return [machine(), loader(num_drawn=1000, **changes), passed, model(), *blocks(TIMES)]

    @pytest.mark.parametrize(
        ("planned", "batch_size", "drawn"),
        [
            (125, 8, 1000),  # the whole
            (63, 8, 504),  # a share, as Accelerate's loaders hand it out, of a sampler over the whole
            (124, 8, 992),  # the last batch is dropped
            (126, 8, 1000),  # never more than the sampler has
            (None, 8, 1000),
            (63, None, 1000),
        ],
    )
    def test_batches_that_a_loader_has_bound_them(self, planned, batch_size, drawn):
        assert read(self.rows(planned, batch_size=batch_size)).loading.num_drawn == drawn


def test_a_program_that_nobody_counts_examples_of_has_none_and_not_zero():
    assert read([machine(), *blocks(TIMES, num_examples=0)]).rank_examples is None
    some = blocks(TIMES, num_examples=0)
    assert read([machine(), *some[:2], *blocks(TIMES, num_examples=8)[2:]]).rank_examples == (8.0,)


def test_a_block_without_steps_at_the_end_of_a_program_changes_no_curve():
    rows = [machine(), *blocks(TIMES, losses=(1.0,) * 5)]
    empty = replace(blocks(TIMES)[-1], first_step=41, num_steps=0, num_examples=0, step_s=(), losses=())
    assert curve(Cell(gpus=1, batch_size=8), [{0: [*rows, empty]}]) == curve(
        Cell(gpus=1, batch_size=8), [{0: rows}]
    )


class TestWithoutLoaders:
    """Examples are counted where a model is given them, and nobody can hand out others."""

    def looks(self, one=8, two=8, *, is_loaded=False):
        counts = {1: one, 2: two}
        return {
            size: good(
                size,
                is_loaded=is_loaded,
                rank_examples=None if count is None else (count / size,) * size,
            )
            for size, count in counts.items()
        }

    def impossible(self, asked, looks):
        sweep, _ = asked.sweep(looks)
        return {variant.name for variant in asked.impossible(sweep, looks)}

    def test_the_share_of_a_rank_cannot_be_run_alone(self):
        asked = Asked(worlds=(1, 2))
        assert self.impossible(asked, self.looks()) == {"cached-1x4"}
        assert self.impossible(asked, self.looks(is_loaded=True)) == set()

    def test_a_batch_that_grows_needs_none(self):
        assert self.impossible(Asked(worlds=(1, 2)), self.looks(8, 16)) == set()

    def test_another_batch_is_refused(self):
        looks = self.looks()
        with pytest.raises(ConfigError, match=r"Steps of 4 examples .* on 1 rank\. The program's own have 8"):
            Asked(worlds=(1, 2), batches=(4,)).sweep(looks)
        with pytest.raises(ConfigError, match="Steps of 16 examples were asked for on 2 ranks"):
            Asked(worlds=(1, 2), is_weak=True).sweep(looks)
        assert Asked(worlds=(1, 2), batches=(8,)).sweep(looks)[0].batches == (8,)
        assert Asked(worlds=(1, 2), batches=(4,)).sweep(self.looks(is_loaded=True))[0].batches == (4,)
        assert Asked(worlds=(1, 2), batches=(4,), is_task=True).sweep(looks)[0].batches == (4,)

    def test_of_a_batch_that_could_not_be_counted_the_user_is_believed_once(self):
        looks = self.looks(None, None)
        assert self.impossible(Asked(worlds=(1, 2), batches=(8,)), looks) == {"cached-1x4"}
        with pytest.raises(ConfigError, match=r"Batches of 8, 16 .* name the one that it has"):
            Asked(worlds=(1, 2), batches=(8, 16)).sweep(looks)

    def test_the_gap_is_one_bar_and_it_is_said_why(self, tmp_path):
        runner = Pretended(out=tmp_path, num_steps=16)
        folder = SweepFolder(tmp_path)
        looks = self.looks()
        for look in looks.values():
            folder.keep_look(look)
        asked = Asked(worlds=(1, 2), most_rounds=1)
        result = measure(asked, folder, runner, clock=runner.clock).result
        assert not any("cached-1x4" in order.name for order in runner.asked)
        assert [part.name for part in result.gaps[0].parts] == ["not told apart"]
        assert "no torch DataLoader" in result.remarks[0]

    def test_steps_that_are_slow_are_not_waiting_for_input(self):
        job = Job(fetch_s=1e-3, looks={1: good(1, is_loaded=False), 2: good(2, is_loaded=False)})
        assert "input-bound" not in job.causes(worlds=(1, 2))
        job.looks = {1: good(1), 2: good(2)}
        assert "input-bound" in job.causes(worlds=(1, 2))


class TestTheSameExamplesOnEveryRank:
    def test_they_are_not_compared(self):
        job = Job(looks={1: good(1, repeats=1.0), 2: good(2, repeats=2.0)})
        result = job.result(worlds=(1, 2))
        assert result.cells[1].status == "refused" and result.cells[1].marks == ("repeated-examples",)
        assert "each one of a step is in it 2 times" in result.fairness[0].reason

    @pytest.mark.parametrize("repeats", [(1.0, 1.2), (1.0, None), (None, 2.0), (2.0, 2.0), (32.0, 64.0)])
    def test_few_that_are_drawn_again_or_what_nobody_can_tell(self, repeats):
        job = Job(looks={size: good(size, repeats=repeats[size - 1]) for size in (1, 2)})
        assert job.result(worlds=(1, 2)).cells[1].status == "measured"


class TestWithoutAGroup:
    def test_ranks_that_train_alone_are_not_compared(self):
        job = Job(looks={1: good(1, is_joined=False), 2: good(2, is_joined=False)})
        one, two = job.result(worlds=(1, 2)).cells
        assert (one.status, two.status) == ("measured", "refused") and two.marks == ("no-process-group",)
        job.looks = {1: good(1, is_joined=False), 2: good(2)}
        assert job.result(worlds=(1, 2)).cells[1].status == "measured"

    def test_nobody_waits_for_anybody(self):
        job = Job(jitter_s=0.01, looks={2: good(2, is_joined=False)})
        assert "stragglers" not in job.causes(worlds=(1, 2))
        job.looks = {2: good(2)}
        assert "stragglers" in job.causes(worlds=(1, 2))


def test_a_look_knows_loaders_and_groups(tmp_path):
    def seen(name, *gone):
        def edit(found, rank, size):
            return None if isinstance(found, gone) else found

        runner = Pretended(out=tmp_path / name, num_steps=16, edit=edit)
        found = measure(Asked(worlds=(1, 2), most_rounds=1), SweepFolder(runner.out), runner)
        return found.looks[2]

    plain = seen("plain")
    assert plain.is_loaded and plain.is_joined
    alone, unloaded = seen("alone", Group), seen("unloaded", Loader)
    assert alone.is_loaded and not alone.is_joined
    assert unloaded.is_joined and not unloaded.is_loaded


class TestAProgramThatCannotBeTimedIsRunOnce:
    def refused(self, runner, match):
        with pytest.raises(ConfigError, match=match):
            measure(Asked(worlds=(1, 2, 4)), SweepFolder(runner.out), runner, clock=runner.clock)
        return [order.name for order in runner.asked]

    def test_too_few_steps(self, tmp_path):
        runner = Pretended(out=tmp_path, num_steps=6)
        assert self.refused(runner, "ended after 6 steps on 1 rank") == ["looks/1"]

    def test_processes_of_its_own(self, tmp_path):
        def edit(found, rank, size):
            return row(Spawn) if isinstance(found, Step | Batch) else found

        runner = Pretended(out=tmp_path, num_steps=6, edit=edit)
        assert self.refused(runner, "started processes of its own") == ["looks/1"]

    def test_one_that_failed_is_tried_on_others(self, tmp_path):
        runner = Pretended(out=tmp_path, num_steps=16, failing={"looks/1": "it broke"})
        measure(Asked(worlds=(1, 2), most_rounds=1), SweepFolder(tmp_path), runner, clock=runner.clock)
        assert [order.name for order in runner.asked][:2] == ["looks/1", "looks/2"]


def test_what_helps_an_exchange_depends_on_its_bytes():
    def fix(size):
        job = Job(exchange_s=0.02, facts={"gradient_bytes": size})
        (finding,) = job.result(worlds=(1, 2)).findings
        assert finding.cause == "exchange-bound"
        return finding.fix

    assert "bfloat16" in fix(2**20 + 1) and "bfloat16" in fix(0)
    assert "bfloat16" not in fix(2600) and "each message" in fix(2**20)


def test_one_worker_is_one():
    def message(count):
        (finding,) = Job(fetch_s=1e-3, loading={"num_workers": count}).result(worlds=(1,)).findings
        return finding.message

    assert "by 1 loader worker a rank" in message(1)
    assert "by 2 loader workers a rank" in message(2)


def test_help_says_what_happens_without_an_option():
    text = (
        CliRunner().invoke(app, ["scale", "--help"], env={"COLUMNS": "160", "TERMINAL_WIDTH": "160"}).output
    )
    for default in ("the program's", "a cell, and 2 rounds", "cores / most ranks"):
        assert default in text


def test_one_norm_layer_is_one():
    def message(count):
        job = Job(norms_s=0.02, facts={"num_synchronised_norms": count})
        (finding,) = job.result(worlds=(1, 2)).findings
        return finding.message

    assert "a synchronised norm layer waits for all ranks" in message(1)
    assert "2 synchronised norm layers wait for all ranks" in message(2)
