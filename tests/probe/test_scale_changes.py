"""Changes that take a part of a step away: exchange, data, synchronised norms; and the size of batches."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from timing_runs import rows, spent_s, timing
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler

import samestep.nn
import worlds
from samestep.experiment import Experiment
from samestep.launch.job import Job
from samestep.launch.watched import Watched
from samestep.observations import Observations
from samestep.observed import Loader, PassEnd, Timing, Trouble
from samestep.probe.changes.batch_size import Regrouped
from samestep.probe.changes.caching import NUM_BATCHES

SILENT = Experiment(is_exchange_off=True, are_norms_local=True)
LOCAL = Experiment(are_norms_local=True)
CACHED = Experiment(is_data_cached=True)


class Counted(Dataset):
    """Examples that are counted as they are fetched."""

    def __init__(self, length=24):
        self.length, self.fetched = length, []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.fetched.append(index)
        return torch.full((3,), float(index)), index


def model_of(kind=nn.BatchNorm1d):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), kind(8), nn.Linear(8, 1))


# --- exchange ---


def by_ddp(rank):
    model = DistributedDataParallel(model_of())
    return model, lambda: None


def by_hand(rank):
    model = model_of()
    dist.barrier()

    def exchange():
        for i, parameter in enumerate(model.parameters()):
            if i % 2:
                dist.all_reduce(parameter.grad)
            else:
                dist.all_reduce(parameter.grad, async_op=True).wait()
        shards = [torch.zeros(1) for _ in range(2)]
        dist.all_gather(shards, torch.full((1,), 1.0 + rank))
        dist.broadcast(model[0].bias.grad, 0)

    return model, exchange


def by_hooks(rank):
    model = model_of()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
    return model, lambda: None


KINDS = {"ddp": by_ddp, "hand": by_hand, "hooks": by_hooks}


def trained(world, folder, kind, changes, steps=6):
    """Trains a little, one rank slower than the other; the weights, and seconds of the whole."""
    model, exchange = KINDS[kind](world.rank)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with timing(Path(folder), Experiment(**changes), rank=world.rank, size=world.size):
        for step in range(steps):
            torch.manual_seed(step * 2 + world.rank)
            model(torch.randn(4, 3)).square().sum().backward()
            exchange()
            optimizer.step()
            optimizer.zero_grad()
            # outside of the update: what is told here stays
            total = torch.ones(())
            dist.all_reduce(total)
            assert total == world.size
    return [p.detach().flatten().tolist() for p in model.parameters()]


@pytest.mark.parametrize("kind", KINDS)
def test_without_exchange_ranks_go_their_own_ways(tmp_path, kind):
    off = {"is_exchange_off": True, "are_norms_local": True}
    together = worlds.run(2, trained, folder=str(tmp_path / "on"), kind=kind, changes={})
    apart = worlds.run(2, trained, folder=str(tmp_path / "off"), kind=kind, changes=off)
    assert together[0] == together[1]
    assert apart[0] != apart[1]
    for folder in ("on", "off"):
        for rank in range(2):
            assert sum(row.num_steps for row in rows(tmp_path / folder, Timing, rank)) == 6
            assert rows(tmp_path / folder, Trouble, rank) == []


def test_hooks_in_backward_are_left_out_only_with_the_norms(tmp_path):
    # nothing tells them from what a norm exchanges there
    kept = worlds.run(2, trained, folder=str(tmp_path), kind="hooks", changes={"is_exchange_off": True})
    assert kept[0] == kept[1]


def collectives(world, folder):
    """What each collective gives between backward and update, and after it."""
    found = {}
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], 0.1)
    own, rank = torch.full((2,), 1.0 + world.rank), world.rank

    def all_kinds():
        one = own.clone()
        work = dist.all_reduce(one, async_op=True)
        work.wait()
        many, flat = [torch.zeros(2), torch.zeros(2)], torch.zeros(4)
        dist.all_gather(many, own)
        dist.all_gather_into_tensor(flat, own)
        both, part = torch.arange(4.0) + rank, torch.zeros(2)
        dist.reduce_scatter_tensor(part, both)
        other = own.clone()
        dist.broadcast(other, src=0)
        objects = [None, None]
        dist.all_gather_object(objects, rank)
        return [*(t.tolist() for t in (one, *many, flat, part, other)), work.is_completed(), objects]

    with timing(Path(folder), SILENT, rank=rank, size=world.size):
        weight.sum().backward()
        found["inside"] = all_kinds()
        optimizer.step()
        found["outside"] = all_kinds()
    return found


def test_each_collective_leaves_what_a_rank_has(tmp_path):
    first, second = worlds.run(2, collectives, folder=str(tmp_path))
    zero, one, two = [0.0, 0.0], [1.0, 1.0], [2.0, 2.0]
    assert first["inside"] == [one, one, zero, one + zero, [0.0, 1.0], one, True, [0, 1]]
    assert second["inside"] == [two, zero, two, zero + two, [3.0, 4.0], two, True, [0, 1]]
    assert first["outside"] == [[3.0, 3.0], one, two, one + two, [1.0, 3.0], one, True, [0, 1]]
    assert second["outside"] == [[3.0, 3.0], one, two, one + two, [5.0, 7.0], one, True, [0, 1]]


def skipped_update(world, folder):
    """A GradScaler leaves out the update of one rank only; both then meet again."""
    weight = nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([weight], 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with timing(Path(folder), SILENT, rank=world.rank, size=world.size):
        scaler.scale(weight * (float("inf") if world.rank else 1.0)).backward()
        scaler.step(optimizer)
        total = torch.ones(())
        dist.all_reduce(total)
    return float(total)


def test_an_update_that_is_left_out_on_one_rank(tmp_path):
    assert worlds.run(2, skipped_update, folder=str(tmp_path)) == [2.0, 2.0]


# --- norms ---


def test_torchs_synchronised_norm_is_like_any_other(tmp_path):
    x = torch.randn(6, 3)
    plain, synchronised = nn.BatchNorm1d(3), nn.SyncBatchNorm(3)
    with timing(tmp_path, LOCAL):
        found = synchronised(x)
    assert torch.equal(found, plain(x))
    assert torch.equal(synchronised.running_var, plain.running_var)


def statistics_shared(world, folder, changes):
    with timing(Path(folder), Experiment(**changes), rank=world.rank, size=world.size):
        mean, _, count = samestep.nn.moments(torch.full((2,), float(world.rank)), 0)
    return float(mean), float(count), world.shares_statistics


def test_samesteps_norms_see_their_own_rank(tmp_path):
    shared = worlds.run(2, statistics_shared, folder=str(tmp_path / "a"), changes={})
    local = worlds.run(2, statistics_shared, folder=str(tmp_path / "b"), changes={"are_norms_local": True})
    assert shared == [(0.5, 4.0, True)] * 2
    # afterwards the world is as it was
    assert local == [(0.0, 2.0, True), (1.0, 2.0, True)]


# --- data ---


@pytest.mark.parametrize("workers", [0, 2])
def test_first_batches_come_again(tmp_path, workers):
    data = Counted()
    loader = DataLoader(data, batch_size=3, num_workers=workers, persistent_workers=workers > 0)
    with timing(tmp_path, CACHED):
        passes = [[y.tolist() for _, y in loader] for _ in range(3)]
    fetched = [[3 * i, 3 * i + 1, 3 * i + 2] for i in range(NUM_BATCHES)]
    assert passes[0] == fetched + fetched
    assert passes[1] == passes[2] == fetched + fetched
    assert len(data.fetched) == (0 if workers else 3 * NUM_BATCHES)
    ends = rows(tmp_path, PassEnd)
    assert [(end.num_batches, end.num_examples, end.is_exhausted) for end in ends] == [(8, 24, True)] * 3
    assert rows(tmp_path, Trouble) == []
    data.fetched.clear()
    assert len(list(loader)) == 8  # and afterwards it fetches again
    assert workers or len(data.fetched) == 24


def test_only_the_loaders_that_are_meant(tmp_path):
    made = tmp_path / "made.py"
    made.write_text("""def one(loader, data):
    return loader(data, batch_size=3)
