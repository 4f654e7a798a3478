"""What an experiment changes, and that nothing is left of it afterwards."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset
from watching import run, seen, watching

from samestep.experiment import Experiment, pass_key
from samestep.nn.dropout import convert_dropout
from samestep.observed import Batch, Call, Pass, PassEnd, Statistic, Trouble
from samestep.probe.changes.dropout import _IN_FUNCTIONAL, _IN_TORCH

QUIET = Experiment(is_dropout_off=True)
FROZEN = Experiment(are_norms_frozen=True)
SEEDED = Experiment(are_examples_seeded=True)
X = torch.arange(1.0, 25).reshape(2, 3, 4)


class DropPath(nn.Module):
    def forward(self, x):
        return x * torch.bernoulli(torch.full((x.shape[0], 1, 1), 0.5)) if self.training else x


def _fit(name, x):
    """An input with as many dimensions as dropout of whole channels asks for."""
    return x.reshape(*x.shape, *[1] * (int(name[-2]) - 1)) if name[-1] == "d" else x


def converted():
    model = nn.Sequential(nn.Dropout(0.5))
    convert_dropout(model)
    return model


MULTIHEAD = nn.MultiheadAttention(4, 2, dropout=0.5)
RANDOM = {
    **{
        f"F.{name}": lambda x, name=name: getattr(F, name)(_fit(name, x - 6), training=True)
        for name in _IN_FUNCTIONAL
    },
    **{
        f"torch.{name}": lambda x, name=name: getattr(torch, name)(x.clone(), 0.5, True) for name in _IN_TORCH
    },
    "module": nn.Dropout(0.5),
    "converted": converted(),
    "path": DropPath(),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, None, 0.5),
    "named attention": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
    "recurrent": nn.LSTM(4, 4, num_layers=2, dropout=0.5, batch_first=True),
    "multihead": lambda x: MULTIHEAD(x, x, x, need_weights=False),
    "encoder": nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5, batch_first=True),
}


@pytest.mark.parametrize("name", RANDOM)
def test_dropout_drops_nothing_and_draws_nothing(tmp_path, name):
    draws = []
    for experiment in (None, QUIET):
        with watching(tmp_path, experiment=experiment):
            before = torch.get_rng_state()
            RANDOM[name](X)
            draws.append(not torch.equal(before, torch.get_rng_state()))
        assert seen(tmp_path, Trouble) == []
    # without the change each of them draws: it is the change that stops them
    assert draws == [True, False]
    if isinstance(RANDOM[name], nn.Module):
        assert RANDOM[name].training
    before = torch.get_rng_state()
    RANDOM[name](X)
    assert not torch.equal(before, torch.get_rng_state())


def test_layers_are_told_as_training_and_left_so_when_they_raise(tmp_path):
    class Picky(DropPath):
        def forward(self, x):
            raise ValueError(self.training)

    with watching(tmp_path, experiment=QUIET):
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), DropPath())
        model(X)
        picky = Picky()
        with pytest.raises(ValueError, match="False"):
            picky(X)
        assert picky.training
    assert [call.is_training for call in seen(tmp_path, Call) if call.kind != "Picky"] == [True] * 4
    assert all(call.moved == () for call in seen(tmp_path, Call))


class ByHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.zeros(4))

    def forward(self, x):
        if self.training:
            self.kept.mul_(0.9).add_(0.1 * x.detach().mean((0, 1)))
            return x - x.mean((0, 1))
        return x - self.kept


@pytest.mark.parametrize(
    "layer",
    [nn.BatchNorm1d(3), nn.InstanceNorm1d(3, track_running_stats=True), ByHand(), nn.SyncBatchNorm(3)],
)
def test_norms_use_and_leave_the_statistics_that_they_have(tmp_path, layer):
    before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    with watching(tmp_path, experiment=FROZEN):
        model = nn.Sequential(layer, nn.Linear(4, 1))
        model(X).sum().backward()
        frozen = layer(X)
        assert layer.training
    layer.eval()
    assert torch.equal(frozen, layer(X)) and seen(tmp_path, Statistic) == [] == seen(tmp_path, Trouble)
    assert all(torch.equal(before[name], buffer) for name, buffer in layer.named_buffers())
    if not isinstance(layer, nn.SyncBatchNorm):  # which torch refuses to train on a CPU
        layer.train()(X)
        assert any(not torch.equal(before[name], buffer) for name, buffer in layer.named_buffers())


class Cached(nn.Linear):
    """Evaluates with weights that it keeps when it is told to, as escnn's convolutions do."""

    def __init__(self):
        super().__init__(4, 4)
        self.register_buffer("kept", torch.zeros(4, 4))

    def train(self, mode=True):
        if not mode:
            self.kept = self.weight.detach().clone()
        return super().train(mode)

    def forward(self, x):
        return F.linear(x, self.weight if self.training else self.kept, self.bias)


def test_layers_that_evaluate_with_what_they_keep_stay_in_training(tmp_path):
    layer = Cached()
    with watching(tmp_path, experiment=FROZEN):
        assert torch.equal(layer(X), F.linear(X, layer.weight, layer.bias))
    layer.training = False
    assert torch.equal(layer(X), layer.bias.expand_as(X))  # what the flag alone would have done


