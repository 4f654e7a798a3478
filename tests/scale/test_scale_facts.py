"""What rows say of a run beside its times."""

from dataclasses import replace

import numpy as np
import pytest
from timing_rows import blocks, loader, machine, model

from samestep.observations import FORMAT, MOST_BYTES, Observations, ObservationWriter, observations_path
from samestep.observed import VERSION, First, Start, Trouble, Wrap
from samestep.probe.changes.batch_size import BatchSize
from samestep.probe.changes.caching import DataCached
from samestep.probe.changes.exchange import ExchangeOff
from samestep.probe.changes.local_norms import NormsLocal
from samestep.scale.facts import facts, finished
from samestep.scale.runs import Host, line_of, read_lines
from samestep.scale.timing import run_times
from samestep.scale.variants import Variant

TIMES = np.full(40, 0.02)
VARIANT = Variant(gpus=2, batch_size=16, kind="full")


def rank_rows(**changes):
    return [machine(), loader(), model(), *blocks(TIMES, **changes)]


def read(rows_of_ranks, host=None):
    return facts(rows_of_ranks, run_times(rows_of_ranks), host)


def write(folder, rows_of_ranks):
    for rank, rows in rows_of_ranks.items():
        writer = ObservationWriter(observations_path(folder, rank))
        writer.write(
            Start(
                format=FORMAT, version=VERSION, samestep="0", rank=rank, world_size=len(rows_of_ranks),
                attempt=0, program=("train.py",), steps_in_full=0, most_bytes=MOST_BYTES, python="3", host="",
                pid=1, time=0.0,
            )
        )  # fmt: skip
        for row in rows:
            writer.write(row)
        writer.close()
    return Observations.read(folder)


class TestFacts:
    def test_of_two_ranks(self):
        found = read({0: rank_rows(num_examples=10), 1: rank_rows(num_examples=6)})
        assert found.devices == ("cpu", "cpu") and found.is_on_host
        assert found.num_threads == (2, 2)
        assert found.rank_examples == (10.0, 6.0)
        assert found.examples_per_step == 16.0
        assert found.rank_step_s == pytest.approx((0.02, 0.02))
        assert found.cpu_s == pytest.approx(0.04)
        assert found.gradient_bytes == 4 * (1000 * 250 + 1000)
        assert found.wraps == ("DistributedDataParallel",)
        assert found.num_synchronised_norms == 2
        assert found.precisions == ("float32, matrices highest",) * 2
        assert found.waits_per_step is None

    def test_a_number_of_a_device_is_no_kind(self):
        rows = {rank: [machine(device=f"cuda:{rank}"), *blocks(TIMES)] for rank in (0, 1)}
        assert read(rows).devices == ("cuda", "cuda")
        assert not read(rows).is_on_host
        named = read(rows, Host(num_cores=8, devices=("A100", "V100")))
        assert named.devices == ("cuda A100", "cuda V100")

    def test_a_smaller_last_batch_is_no_other_batch_size(self):
        rows = rank_rows()
        rows[-1] = replace(rows[-1], num_examples=33)
        assert read({0: rows}).examples_per_step == 8.0

    def test_examples_that_one_rank_does_not_know(self):
        assert read({0: rank_rows(), 1: rank_rows(num_examples=None)}).examples_per_step is None

    def test_the_loader_trained_on_is_the_largest(self):
        rows = [machine(), loader(loader=0, num_examples=10, num_drawn=10), loader(loader=1), *blocks(TIMES)]
        found = read({0: rows, 1: rows}).loading
        assert (found.num_examples, found.num_drawn, found.num_workers) == (1000, 1000, 2)
        assert found.where == "train.py:10"
        assert found.is_pinned in (None, False)

    def test_what_a_rank_did_not_tell_is_not_added_up(self):
        rows = {0: [loader(), *blocks(TIMES)], 1: [loader(num_drawn=None), *blocks(TIMES)]}
        assert read(rows).loading.num_drawn is None
        assert read({0: blocks(TIMES)}).loading is None

    def test_phases_are_of_steps_after_warm_up(self):
        times = TIMES.copy()
        times[:10] = 1.0
        rows = blocks(times, phases_s=lambda first: {"data": 1.0 if first <= 10 else 0.05, "evaluation": 0.0})
        found = read({0: rows})
        assert found.phases_s == pytest.approx({"data": 0.01})

    def test_evaluation_is_of_the_whole_run_and_of_the_rank_that_had_most(self):
        rows = {
            rank: blocks(TIMES, phases_s=lambda first, rank=rank: {"evaluation": 0.01 if rank else 0.0})
            for rank in (0, 1)
        }
        found = read(rows)
        assert found.evaluation_s == pytest.approx(0.08)
        assert found.checkpoint_s == 0.0

    def test_an_evaluation_after_the_last_step_counts(self):
        last = replace(blocks(TIMES)[-1], first_step=41, num_steps=0, step_s=(), phases_s={"evaluation": 0.5})
        assert read({0: [*rank_rows(), last]}).evaluation_s == 0.5

    def test_memory_is_that_of_the_device_if_it_has_its_own(self):
        assert read({0: rank_rows()}).memory_bytes == 1035
        assert read({0: rank_rows(device_bytes=77)}).memory_bytes == 77

    def test_a_model_in_another_wrap_is_the_same_model(self):
        wrapped = model(wraps=(Wrap(kind="DataParallel", settings={}),))
        found = read({0: [machine(), model(wraps=()), wrapped, *blocks(TIMES)]})
        assert found.gradient_bytes == 4 * (1000 * 250 + 1000)
        assert found.wraps == ("DataParallel",)
        assert found.num_synchronised_norms == 2

    @pytest.mark.parametrize(("tensor", "size"), [
        ("w bfloat16 (3, 5) gradient", 30), ("w float64 () gradient", 8), ("w float32 (3, 5)", 0),
        ("w complex64 (2,) gradient", 16), ("w float32 (0, 5) gradient", 0),
    ])  # fmt: skip
    def test_bytes_of_a_gradient(self, tensor, size):
        assert read({0: [model(tensors=(tensor,)), *blocks(TIMES)]}).gradient_bytes == size


