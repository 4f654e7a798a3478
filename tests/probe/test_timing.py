"""The timing mode: whose time goes where, and what is written of it."""

import math
import time
from itertools import pairwise

import pytest
import torch
from timing_runs import rows, spent_s, timing
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import worlds
from samestep.observed import End, First, Loader, Machine, Model, PassEnd, Span, Timing, Trouble
from samestep.probe.timing_clock import TimingClock

SLOW_S = 0.004


class Slow(Dataset):
    """Examples that take their time."""

    def __init__(self, length=16, seconds=SLOW_S):
        self.length, self.seconds = length, seconds

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.full((4,), float(index)), index % 2


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.ones(4), 0)] * 7)


class Asleep(nn.Linear):
    """A model that takes its time, and no processor's."""

    seconds = 0.0

    def forward(self, x):
        time.sleep(self.seconds)
        return super().forward(x)


def train(model, batches, optimizer=None, after=lambda loss: None):
    model.train()
    optimizer = optimizer or torch.optim.Adam(model.parameters())
    for x, y in batches:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after(loss)


def evaluate(model, batches):
    model.eval()
    with torch.no_grad():
        for x, _ in batches:
            model(x)


def test_blocks_have_all_steps_and_all_time(tmp_path):
    with timing(tmp_path, block=3):
        train(Asleep(4, 2), DataLoader(Slow(16, 0.0), batch_size=2))
    blocks = rows(tmp_path, Timing)
    taken = [(block.first_step, block.num_steps) for block in blocks if block.num_steps]
    # the first step is by itself: it is the one that warms up most
    assert taken == [(1, 1), (2, 3), (5, 3), (8, 1)]
    for block in blocks:
        assert math.isclose(sum(block.phases_s.values()), block.seconds, abs_tol=1e-9)
        assert block.num_steps == len(block.step_s) == len(block.losses)
        assert sum(block.step_s) <= block.seconds + 1e-9
        assert block.rss_bytes > 2**20
        assert block.num_waits == 0
    assert sum(block.num_examples for block in blocks) == 16
    assert [block.began_s for block in blocks] == sorted(block.began_s for block in blocks)
    assert abs(blocks[-1].began_s - time.monotonic()) < 60
    assert rows(tmp_path, Trouble) == []


def test_by_itself_a_block_is_long_enough_to_be_timed(tmp_path):
    model = Asleep(4, 2)
    model.seconds = 0.02
    with timing(tmp_path):
        train(model, DataLoader(Slow(12, 0.0), batch_size=1))
    whole = [block for block in rows(tmp_path, Timing) if block.first_step > 1][:-2]
    assert all(block.seconds >= 0.05 for block in whole)
    assert all(2 <= block.num_steps <= 3 for block in whole)
    model.seconds = 0.0
    with timing(tmp_path):
        train(model, DataLoader(Slow(32, 0.0), batch_size=1))
    assert max(block.num_steps for block in rows(tmp_path, Timing)) == 10


def test_where_the_time_goes(tmp_path):
    model, seconds = Asleep(4, 2), 0.01
    model.seconds = seconds
    with timing(tmp_path):
        train(model, DataLoader(Slow(8), batch_size=2), after=lambda loss: time.sleep(2 * seconds))
    # sleeping lasts at least as long as it is asked to
    assert spent_s(tmp_path, "data") >= 8 * SLOW_S
    assert spent_s(tmp_path, "forward") >= 4 * seconds
    assert spent_s(tmp_path, "other") >= 4 * 2 * seconds
    assert spent_s(tmp_path, "evaluation") == spent_s(tmp_path, "checkpoint") == 0.0
    assert 0.0 < spent_s(tmp_path, "backward") < seconds
    assert spent_s(tmp_path, "update") > 0.0


def test_evaluations_belong_to_no_step(tmp_path):
    model, seconds = Asleep(4, 2), 0.01
    training, held_out = DataLoader(Slow(4, 0.0), batch_size=2), DataLoader(Slow(6), batch_size=2)
    with timing(tmp_path):
        for _ in range(3):
            model.seconds = 0.0
            train(model, training)
            model.seconds = seconds
            evaluate(model, held_out)
            time.sleep(seconds)
    least = 3 * (6 * SLOW_S + 3 * seconds + seconds)
    assert spent_s(tmp_path, "evaluation") >= least - seconds
    # without what was evaluated
    assert spent_s(tmp_path, "forward") < 9 * seconds
    assert spent_s(tmp_path, "data") < 18 * SLOW_S
    assert sum(block.num_examples for block in rows(tmp_path, Timing)) == 12