class Noisy(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor(
            [index, random.random(), np.random.rand(), torch.rand(1).item()], dtype=torch.float64
        )


class AtOnce(Noisy):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Whole(Noisy):
    def __getitems__(self, indices):
        return torch.stack([self[index] for index in indices])


def fetched(loader):
    return {int(row[0]): row.tolist() for batch in loader for row in batch}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("data", [Noisy(), AtOnce(), Subset(Noisy(), range(8))])
def test_examples_depend_on_their_index_only(tmp_path, data, workers):
    orders = ([0, 1, 2, 3], [4, 5, 6, 7]), ([7, 3, 5, 1, 6], [2, 0, 4])
    with watching(tmp_path, experiment=SEEDED):
        random.random(), np.random.rand(), torch.rand(1)
        one, other = (fetched(DataLoader(data, batch_sampler=o, num_workers=workers)) for o in orders)
        assert one == other and len({tuple(row[1:]) for row in one.values()}) == 8
    assert seen(tmp_path, Trouble) == [] and {row.moved for row in seen(tmp_path, Batch)} == {()}
    with watching(tmp_path):
        one, other = (fetched(DataLoader(data, batch_sampler=o, num_workers=workers)) for o in orders)
    assert one != other


def test_a_data_set_that_gives_whole_batches_is_seeded_by_the_first(tmp_path):
    with watching(tmp_path, experiment=SEEDED):
        found = [
            fetched(DataLoader(Whole(), batch_sampler=[[2, 3]], collate_fn=lambda batch: batch))
            for _ in range(2)
        ]
    assert found[0] == found[1] and set(found[0]) == {2, 3}


@pytest.mark.parametrize("workers", [0, 2])
def test_given_batches_take_the_place_of_a_samplers_own(tmp_path, workers):
    given = (5, 1, 1), (0,), (2, 3, 4, 6, 7, 8, 9)
    experiment = Experiment(batches={pass_key(0, 2): given, pass_key(1, 1): ((4, 5), (6,))})
    data = TensorDataset(torch.arange(10))
    states = []
    for change in (experiment, None):
        torch.manual_seed(0)
        with watching(tmp_path / str(change is None), experiment=change):
            loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=workers)
            passes = [[x.tolist() for (x,) in loader] for _ in range(3)]
            single = [int(x) for (x,) in DataLoader(data, batch_size=None, num_workers=workers)]
        states.append(torch.get_rng_state())
        if change is not None:
            assert passes[1] == [list(batch) for batch in given] and single == [4, 5, 6]
            first = passes
    # the other passes, and the generators after all, are as they would be
    assert [first[0], first[2]] == [passes[0], passes[2]] and torch.equal(*states)
    assert single == list(range(10))
    rows = [row for row in seen(tmp_path / "False", Batch) if (row.loader, row.number) == (0, 2)]
    assert [row.indices for row in rows] == list(given)
    assert seen(tmp_path / "False", PassEnd)[1].num_examples == 11 and seen(tmp_path / "False", Trouble) == []


def test_a_loader_says_the_length_that_it_is_given(tmp_path):
    data = TensorDataset(torch.arange(10))
    line = test_a_loader_says_the_length_that_it_is_given.__code__.co_firstlineno + 5
    with watching(tmp_path, experiment=Experiment(lengths={f"tests/probe/test_changes.py:{line}": 2})):
        other = DataLoader(data, batch_size=5)
        loader = DataLoader(data, batch_size=2)
        assert (len(loader), len(other), len(list(loader))) == (2, 2, 5)
    assert [row.num_planned for row in seen(tmp_path, Pass)] == [2] and len(loader) == 5


def test_seeds_are_there_before_the_first_line(tmp_path):
    code = "import random; a = random.random(); import torch; b = torch.rand(1); import numpy; "
    code += "print(a, float(b), numpy.random.rand())"
    (tmp_path / "a.py").write_text(code)
    for name, seed in (("one", 5), ("other", 6)):
        Experiment(seed=seed).write(tmp_path / f"{name}.json")
    outputs = [
        run("a.py", cwd=tmp_path, probe="seen", options=("--experiment", f"{name}.json"), RANK=rank).stdout
        for name, rank in (("one", "0"), ("one", "0"), ("one", "1"), ("other", "0"))
    ]
    assert outputs[0] == outputs[1] != outputs[2] == outputs[3] and len(outputs[0].split()) == 3
    random.seed(5), torch.manual_seed(5), np.random.seed(5)
    assert [float(word) for word in outputs[0].split()] == [
        random.random(), float(torch.rand(1)), np.random.rand()
    ]  # fmt: skip


def test_an_experiment_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "a.py").write_text("print('ran')")
    (tmp_path / "e.json").write_text("{")
    for name in ("e.json", "none.json"):
        watched = run("a.py", cwd=tmp_path, probe="seen", options=("--experiment", name))
        assert (watched.returncode, watched.stdout) == (2, "") and "as an experiment" in watched.stderr