def two(loader, data):
    return loader(data, batch_size=3)
""")
    names = {}
    exec(compile(made.read_text(), str(made), "exec"), names)  # noqa: S102 (lines of a file of their own)
    meant, other = Counted(), Counted()
    experiment = Experiment(is_data_cached=True, batch_size=4, loaders=(f"{made}:2",))
    with timing(tmp_path, experiment):
        for _ in range(2):
            changed = sizes(names["one"](DataLoader, meant))
            left = sizes(names["two"](DataLoader, other))
    assert (changed, left) == ([4] * 6, [3] * 8)
    assert len(other.fetched) == 2 * 24
    assert len(meant.fetched) == 2 * 4 * NUM_BATCHES


def test_a_batch_that_the_program_changes_comes_again_as_it_was(tmp_path):
    with timing(tmp_path, CACHED):
        for _ in range(3):
            for x, y in DataLoader(Counted(3), batch_size=3):
                assert x[:, 0].tolist() == [0.0, 1.0, 2.0]
                x.zero_()
                y += 1
        loader = DataLoader(Counted(30), batch_size=3)
        seen = [x.mean(1).tolist() for x, _ in loader]
        for x, _ in loader:
            x.mul_(0.0)
        again = [x.mean(1).tolist() for x, _ in loader]
    assert {tuple(values) for values in again} <= {tuple(values) for values in seen}


class Stream(IterableDataset):
    def __init__(self, length=None):
        self.length = length

    def __len__(self):
        if self.length is None:
            raise TypeError("no length")
        return self.length

    def __iter__(self):
        return iter(torch.arange(20.0))


def test_streams(tmp_path):
    with timing(tmp_path, CACHED):
        known, short = DataLoader(Stream(20), batch_size=2), DataLoader(Stream(), batch_size=8)
        endless = DataLoader(Stream(), batch_size=2)
        assert [len(list(known)) for _ in range(2)] == [10, 10]
        assert [len(list(short)) for _ in range(3)] == [3, 3, 3]
        batches = iter(endless)
        assert [next(batches).tolist() for _ in range(50)][48] == [0.0, 1.0]


# --- batch size ---


def sizes(loader):
    return [len(y) for _, y in loader]


def test_batches_of_another_size(tmp_path):
    data = Counted(10)
    with timing(tmp_path, Experiment(batch_size=4)):
        plain = DataLoader(data, batch_size=2)
        own = DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 3, drop_last=False))
        dropping = DataLoader(data, batch_sampler=BatchSampler(range(10), 5, drop_last=True))
        whole = DataLoader(data, batch_size=None, sampler=BatchSampler(range(10), 5, drop_last=False))
        assert sizes(plain) == sizes(own) == [4, 4, 2]
        assert sizes(dropping) == [4, 4]
        assert [len(loader) for loader in (plain, own, dropping, whole)] == [3, 3, 2, 3]
    assert sizes(DataLoader(data, batch_size=2)) == [2] * 5
    assert [row.batch_size for row in rows(tmp_path, Loader)] == [4, 4, 4]


def test_a_rank_has_its_share(tmp_path):
    data = Counted(12)
    for rank, size in ((0, 3), (1, 4)):
        with timing(tmp_path, Experiment(batch_size=7), rank=rank, size=2):
            assert sizes(DataLoader(data, batch_size=2))[0] == size


def test_regrouped_keeps_order_and_the_rest_of_a_sampler():
    class Own:
        sampler = "mine"

        def __iter__(self):
            return iter([[1, 2, 3], [4], [5, 6]])

    regrouped = Regrouped(Own(), 2)
    assert list(regrouped) == [[1, 2], [3, 4], [5, 6]]
    assert regrouped.sampler == "mine"
    with pytest.raises(TypeError, match="no known size"):
        len(regrouped)


# --- a task ---


@pytest.mark.parametrize("mode", ["fast", "bitwise"])
def test_a_task_runs_on_without_exchange_or_data(tmp_path, mode):
    job = Job(command="train", target="samestep.demo:digits", mode=mode, overrides=("epochs=1",))
    watched = Watched(job=job, threads=1, steps=None, options=("--time",), stall_s=40.0)
    off = Experiment(is_exchange_off=True, are_norms_local=True, is_data_cached=True)
    changes = {"full": Experiment(), "cached": off}
    for name, experiment in changes.items():
        ended = watched.run(tmp_path / name, 2, experiment)
        assert (ended.status, ended.failure) == ("finished", None)
    for name in changes:
        seen = Observations.read(tmp_path / name)
        blocks = [list(seen.of(rank, Timing)) for rank in range(2)]
        assert [sum(block.num_steps for block in own) for own in blocks] == [24, 24]
        # each example once, over both ranks
        assert sum(block.num_examples for own in blocks for block in own) == 1500
        assert all(0 < loss < 20 for own in blocks for block in own for loss in block.losses)
        assert list(seen.of(0, Trouble)) == []
    assert spent_s(tmp_path / "full", "evaluation") > 0
    assert spent_s(tmp_path / "full", "checkpoint") > 0
    assert spent_s(tmp_path / "cached", "data") < spent_s(tmp_path / "full", "data")
