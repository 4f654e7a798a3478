"""What each observer sees, in this process, and what it must not change."""

import gc

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, TensorDataset
from watching import seen, watching

from samestep.observations import Observations, observations_path
from samestep.observed import (
    Batch,
    Call,
    Evaluated,
    Gradient,
    Loader,
    Loss,
    Model,
    Optimizer,
    Pass,
    PassEnd,
    RandomState,
    Replica,
    State,
    Step,
    Trouble,
)

PATCHED = [
    (DataLoader, "__iter__"),
    (DataLoader, "_index_sampler"),
    (torch.autograd, "backward"),
    (torch.nn.utils, "clip_grad_norm_"),
    (torch.nn.utils.clip_grad, "clip_grad_norm_"),
    (torch.optim.lr_scheduler.LRScheduler, "step"),
    (torch.amp.GradScaler, "step"),
    (dist, "all_reduce"),
    (dist.distributed_c10d, "all_reduce"),
    (torch.multiprocessing, "spawn"),
]


def train(model, steps, optimizer=None, **more):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, **more)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    return optimizer


def test_all_that_was_replaced_is_put_back(tmp_path):
    before = [vars(owner)[name] for owner, name in PATCHED]
    with watching(tmp_path):
        during = [vars(owner)[name] for owner, name in PATCHED]
        assert not any(a is b for a, b in zip(before, during, strict=True))
        assert (
            dist.all_reduce is dist.distributed_c10d.all_reduce and dist.all_reduce.__name__ == "all_reduce"
        )
    after = [vars(owner)[name] for owner, name in PATCHED]
    assert all(a is b for a, b in zip(before, after, strict=True))
    model = nn.Linear(3, 1)
    train(model, 1)
    assert seen(tmp_path, Call) == []


def test_the_file_does_not_grow_with_the_steps(tmp_path):
    sizes = []
    for steps in (200, 2000):
        with watching(tmp_path / str(steps), steps=5):
            loader = DataLoader(TensorDataset(torch.ones(8, 3)), batch_size=2)
            model = nn.Linear(3, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(steps // 4):
                for (x,) in loader:
                    optimizer.zero_grad()
                    model(x).sum().backward()
                    optimizer.step()
            assert model.weight._post_accumulate_grad_hooks in (None, {})
        sizes.append(observations_path(tmp_path / str(steps), 0).stat().st_size)
        assert seen(tmp_path / str(steps), Gradient)[-1].step == 5
    found = tmp_path / "2000"
    sampled = [10, 20, 30, 40, 50, 60, 70, 80, 90, *range(100, 1000, 100), 1000, 2000]
    assert [row.step for row in seen(found, Replica) if row.model == 0] == [6, 7, 8, 9, *sampled]
    assert [row.step for row in seen(found, RandomState)] == [*range(1, 10), *sampled]
    # of ten times the steps: 800 more rows of steps to the thousandth, then one in ten; 300 more passes
    steps_kept = [row.step for row in seen(found, Step)]
    assert len(steps_kept) == 1000 + 100 and sizes[1] < 6 * sizes[0]


def test_no_step_writes_more_rows_than_its_share(tmp_path, monkeypatch):
    monkeypatch.setattr("samestep.probe.watch.MOST_ROWS", 10)
    with watching(tmp_path) as installation:
        model = nn.Linear(3, 1).eval()
        for _ in range(30):
            model(torch.ones(1, 3))
        assert installation._writer.dropped == {"Call": 20}
    rows = seen(tmp_path, Call)
    assert len(rows) == 10 and not rows[0].is_training


def test_indices_of_any_sampler(tmp_path):
    data = TensorDataset(torch.arange(10.0))

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(5))

    with watching(tmp_path):
        list(DataLoader(data, batch_sampler=BatchSampler([4, 4, 2], 2, False)))
        list(DataLoader(data, batch_size=None, sampler=[7, 8]))
        list(DataLoader(Stream(), batch_size=2))
        list(DataLoader(data, batch_size=4, sampler=torch.tensor([1, 3, 5])))
        left = iter(DataLoader(data, batch_size=5))
        next(left)
        del left
        gc.collect()
    assert seen(tmp_path, Trouble) == []
    assert [(row.loader, row.indices) for row in seen(tmp_path, Batch)] == [
        (0, (4, 4)), (0, (2,)), (1, (7,)), (1, (8,)), (2, None), (2, None), (2, None), (3, (1, 3, 5)),
        (4, (0, 1, 2, 3, 4)),
    ]  # fmt: skip
    assert [row.is_iterable for row in seen(tmp_path, Loader)] == [False, False, True, False, False]
    assert [row.num_examples for row in seen(tmp_path, PassEnd)][:4] == [3, 2, None, 3]
    assert [len(row.examples) for row in seen(tmp_path, Batch)][4:7] == [2, 2, 1]


def test_loaders_keep_their_samplers_and_workers_that_stay(tmp_path):
    data = TensorDataset(torch.arange(6.0))
    with watching(tmp_path):
        loader = DataLoader(data, batch_size=2, num_workers=1, persistent_workers=True)
        assert len(loader) == 3 and isinstance(loader.batch_sampler, BatchSampler)
        assert loader._index_sampler is loader.batch_sampler
        for _ in range(2):
            assert [x.tolist() for (x,) in loader] == [[0, 1], [2, 3], [4, 5]]
        loader._iterator._shutdown_workers()
    assert [(row.number, row.batch) for row in seen(tmp_path, Batch)] == [
        (p, b) for p in (1, 2) for b in (1, 2, 3)
    ]
    assert [row.number for row in seen(tmp_path, Pass)] == [1, 2]
    assert all(row.is_exhausted for row in seen(tmp_path, PassEnd))


def test_names_do_not_depend_on_who_is_called(tmp_path):
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 2), nn.Tanh())

        def forward(self, x):
            return self.net(x)

    with watching(tmp_path / "part"):
        whole = Whole()
        train(whole.net, 1)
    with watching(tmp_path / "whole"):
        train(Whole(), 1)
    with watching(tmp_path / "wrapped"):
        train(nn.DataParallel(Whole()), 1)
    names = [[row.name for row in seen(tmp_path / run, Call)] for run in ("part", "whole", "wrapped")]
    assert names[0] == ["net.0", "net.1", "net"] and names[1] == names[2] == ["net.0", "net.1", "net", ""]
    for run in ("part", "whole", "wrapped"):
        assert {row.name for row in seen(tmp_path / run, Gradient)} == {"net.0.weight", "net.0.bias"}
    assert seen(tmp_path / "wrapped", Model)[0].wraps[0].kind == "DataParallel"


