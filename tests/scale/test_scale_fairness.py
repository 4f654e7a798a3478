"""What makes a comparison worth less, or nothing; and that a fair one is left alone."""

from dataclasses import replace

import pytest
from synthetic import Job

from samestep.scale.fairness import RULES
from samestep.scale.judgement import judge
from samestep.scale.plan import Sweep
from samestep.scale.statistics import Blocks

SWEEP = Sweep(worlds=(1, 2), batches=(32,))


def result(job=None, rounds=6, edit=lambda run: run):
    job = job or Job()
    return judge(SWEEP, [edit(run) for run in job.runs(SWEEP, rounds)])


def mark(found, name):
    """The mark of the cell of two GPUs, which must be its only one."""
    marks = [each for each in found.fairness if each.gpus == 2]
    assert [each.mark for each in marks] == [name]
    cell = next(cell for cell in found.cells if cell.gpus == 2)
    assert cell.marks == (name,)
    assert marks[0].reason.endswith(".")
    return marks[0], cell


def is_refused(found, name):
    """Whether the cell has its times, and no speedup or gap."""
    told, cell = mark(found, name)
    assert told.is_refusal and cell.status == "refused"
    assert cell.step_s and cell.speedup is None and cell.efficiency is None and cell.speedup_low is None
    assert found.gaps == []
    return told.reason


def is_marked(found, name):
    told, cell = mark(found, name)
    assert not told.is_refusal and cell.status == "measured" and cell.speedup
    assert len(found.gaps) == 1
    return told.reason


def test_a_fair_comparison_has_no_mark():
    found = result()
    assert found.fairness == []
    assert {cell.status for cell in found.cells} == {"measured"}


class TestRefused:
    def test_another_model_of_device(self):
        facts = {1: {"devices": ("cuda A100",)}, 2: {"devices": ("cuda V100",) * 2}}
        assert "cuda A100, cuda V100" in is_refused(result(Job(facts=facts)), "other-device")

    def test_ranks_on_different_devices(self):
        facts = {1: {"devices": ("cuda A",)}, 2: {"devices": ("cuda A", "cuda B")}}
        is_refused(result(Job(facts=facts)), "other-device")

    def test_twice_the_examples(self):
        reason = is_refused(result(Job(facts={2: {"rank_examples": (32.0, 32.0)}})), "other-examples")
        assert "A step has 64 examples on 2 GPUs and 32 on one, where 32 were due" in reason
        assert "--weak" in reason

    def test_epochs_that_end_with_a_small_batch(self):
        """All blocks of one GPU have one in them, those of two GPUs are shorter, and not all have."""
        facts = {
            1: {"rank_examples": (30.0,), "examples_between": (30.0, 30.2)},
            2: {"rank_examples": (16.0, 16.0), "examples_between": (28.5, 32.0)},
        }
        assert result(Job(facts=facts)).cells[1].status == "measured"
        # the control: blocks that never have as few
        facts[2]["examples_between"] = (31.5, 32.0)
        is_refused(result(Job(facts=facts)), "other-examples")

    def test_a_batch_that_should_have_grown(self):
        sweep = Sweep(worlds=(1, 2), batches=(32,), is_weak=True)
        facts = {2: {"rank_examples": (16.0, 16.0)}}
        assert "where 64 were due" in is_refused(judge(sweep, Job(facts=facts).runs(sweep)), "other-examples")

    def test_a_batch_that_the_data_set_does_not_have(self):
        few = {"num_examples": 20, "num_drawn": 20}
        facts = {1: {"rank_examples": (20.0,)}, 2: {"rank_examples": (10.0, 10.0)}}
        found = result(Job(loading=few, facts=facts))
        assert [cell.status for cell in found.cells] == ["refused", "refused"]
        assert "Steps of 32 examples were asked for" in (reason := is_refused(found, "other-examples"))
        assert "has 20, so that they have 20; ask for a batch of at most 20" in reason
        # a loader that begins anew within a step has them all the same
        assert result(Job(loading=few)).cells[1].status == "measured"
        # the last batch of an epoch may be smaller
        many = {"num_examples": 40, "num_drawn": 40}
        assert result(Job(loading=many, facts=facts)).cells[1].status == "measured"

    def test_one_example_in_a_hundred_is_let_pass(self):
        assert result(Job(facts={2: {"rank_examples": (16.0, 15.7)}})).fairness == []

    def test_another_precision(self):
        facts = {2: {"precisions": ("bfloat16",) * 2}}
        assert "bfloat16; float32" in is_refused(result(Job(facts=facts)), "other-precision")


