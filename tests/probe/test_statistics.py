"""Modules that keep statistics are known by what they do."""

import torch
import torch.distributed as dist
from torch import nn
from watching import seen, watching

from samestep.observed import Call, Statistic


class ByHand(nn.Module):
    def __init__(self, is_shared=False):
        super().__init__()
        self.register_buffer("seen_mean", torch.zeros(3))
        self.register_buffer("table", torch.ones(3))
        self.register_buffer("count", torch.tensor(0))
        self.is_shared = is_shared

    def forward(self, x):
        if self.training:
            mean = x.mean(0)
            if self.is_shared:
                dist.all_reduce(mean)
            self.seen_mean = 0.9 * self.seen_mean + 0.1 * mean.detach()
            self.count += 1
        return x - self.seen_mean


class WithTable(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.ones(3))

    def forward(self, x):
        return x * self.table


def test_torchs_and_other_norms_and_what_keeps_nothing(tmp_path):
    model = nn.Sequential(nn.BatchNorm1d(3), ByHand(), WithTable(), nn.LayerNorm(3), nn.Linear(3, 1))
    with watching(tmp_path):
        model.eval()(torch.ones(4, 3))
        model.train()
        for _ in range(6):
            model(torch.randn(4, 3)).sum().backward()
    assert [(row.name, row.kind, row.buffers) for row in seen(tmp_path, Statistic)] == [
        ("0", "BatchNorm1d", ("0.running_mean", "0.running_var")), ("1", "ByHand", ("1.seen_mean",)),
    ]  # fmt: skip
    assert {row.num_collectives for row in seen(tmp_path, Statistic)} == {0}


def test_collectives_within_are_counted(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with watching(tmp_path / "seen"):
            model = nn.Sequential(ByHand(is_shared=True), ByHand())
            dist.all_reduce(torch.ones(1))
            model(torch.randn(4, 3))
    finally:
        dist.destroy_process_group()
    rows = seen(tmp_path / "seen", Statistic)
    assert [(row.name, row.num_collectives) for row in rows] == [("0", 1), ("1", 0)]


def test_a_model_that_is_itself_such_a_layer(tmp_path):
    with watching(tmp_path):
        nn.BatchNorm1d(3)(torch.randn(4, 3))
    assert [(row.name, row.buffers[0]) for row in seen(tmp_path, Statistic)] == [("", "running_mean")]


def test_whole_models_tell_their_rows_named_inputs_and_moved_generators(tmp_path):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x, scale=None):
            return nn.functional.dropout(self.layer(x), training=self.training) * scale

    x = torch.arange(12.0).reshape(4, 3)
    with watching(tmp_path):
        model = Named()
        model(x, scale=torch.ones(2))
        model(scale=torch.ones(2), x=x.flip(0))
        model.eval()(x=x, scale=torch.ones(2))
    calls = seen(tmp_path, Call)
    inner, (first, second, last) = [c for c in calls if c.name], [c for c in calls if not c.name]
    assert len(first.inputs) == 2 and second.rows == first.rows[::-1] and last.rows == first.rows
    assert len({*first.rows}) == 4
    assert [call.moved for call in (first, second, last)] == [("torch",), ("torch",), ()]
    assert all(call.rows == call.inputs == call.moved == () for call in inner)