def test_accumulation_absent_gradients_and_losses(tmp_path):
    with watching(tmp_path):
        model = nn.ModuleDict({"used": nn.Linear(3, 1), "unused": nn.Linear(3, 1)})
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.2)
        for _ in range(3):
            (model["used"](torch.ones(1, 3)) * 2).sum().backward()
        optimizer.step()
        free = torch.zeros(2, requires_grad=True)
        other = torch.optim.SGD([free], lr=0.1)
        (free.sum() + 1).backward()
        other.step()
    rows = {(row.step, row.name, row.stage): row for row in seen(tmp_path, Gradient)}
    used, unused = rows[1, "used.weight", "local"], rows[1, "unused.weight", "applied"]
    assert used.num_backward == 3 and used.summary.mean == 6.0 and unused.summary is None
    assert rows[1, "used.weight", "applied"].summary == used.summary
    assert rows[2, "optimizer1.group0.0", "applied"].summary.mean == 1.0
    assert [row.number for row in seen(tmp_path, Loss)] == [1, 2, 3, 1] and seen(tmp_path, Loss)[
        3
    ].value == 1.0
    first, second = seen(tmp_path, Optimizer)
    assert (first.kind, first.groups[0].settings["weight_decay"]) == ("AdamW", "0.2")
    assert second.groups[0].parameters == ("optimizer1.group0.0",)


def test_gradients_that_something_changed_between_two_backward_passes(tmp_path):
    with watching(tmp_path):
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for factor in (None, 0.5):
            optimizer.zero_grad()
            for _ in range(2):
                model(torch.ones(1, 3)).sum().backward()
                if factor is not None:
                    model.weight.grad.mul_(factor)
            optimizer.step()
    rows = [row for row in seen(tmp_path, Gradient) if row.stage == "local"]
    assert [(row.step, row.name, row.num_edits) for row in rows] == [
        (1, "weight", 0), (1, "bias", 0), (2, "weight", 1), (2, "bias", 0),
    ]  # fmt: skip


def test_parameters_that_a_model_is_evaluated_with(tmp_path):
    with watching(tmp_path):
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            train(model.train(), 1, optimizer)
            for _ in range(2):
                model.eval()(torch.ones(1, 3))
            nn.Flatten().eval()(torch.ones(1, 3))
    first, second = seen(tmp_path, Evaluated)
    assert (first.step, second.step) == (2, 3) and first.print != second.print


def test_states_before_and_after_steps(tmp_path):
    with watching(tmp_path):
        model = nn.Linear(3, 1, bias=False)
        nn.init.zeros_(model.weight)
        train(model, 2)
    # each element of the gradient is 2, the number of examples
    assert [(row.step, row.summary.mean) for row in seen(tmp_path, State)] == [
        (0, 0.0), (1, pytest.approx(-0.2)), (2, pytest.approx(-0.4)),
    ]  # fmt: skip


def test_closures_are_looked_at_when_they_return(tmp_path):
    with watching(tmp_path):
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(2, 3)).sum()
            loss.backward()
            return loss

        assert optimizer.step(closure).ndim == 0 and optimizer.step(closure=closure).ndim == 0
    applied = [row for row in seen(tmp_path, Gradient) if row.stage == "applied" and row.name == "weight"]
    assert [(row.step, row.summary.mean) for row in applied] == [(1, 2.0), (2, 2.0)]
    assert [e.name for e in seen(tmp_path, Step)[1].events] == ["update", "forward", "backward"]