def test_a_teacher_is_no_evaluation(tmp_path):
    model, teacher = nn.Linear(4, 2), Asleep(4, 2).eval()
    teacher.seconds = 0.01
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with timing(tmp_path):
        for x, _ in DataLoader(Slow(8, 0.0), batch_size=2):
            with torch.no_grad():
                aim = teacher(x)
            (model(x) - aim).square().sum().backward()
            optimizer.step()
    # before the first step nobody knows which loader is trained on
    assert spent_s(tmp_path, "forward") >= 3 * 0.01
    assert all("evaluation" not in row.phases_s for row in rows(tmp_path, Timing) if row.first_step > 1)


def test_saving_is_a_checkpoint(tmp_path):
    model = nn.Linear(4, 2)

    class Late:
        def __reduce__(self):
            time.sleep(0.02)
            return (float, (1.0,))

    with timing(tmp_path):
        train(model, DataLoader(Slow(4, 0.0)), after=lambda loss: torch.save(Late(), tmp_path / "x.pt"))
    assert spent_s(tmp_path, "checkpoint") >= 4 * 0.02
    # the first step of a process loads what optimizers need
    later = [row for row in rows(tmp_path, Timing) if row.first_step > 1]
    assert sum(row.phases_s["checkpoint"] for row in later) >= 3 * 0.02
    assert sum(row.phases_s.get("other", 0.0) for row in later) < 3 * 0.02


def test_what_is_between_steps_or_after_them_is_of_none(tmp_path):
    model = Asleep(4, 2)
    model.seconds = seconds = 0.01

    class Late:
        def __reduce__(self):
            time.sleep(0.2)
            return (float, (1.0,))

    with timing(tmp_path, block=8):
        train(model, DataLoader(Slow(5, 0.0)))
        torch.save(Late(), tmp_path / "x.pt")
        train(model, DataLoader(Slow(2, 0.0)))
        torch.save(Late(), tmp_path / "x.pt")
        time.sleep(0.1)
    first, steps, after = rows(tmp_path, Timing)
    assert (first.num_steps, steps.num_steps, after.num_steps) == (1, 6, 0)
    assert all(seconds <= step_s < 0.2 for step_s in steps.step_s)
    assert (
        0.2
        <= steps.phases_s["checkpoint"]
        < 0.4
        <= steps.phases_s["checkpoint"] + after.phases_s["checkpoint"]
    )
    assert sum(steps.step_s) + steps.phases_s["checkpoint"] == pytest.approx(steps.seconds, abs=0.005)
    assert after.phases_s["other"] >= 0.1 > steps.phases_s["other"]