class TestFinished:
    def test_from_a_folder_to_a_line_and_back(self, tmp_path):
        observations = write(tmp_path, {0: rank_rows(), 1: rank_rows()})
        host = Host(num_cores=4, other_cores=0.1)
        run = finished(observations, VARIANT, 3, status="cut", seconds=5.0, host=host)
        assert run.is_measured and run.is_warm_up_over
        assert (run.round, run.num_steps, run.num_kept, run.num_warm_up) == (3, 40, 40, 0)
        assert run.blocks.value("lockstep") == pytest.approx(0.02)
        assert list(read_lines([line_of(run).encode()])) == [run]

    def test_a_run_without_steps_says_so(self, tmp_path):
        observations = write(tmp_path, {0: rank_rows(), 1: [machine()]})
        run = finished(observations, VARIANT, 1, status="finished", seconds=5.0)
        assert not run.is_measured
        assert "no step that all ranks took" in run.reason

    @pytest.mark.parametrize("part", [ExchangeOff, NormsLocal, DataCached, BatchSize])
    def test_a_change_that_was_not_made_leaves_no_times(self, tmp_path, part):
        trouble = Trouble(step=1, place=part.__name__, error="KeyError: 'sum_'")
        observations = write(tmp_path, {0: rank_rows(), 1: [*rank_rows(), trouble]})
        run = finished(observations, VARIANT, 1, status="cut", seconds=5.0)
        assert not run.is_measured and "not possible on rank 1 (KeyError: 'sum_')" in run.reason

    def test_trouble_of_an_observer_is_no_other_run(self, tmp_path):
        trouble = Trouble(step=1, place="a loss", error="E")
        observations = write(tmp_path, {0: [*rank_rows(), trouble], 1: rank_rows()})
        assert finished(observations, VARIANT, 1, status="cut", seconds=5.0).is_measured

    def test_a_run_that_failed_has_its_own_reason(self, tmp_path):
        observations = write(tmp_path, {0: [], 1: []})
        run = finished(observations, VARIANT, 1, status="failed", seconds=5.0, reason="out of memory")
        assert (run.is_measured, run.reason) == (False, "out of memory")


class TestStart:
    TIMES = (0.5, *(0.1,) * 40)

    def found(self, tmp_path, *seconds, is_cold=True, **more):
        rows = {
            rank: [machine(), First(seconds=each, is_cold=is_cold), *blocks(self.TIMES, length=1)]
            for rank, each in enumerate(seconds)
        }
        return finished(
            write(tmp_path, rows),
            Variant(gpus=len(rows), batch_size=8, kind="full"),
            1,
            status="cut",
            seconds=1.0,
            **more,
        )

    def test_it_lasts_until_the_first_step_of_the_rank_that_took_longest(self, tmp_path):
        found = self.found(tmp_path, 3.0, 4.0).facts
        assert found.start_s == pytest.approx(3.5)
        # beyond five steps, which warm-up is found in
        assert found.warm_up_s == pytest.approx(0.4)

    def test_forked_processes_tell_nothing_of_it(self, tmp_path):
        assert self.found(tmp_path, 3.0, is_cold=False).facts.start_s is None

    def test_a_task_tells_the_length_of_its_epoch(self, tmp_path):
        assert self.found(tmp_path / "a", 3.0).facts.steps_per_epoch is None
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "record.json").write_text('{"steps_per_epoch": 24}')
        assert self.found(tmp_path / "b", 3.0).facts.steps_per_epoch == 24

    def test_the_loader_is_the_one_that_was_seen_to_be_trained_on(self, tmp_path):
        small, large = loader(num_examples=10), loader(loader=1, num_examples=1000, where="train.py:11")
        rows = [machine(), small, large, *blocks(self.TIMES, length=1)]
        times = run_times({0: rows})
        assert facts({0: rows}, times, lines=["train.py:10"]).loading.num_examples == 10
        assert facts({0: rows}, times).loading.num_examples == 1000