def test_an_optimizer_inside_of_another_and_one_that_raises(tmp_path):
    class Outer(torch.optim.Optimizer):
        def __init__(self, inner):
            super().__init__(inner.param_groups, {})
            self.inner = inner
            self.fails = True

        def step(self, closure=None):
            self.inner.step()
            if self.fails:
                self.fails = False
                raise ValueError("no")

    with watching(tmp_path):
        model = nn.Linear(3, 1)
        outer = Outer(torch.optim.SGD(model.parameters(), lr=0.1))
        with pytest.raises(ValueError, match="no"):
            train(model, 1, outer)
        train(model, 2, outer)
    assert [row.step for row in seen(tmp_path, Step)] == [1, 2]
    assert [row.groups[0].parameters for row in seen(tmp_path, Optimizer)] == [("weight", "bias")] * 2


def test_a_model_called_in_and_out_of_its_wrap_is_described_once_for_each(tmp_path):
    with watching(tmp_path):
        model = nn.DataParallel(nn.Linear(3, 1))
        for _ in range(5):
            model(torch.ones(1, 3)), model.module(torch.ones(1, 3))
    assert [len(row.wraps) for row in seen(tmp_path, Model)] == [1, 0]


def test_schedules_count_once_each(tmp_path):
    from torch.optim.lr_scheduler import ConstantLR, ReduceLROnPlateau, SequentialLR, StepLR

    with watching(tmp_path):
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plain = StepLR(optimizer, 1)
        both = SequentialLR(optimizer, [ConstantLR(optimizer), StepLR(optimizer, 3)], [2])
        plateau = ReduceLROnPlateau(optimizer)
        train(model, 1, optimizer)
        plain.step(), plain.step(), both.step(), plateau.step(1.0)
        train(model, 1, optimizer)
    assert [row.num_scheduler_steps for row in seen(tmp_path, Step)] == [0, 4]


def test_warnings_name_the_line_of_the_program(tmp_path):
    with watching(tmp_path):
        schedule = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(nn.Linear(3, 1).parameters()), 1)
        with pytest.warns(UserWarning, match="before `optimizer.step") as caught:
            schedule.step()
    assert caught[0].filename == __file__


def test_loss_scales_and_updates_left_out(tmp_path):
    with watching(tmp_path):
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for factor in (float("inf"), 1.0):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(torch.ones(2, 3)).float().sum() * factor
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    (step,) = seen(tmp_path, Step)
    assert (step.scale, step.num_skipped, step.num_backward) == (2.0, 1, 2)
    call = seen(tmp_path, Call)[0]
    assert (call.autocast, call.outputs[0].dtype) == ("bfloat16", "bfloat16")


def test_recomputed_activations_are_no_calls(tmp_path):
    from torch.utils.checkpoint import checkpoint

    with watching(tmp_path):
        model = nn.Linear(3, 1)
        checkpoint(model, torch.ones(2, 3), use_reentrant=False).sum().backward()
    assert len(seen(tmp_path, Call)) == 1


def test_a_model_that_raises_is_left(tmp_path):
    class Picky(nn.Module):
        def forward(self, x):
            raise ValueError("no")

    with watching(tmp_path):
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                nn.Sequential(nn.Linear(3, 1), Picky())(torch.ones(1, 3))
        train(nn.Linear(3, 1), 1)
    assert [row.name for row in seen(tmp_path, Call)][-1] == ""
    assert seen(tmp_path, Step)[0].phases_s["other"] > 0


def test_trouble_of_an_observer_is_told_once_and_kept_inside(tmp_path, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("samestep.probe.modules.summary", fail)
    with watching(tmp_path):
        train(nn.Linear(3, 1), 3)
    (trouble,) = seen(tmp_path, Trouble)
    assert trouble.error == "ZeroDivisionError: ours" and len(seen(tmp_path, Step)) == 3


def test_phases_add_up_to_the_time_that_passed(tmp_path):
    from time import perf_counter

    began = perf_counter()
    with watching(tmp_path):
        train(nn.Linear(3, 1), 20)
        passed = perf_counter() - began
    total = sum(sum(row.phases_s.values()) for row in seen(tmp_path, Step))
    assert 0 < total <= passed


def test_compiled_models_are_seen_from_outside(tmp_path, recwarn):
    with watching(tmp_path):
        model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
        train(torch.compile(model, backend="eager", fullgraph=True), 2, torch.optim.SGD(model.parameters()))
    assert [row.name for row in seen(tmp_path, Call)] == ["", ""]
    assert {row.name for row in seen(tmp_path, Gradient)} == {"0.weight", "0.bias"}
    assert not [w for w in recwarn if "global hooks" in str(w.message)]
    assert Observations.read(tmp_path).remarks == []
