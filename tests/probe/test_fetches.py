"""Which generators fetching moves, here and in workers; lines that made loaders."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset
from watching import seen, watching

from samestep.experiment import Experiment, pass_key
from samestep.observations import Observations
from samestep.observed import Batch, Loader, Pass, Trouble, Worker
from samestep.probe.generators import Generators, seed_all

DRAWS = {"python": random.random, "numpy": np.random.rand, "torch": lambda: torch.rand(1)}


class Drawing(Dataset):
    def __init__(self, *names):
        self.names = names

    def __len__(self):
        return 6

    def __getitem__(self, index):
        for name in self.names:
            DRAWS[name]()
        return torch.tensor(index)


class Stream(IterableDataset):
    def __iter__(self):
        return iter([random.random() for _ in range(4)])


@pytest.mark.parametrize("names", [(), ("python",), ("numpy",), ("torch",), ("python", "numpy", "torch")])
def test_generators_that_a_fetch_moves(tmp_path, names):
    with watching(tmp_path):
        # the sampler draws too, and that is not the fetch
        list(DataLoader(Drawing(*names), batch_size=2, shuffle=True))
    assert [row.moved for row in seen(tmp_path, Batch)] == [names] * 3


def test_generators_are_put_back_and_seeded():
    before = Generators()
    for draw in DRAWS.values():
        draw()
    assert before.moved() == ("python", "numpy", "torch")
    before.put_back()
    assert before.moved() == () and Generators().described() == before.described()
    first = []
    for _ in range(2):
        seed_all(5)
        first.append([float(draw()) for draw in DRAWS.values()])
    assert first[0] == first[1]
    before.put_back()


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_tell_their_generators(tmp_path, persistent):
    with watching(tmp_path):
        before = Generators()
        loader = DataLoader(Drawing("numpy"), batch_size=2, num_workers=2, persistent_workers=persistent)
        for _ in range(2):
            list(loader)
        del loader
        assert before.moved() == ("torch",)
    rows = seen(tmp_path, Worker)
    assert [(row.loader, row.number, row.worker) for row in rows] == [
        (0, 1, 0), (0, 1, 1), (0, 2, 0), (0, 2, 1)
    ]  # fmt: skip
    assert {row.moved for row in rows} == {("numpy",)}
    # torch seeds each worker by a number of its own
    assert rows[0].random.torch != rows[1].random.torch and rows[0].random.numpy != rows[1].random.numpy
    assert seen(tmp_path, Trouble) == [] and Observations.read(tmp_path).remarks == []
    assert [row.moved for row in seen(tmp_path, Batch)] == [()] * 6


def test_workers_with_equal_seeds_are_seen(tmp_path):
    def same(_):
        np.random.seed(0)
        random.seed(0)

    with watching(tmp_path):
        list(DataLoader(Drawing(), batch_size=2, num_workers=2, worker_init_fn=same))
        list(DataLoader(Stream(), batch_size=2, num_workers=2, worker_init_fn=same))
    first, second, *streaming = seen(tmp_path, Worker)
    assert first.random.numpy == second.random.numpy and first.random.python == second.random.python
    assert first.random.torch != second.random.torch and first.moved == ()
    assert [row.loader for row in streaming] == [1, 1] and seen(tmp_path, Batch)[-1].moved == ()


def test_an_iterable_in_this_process_and_rows_of_an_earlier_run(tmp_path):
    with watching(tmp_path):
        list(DataLoader(Drawing(), batch_size=2, num_workers=1))
        list(DataLoader(Drawing(), batch_size=2, num_workers=1))
    assert len(seen(tmp_path, Worker)) == 2
    with watching(tmp_path):
        assert len(list(DataLoader(Stream(), batch_size=2))) == 2
    assert seen(tmp_path, Worker) == []
    # the stream draws all when its iterator is made, before the first fetch
    assert [row.moved for row in seen(tmp_path, Batch)] == [(), ()]


def test_workers_that_are_not_forked_are_told_of(tmp_path):
    with watching(tmp_path):
        loader = DataLoader(TensorDataset(torch.ones(2)), num_workers=1, multiprocessing_context="spawn")
        list(loader)
    (trouble,) = seen(tmp_path, Trouble)
    assert trouble.place == "workers" and "not forked" in trouble.error and seen(tmp_path, Worker) == []


def test_lines_that_made_loaders_and_what_they_plan(tmp_path):
    data = TensorDataset(torch.ones(6))
    here = "tests/probe/test_fetches.py:"
    with watching(tmp_path):
        first = DataLoader(data, batch_size=4)
        code = test_lines_that_made_loaders_and_what_they_plan.__code__
        sampler = DistributedSampler(data, num_replicas=2, rank=0)
        second = DataLoader(data, batch_sampler=torch.utils.data.BatchSampler(sampler, 2, False))
        for loader in (first, second, second, DataLoader(Stream())):
            list(loader)
    rows = seen(tmp_path, Loader)
    lines = [int(row.where.removeprefix(here)) - code.co_firstlineno for row in rows]
    assert lines == [4, 7, 8] and [row.has_set_epoch for row in rows] == [False, True, False]
    assert [row.sampler for row in rows[:2]] == ["SequentialSampler", "DistributedSampler"]
    assert [row.num_planned for row in seen(tmp_path, Pass)] == [2, 2, 2, None]


def test_shares_that_a_loader_of_samesteps_own_asks_for(tmp_path):
    import samestep

    data = TensorDataset(torch.arange(5))
    order = []
    for experiment in (None, Experiment(are_examples_seeded=True, batches={pass_key(0, 1): ((0, 1),)})):
        with watching(tmp_path, experiment=experiment):
            world = samestep.init()
            handed = [x.tolist() for (x,) in world.loader(data, batch_size=2, seed=3)]
        # what is asked for is no plain index: given batches leave it as it is
        assert [list(row.indices) for row in seen(tmp_path, Batch)] == handed
        assert seen(tmp_path, Trouble) == []
        order.append(handed)
    assert order[0] == order[1] and sorted(sum(handed, [])) == list(range(5))