def test_losses_are_means_over_backward_passes_without_the_scale(tmp_path):
    weight = nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([weight], 0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with timing(tmp_path, block=10):
        for value in (2.0, 4.0):
            (weight * value).backward()
        optimizer.step()
        scaler.scale(weight * 5.0).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.step()
        loss = weight * 7.0
        loss.backward()
        with torch.no_grad():
            loss.zero_()
        optimizer.step()
    found = [loss for block in rows(tmp_path, Timing) for loss in block.losses]
    assert found == [3.0, 5.0, None, 7.0]


def test_waits_are_those_of_the_program_in_its_steps(tmp_path):
    def read(loss):
        loss.item()
        loss.detach().cpu()
        torch.zeros(3).tolist()
        float(loss.detach())

    own = {name: getattr(torch.Tensor, name) for name in ("item", "cpu", "tolist", "__float__")}
    with timing(tmp_path):
        # Adam reads its own count of steps, which is no wait
        train(nn.Linear(4, 2), DataLoader(Slow(4, 0.0)), after=read)
    assert sum(block.num_waits for block in rows(tmp_path, Timing)) == 4 * 4
    assert {name: getattr(torch.Tensor, name) for name in own} == own
    assert not own.keys() & vars(torch.Tensor).keys()


def test_some_steps_are_told_phase_by_phase(tmp_path):
    with timing(tmp_path):
        train(nn.Linear(4, 2), DataLoader(Slow(26, 0.0)))
    spans = rows(tmp_path, Span)
    assert sorted({span.step for span in spans}) == [3, 4, 5, 6, 21, 22, 23, 24]
    one = [span for span in spans if span.step == 22]
    order = [span.phase for span in one if span.phase != "other"]
    assert order == ["data", "forward", "backward", "update"]
    for before, after in pairwise(one):
        assert math.isclose(before.began_s + before.seconds, after.began_s, abs_tol=1e-6)


def test_what_else_is_written(tmp_path):
    class Wide(nn.Sequential):
        pass

    with timing(tmp_path):
        train(Wide(nn.Linear(4, 2)), DataLoader(Slow(4, 0.0), pin_memory=False))
        train(nn.Linear(4, 2), DataLoader(Stream(), batch_size=2))
    (first,) = rows(tmp_path, First)
    assert 0 < first.seconds < 3600
    assert first.is_cold is False
    loader, _ = rows(tmp_path, Loader)
    assert (loader.num_drawn, loader.is_pinned) == (4, False)
    assert [row.kind for row in rows(tmp_path, Model)] == ["Wide", "Linear"]
    assert [row.device for row in rows(tmp_path, Machine)] == ["cpu"]
    assert [row.num_examples for row in rows(tmp_path, PassEnd)] == [4, None]
    # a stream has no indices: its examples are the rows of its tensors
    assert sum(block.num_examples for block in rows(tmp_path, Timing)) == 4 + 7
    assert rows(tmp_path, End) == rows(tmp_path, Trouble) == []


def test_a_step_that_raises_and_a_nested_optimizer(tmp_path):
    class Outer(torch.optim.SGD):
        def step(self, closure=None):
            inner.step()

    model = nn.Linear(4, 2)
    inner = torch.optim.SGD(model.parameters(), 0.1)
    outer = Outer(model.parameters(), 0.1)
    with timing(tmp_path):
        train(model, DataLoader(Slow(3, 0.0)), outer)
        with pytest.raises(ZeroDivisionError):
            inner.step(lambda: 1 / 0)
        with pytest.raises(RuntimeError):
            model(torch.ones(3))
        train(model, DataLoader(Slow(2, 0.0)), inner)
    assert sum(block.num_steps for block in rows(tmp_path, Timing)) == 5
    assert rows(tmp_path, Trouble) == []


def test_a_compiled_model_is_timed(tmp_path):
    model = nn.Linear(4, 2)
    compiled = torch.compile(model, backend="eager")
    with timing(tmp_path):
        train(compiled, DataLoader(Slow(4, 0.0)), torch.optim.SGD(model.parameters(), 0.1))
    assert sum(block.num_steps for block in rows(tmp_path, Timing)) == 4
    assert spent_s(tmp_path, "forward") > 0
    assert rows(tmp_path, Trouble) == []


def test_nothing_is_left_behind():
    call, backward = nn.Module.__call__, torch.autograd.backward
    from samestep import phase

    enter = phase.enter
    assert "timing" not in str(call.__code__.co_filename)
    assert "timing" not in str(backward.__code__.co_filename)
    assert "timing" not in str(enter.__code__.co_filename)


def exchanged_late(world, folder):
    """DDP on two ranks, one of which comes late: the other waits at the end of backward."""
    from pathlib import Path

    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(Asleep(4, 2))
    with timing(Path(folder), rank=world.rank, size=world.size):
        for _ in range(5):
            model.module.seconds = 0.05 * world.rank
            train(model, [(torch.ones(2, 4), torch.zeros(2, dtype=torch.long))])


def test_waiting_for_other_ranks_is_exchange(tmp_path):
    worlds.run(2, exchanged_late, folder=str(tmp_path))
    assert spent_s(tmp_path, "exchange", rank=0) > 4 * 0.05 - 0.02
    assert spent_s(tmp_path, "exchange", rank=1) < 0.1
    assert spent_s(tmp_path, "backward", rank=0) < 0.1
    (model,) = rows(tmp_path, Model)
    assert [wrap.kind for wrap in model.wraps] == ["DistributedDataParallel"]


def test_a_clock_that_is_set_aside():
    clock = TimingClock()
    clock.restart()
    depth = clock.enter("data")
    clock.mark()
    time.sleep(0.01)
    clock.leave(depth)
    clock.set_aside_since_mark("evaluation")
    depth = clock.enter("forward")
    time.sleep(0.01)
    clock.leave(depth)
    clock.set_aside(None)
    spent = clock.take()
    assert spent["evaluation"] >= 0.02
    assert spent.get("forward", 0.0) == 0.0
    assert spent.get("data", 0.0) < 0.01