class TestMarked:
    def test_other_threads(self):
        facts = {1: {"num_threads": (8,)}, 2: {"num_threads": (4, 4)}}
        assert "8 on 1 GPU; 4 on 2 GPUs" in is_marked(result(Job(facts=facts)), "other-threads")

    def test_other_clock_limits(self):
        def limited(run):
            mhz = 1400 if run.variant.gpus == 1 else 1000
            return replace(run, host=replace(run.host, clock_limits_mhz=(mhz,) * run.variant.gpus))

        assert "1000 MHz, 1400 MHz" in is_marked(result(edit=limited), "other-clock-limit")

    def test_examples_that_nobody_counted(self):
        is_marked(result(Job(facts={"rank_examples": None})), "examples-not-counted")

    def test_examples_that_each_rank_trains_on(self):
        found = result(Job(drawn=lambda gpus: 10_000 * gpus))
        assert "20,000 examples in a pass over 10,000" in is_refused(found, "repeated-examples")
        one, two = found.cells
        assert (one.steps_per_epoch, two.steps_per_epoch) == (313, 625)  # of 32 examples each

    def test_padding_repeats_hardly_any(self):
        assert result(Job(drawn=lambda gpus: -(-10_001 // gpus) * gpus)).fairness == []

    def test_another_process_was_busy_in_one_run(self):
        def disturbed(run):
            is_it = (run.variant.name, run.round) == ("silent-2x32", 4)
            return replace(run, host=replace(run.host, other_cores=1.5 if is_it else 0.1))

        reason = is_marked(result(edit=disturbed), "busy")
        assert "1.5 of 8 cores during round 4 of silent (2 GPUs, batch 32)" in reason

    @pytest.mark.parametrize(("others", "cores"), [(0.2, 8), (2.0, 64), (None, 8)])
    def test_a_little_work_of_others_is_usual(self, others, cores):
        assert result(Job(host={"other_cores": others}, num_cores=cores)).fairness == []

    def test_rounds_that_differ_much(self):
        found = result(Job(drift=0.4))
        marks = [each for each in found.fairness if each.mark == "too-noisy"]
        assert {each.gpus for each in marks} == {1, 2}
        assert "±" in marks[0].reason

    def test_a_run_that_ended_soon(self):
        def short(run):
            kept = 7 if run.variant.name == "cached-2x32" else 8
            blocks = Blocks.of(Job().steps(run.variant, run.round)[:, :kept])
            return replace(run, blocks=blocks, num_steps=kept + 10)

        reason = is_marked(result(edit=short), "too-few-steps")
        assert "cached (2 GPUs, batch 32) took 17 steps, of which 7 came after warm-up" in reason

    def test_steps_that_never_settled(self):
        def unsettled(run):
            return replace(run, is_warm_up_over=run.variant.name != "full-2x32")

        assert "full (2 GPUs, batch 32)" in is_marked(result(edit=unsettled), "warm-up-not-over")

    def test_few_rounds(self):
        assert "One round was made" in is_marked(result(rounds=1), "one-round")
        assert result(rounds=2).fairness == []


def test_refusals_are_told_first():
    facts = {1: {"num_threads": (8,)}, 2: {"rank_examples": (32.0, 32.0)}}
    found = result(Job(facts=facts), rounds=2)
    assert next(each.mark for each in found.fairness if each.gpus == 2) == "other-examples"
    assert len(found.cells[1].marks) == 2


def test_nothing_is_asked_twice():
    assert len(set(RULES)) == len(RULES)
