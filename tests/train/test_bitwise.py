"""Bitwise mode: the number of ranks does not change one bit of the result."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

import samestep
import tasks
import worlds
from samestep.record import RecordWriter
from samestep.train.evaluate import eval_loader
from samestep.train.loop import Loop
from samestep.train.predict import predictions
from samestep.train.training import Training

WORLDS = (2, 3, 4)


def digest_of(world, folder: str, shards: int | None = 8, **changes: Any) -> dict[str, Any]:
    """Train the task of tests/tasks.py; its digest and whatever else must not depend on the world."""
    world.set_mode(shards)
    task = tasks.image_task(**({"dtype": torch.float32} | changes))
    world.reset(task.seed)
    out = Path(folder) / f"world-{world.size}"
    training = Training(task, world, out, record := RecordWriter(out, world.rank))
    result = Loop(training).run()
    record.close()
    return {name: result[name] for name in ("digest", "values", "examples", "steps")}


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def plateau(optimizer: torch.optim.Optimizer) -> ReduceLROnPlateau:
    return ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimizer": adamw, "ema_decay": 0.9},
        {"accumulate": 2, "batch_size": 20},
        {"precision": "bf16"},
        {"shards": 5, "valid_data": None, "monitor": "train/loss"},
        {"schedule": plateau, "workers": 2},
    ],
    ids=["momentum", "adamw-ema", "accumulate", "bf16", "five-shards", "plateau-workers"],
)
def test_every_world_ends_with_the_same_bits(tmp_path: Path, changes: dict[str, Any]) -> None:
    (reference,) = worlds.run(1, digest_of, folder=str(tmp_path), **changes)
    assert reference["examples"] > 0
    for size in WORLDS:
        for rank in worlds.run(size, digest_of, folder=str(tmp_path), **changes):
            assert rank == reference, size


def test_fast_mode_does_not(tmp_path: Path) -> None:
    (reference,) = worlds.run(1, digest_of, folder=str(tmp_path), shards=None)
    assert worlds.run(3, digest_of, folder=str(tmp_path), shards=None)[0]["digest"] != reference["digest"]


def test_another_number_of_shards_is_other_training(tmp_path: Path) -> None:
    (reference,) = worlds.run(1, digest_of, folder=str(tmp_path), shards=8)
    (other,) = worlds.run(1, digest_of, folder=str(tmp_path), shards=4)
    assert other["digest"] != reference["digest"]


def test_any_number_of_ranks_up_to_that_of_shards(tmp_path: Path) -> None:
    (reference,) = worlds.run(1, digest_of, folder=str(tmp_path))
    for size in (5, 8):
        assert worlds.run(size, digest_of, folder=str(tmp_path))[0] == reference, size
        worlds.close(size)


class Branches(nn.Module):
    """A layer that only some shards use, one that none does, and zeros of both signs among its gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.some, self.none = nn.Linear(6, 6, bias=False), nn.Linear(6, 6)
        self.norm = HandMade(6)
        self.last = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(torch.relu(self.first(x)))
        # its gradient is -0 wherever a unit is dead
        h = -self.some(h) if x[0, 0] > 0 else h
        return self.last(nn.functional.dropout(h, 0.3, self.training))


class HandMade(nn.Module):
    """A norm layer by Samestep's protocol, with a running mean that it replaces rather than changes."""

    samestep_synchronised = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("running", torch.zeros(width))
        self.register_buffer("mask", torch.full((3,), -torch.inf))

    def forward(self, x: Tensor) -> Tensor:
        mean, var, _ = samestep.nn.moments(x, 0)
        self.running = 0.9 * self.running + 0.1 * mean.detach()
        return (x - mean) / (var + 1e-3).sqrt() + 0.1 * random.random() + 0.1 * float(np.random.rand())


def own_loop(world, shards: int = 8, num_examples: int = 67) -> dict[str, Tensor]:
    """A hand-written loop with a weighted loss and a penalty; a last batch leaves ranks without shards."""
    world.set_mode(shards)
    world.reset(5)
    data = torch.randn(num_examples, 4, generator=torch.Generator().manual_seed(1))
    model = world.replicate(Branches())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        for batch in world.loader(data, batch_size=16):
            with world.step(optimizer, clip_norm=1.0) as step:
                weights = batch[:, 0].abs()
                loss = (model(batch).squeeze(1).square() * weights).sum()
                penalty = 0.01 * sum(parameter.square().sum() for parameter in model.first.parameters())
                step.backward(loss, float(weights.sum()), penalty)
    assert model.none.weight.grad is None
    return {"loss": torch.tensor(step.totals.loss), **{n: t.clone() for n, t in model.state_dict().items()}}


def same_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(
        torch.equal(a[name].reshape(-1).view(torch.uint8), b[name].reshape(-1).view(torch.uint8))
        for name in a
    )


@pytest.mark.parametrize("shards", [4, 7, 8])
def test_own_loop_with_branches_and_a_norm_by_hand(shards: int) -> None:
    (reference,) = worlds.run(1, own_loop, shards=shards)
    assert float(reference["norm.running"].abs().sum()) > 0
    assert torch.equal(reference["norm.mask"], torch.full((3,), -torch.inf))
    for size in WORLDS:
        assert all(same_bits(rank, reference) for rank in worlds.run(size, own_loop, shards=shards)), size


def test_bits_are_compared_and_not_values() -> None:
    assert not same_bits({"a": torch.tensor(0.0)}, {"a": torch.tensor(-0.0)})


def bytes_sent(world, shards: int) -> tuple[int, int]:
    """What this rank sends in one step, and the bytes of the gradients."""
    world.set_mode(shards)
    world.reset(0)
    model = world.replicate(nn.Sequential(*(nn.Linear(64, 64) for _ in range(8))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sent = 0
    post = world.post

    def counted(sends: Any, receives: Any) -> Any:
        nonlocal sent
        sent += sum(t.numel() * t.element_size() for tensors in sends.values() for t in tensors)
        return post(sends, receives)

    world.post = counted
    try:
        for batch in world.loader(torch.randn(16, 64), batch_size=16):
            with world.step(optimizer) as step:
                step.backward(model(batch).sum(), len(batch))
    finally:
        del world.post
    return sent, sum(p.numel() * p.element_size() for p in model.parameters())


@pytest.mark.parametrize(("size", "shards"), [(2, 2), (2, 8), (4, 4), (4, 16), (3, 3)])
def test_no_more_is_moved_than_by_a_ring(size: int, shards: int) -> None:
    for sent, gradients in worlds.run(size, bytes_sent, shards=shards):
        ring = 2 * gradients * (size - 1) / size
        # beside the gradients travel one count for each parameter and three numbers in float64
        assert ring * 0.99 <= sent <= ring * 1.01 + 200


def test_ranges_that_are_no_nodes_are_sent_node_by_node() -> None:
    """3 ranks of 8 shards have 2, 2 and 1 nodes."""
    for (sent, gradients), nodes in zip(worlds.run(3, bytes_sent, shards=8), (2, 2, 1), strict=True):
        assert sent == pytest.approx((nodes + 1) * gradients * 2 / 3, rel=0.01)


def predicted(world) -> Tensor:
    world.set_mode(8)
    task = tasks.image_task(dtype=torch.float32)
    world.reset(task.seed)
    model = world.replicate(task.model())
    loader = eval_loader(task, world, tasks.Images(23, augment=False, dtype=torch.float32))
    return torch.cat([rows["output"] for rows in predictions(task, world, model, loader)])


def test_predictions_are_whole_and_have_the_same_bits() -> None:
    (reference,) = worlds.run(1, predicted)
    assert len(reference) == 23
    for size in WORLDS:
        assert torch.equal(worlds.run(size, predicted)[0], reference)


# What would break the promise is refused by name; its correct twin is silent.


def refused_by(world, change: str, allow_drift: bool = False, shards: int = 4) -> list[str]:
    """Train on something that breaks the promise, or does not; the messages of its findings."""
    world.set_mode(shards, allow_drift=allow_drift)
    task = tasks.image_task(**({"steps": 3, "dtype": torch.float32, "metrics": {}} | CHANGES[change]()))
    world.reset(task.seed)
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        training = Training(task, world, Path(folder), record := RecordWriter(folder, world.rank))
        Loop(training).run()
        record.close()
    return [finding.message for finding in world.findings]


class OwnGenerator(tasks.Net):
    def __init__(self) -> None:
        super().__init__(dtype=torch.float32)
        self.noise = Noise()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.noise(x))


class Noise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(1)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand(x.shape, generator=self.generator)


class GlobalGenerator(tasks.Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.rand_like(x) + random.random() + float(np.random.rand()))


class Puts(tasks.Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.clone().put_(torch.tensor([0]), torch.zeros(1)))


class OwnData(tasks.Images):
    def __init__(self) -> None:
        super().__init__(dtype=torch.float32)
        self.generator = np.random.default_rng(0)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, label = super().__getitem__(index)
        return image + float(self.generator.random()), label


class OwnSampler:
    """Keeps a generator from epoch to epoch, which no checkpoint knows."""

    def __init__(self, data: Any) -> None:
        self.generator = np.random.default_rng(0)
        self.length = len(data)

    def __iter__(self) -> Any:
        return iter(self.generator.permutation(self.length).tolist())

    def __len__(self) -> int:
        return self.length


def random_sampler(data: Any) -> Any:
    return torch.utils.data.RandomSampler(data)


CHANGES: dict[str, Any] = {
    "nothing": dict,
    "module": lambda: {"model": OwnGenerator},
    "global draws": lambda: {"model": lambda: GlobalGenerator(dtype=torch.float32)},
    "operator": lambda: {"model": lambda: Puts(dtype=torch.float32)},
    "data": lambda: {"train_data": OwnData},
    "sampler": lambda: {"sampler": OwnSampler},
    "random sampler": lambda: {"sampler": random_sampler},
}


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ("module", "ConfigError", "the output of noise (Noise) was not the same both times"),
        ("operator", "ConfigError", "The operator put_ has no kernel that gives the same bits"),
        ("data", "DataError", "draws from a generator of its own"),
        ("sampler", "DataError", "The sampler OwnSampler drew other examples the second time"),
    ],
)
def test_what_would_break_the_promise_is_named(change: str, kind: str, message: str) -> None:
    with pytest.raises(worlds.RankFailed) as failure:
        worlds.run(1, refused_by, change=change)
    assert failure.value.kind == kind
    assert message in failure.value.message
    assert "--allow-drift" in failure.value.message


@pytest.mark.parametrize("change", ["module", "data", "sampler"])
def test_drift_can_be_allowed_and_is_a_finding(change: str) -> None:
    (found,) = worlds.run(1, refused_by, change=change, allow_drift=True)
    assert any("not those of an undisturbed run" in message for message in found)


@pytest.mark.filterwarnings("ignore:.*does not have a deterministic")
def test_an_operator_may_be_allowed_to_drift() -> None:
    worlds.run(1, refused_by, change="operator", allow_drift=True)


@pytest.mark.parametrize("change", ["nothing", "global draws", "random sampler"])
def test_correct_twins_are_silent(change: str) -> None:
    for size in (1, 2):
        assert worlds.run(size, refused_by, change=change)[0] == []


def outside_of_a_loader(world) -> None:
    world.set_mode(4)
    model = world.replicate(nn.Linear(1, 1))
    with world.step(torch.optim.SGD(model.parameters(), lr=0.1)) as step:
        step.backward(model(torch.ones(1, 1)).sum(), 1)


def two_optimizers(world) -> None:
    world.set_mode(4)
    model = world.replicate(nn.Linear(1, 1))
    for batch in world.loader(torch.ones(8, 1), batch_size=8):
        for part in (model.weight, model.bias):
            with world.step(torch.optim.SGD([part], lr=0.1)) as step:
                step.backward(model(batch).sum(), len(batch))


def stepping(world, use: Any, model: nn.Module | None = None) -> None:
    """Call `use(number, model, optimizers, batch)` for four shards a step."""
    world.set_mode(4)
    world.reset(0)
    model = world.replicate(nn.Linear(2, 1) if model is None else model)
    optimizers = [torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()]
    for number, batch in enumerate(world.loader(torch.ones(16, 2), batch_size=8)):
        use(number, model, optimizers, batch)


def one_step(world, model: nn.Module, optimizer: Any, batch: Tensor) -> None:
    with world.step(optimizer) as step:
        step.backward(model(batch).sum(), len(batch))


def two_optimizers_in_turn(world) -> None:
    stepping(world, lambda n, model, optimizers, batch: one_step(world, model, optimizers[n % 2], batch))


def twice_on_a_batch(world) -> None:
    def use(number: int, model: nn.Module, optimizers: Any, batch: Tensor) -> None:
        one_step(world, model, optimizers[0], batch)
        one_step(world, model, optimizers[0], batch)

    stepping(world, use)


def a_shard_is_passed_over(world) -> None:
    def use(number: int, model: nn.Module, optimizers: Any, batch: Tensor) -> None:
        if number != 1:
            one_step(world, model, optimizers[0], batch)

    stepping(world, use)


def an_exception_is_passed_over(world) -> None:
    def use(number: int, model: nn.Module, optimizers: Any, batch: Tensor) -> None:
        try:
            with world.step(optimizers[0]) as step:
                step.backward(model(batch).sum(), len(batch))
                if number == 1:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            pass

    stepping(world, use)


class Averages(nn.Module):
    """A copy of a weight that follows it, as a parameter; it begins as its equal."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.average = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.average.lerp_(self.weight, 0.1)
        return x @ (self.weight + self.average)


def forward_changes_a_parameter(world) -> None:
    stepping(
        world, lambda n, model, optimizers, batch: one_step(world, model, optimizers[0], batch), Averages()
    )


class Remembers(nn.Module):
    """Replaces a large buffer from its second call on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("memory", torch.zeros(10_000))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 1:
            self.memory = self.memory + 1
        return x @ self.weight


def large_buffer_changes_late(world) -> None:
    stepping(
        world, lambda n, model, optimizers, batch: one_step(world, model, optimizers[0], batch), Remembers()
    )


class Keeps(nn.Module):
    """Buffers of every kind: most of them must keep their bits, the others must not depend on the world."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("largest", torch.tensor([2**63 - 1, 2**53 + 1]))
        self.register_buffer("zero", torch.tensor(-0.0))
        self.register_buffer("spectrum", torch.zeros(3, dtype=torch.complex64))
        self.register_buffer("minimum", torch.tensor(torch.inf))
        self.register_buffer("wide", torch.zeros(1).expand(5))
        self.register_buffer("cache", None)
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.cache = torch.arange(3.0) if self.cache is None else self.cache
        self.spectrum += torch.complex(x.mean(), x.std())
        self.minimum.copy_(torch.minimum(self.minimum, x.min()))
        self.count += 1
        return x @ self.weight


def kept(world) -> dict[str, Tensor]:
    world.set_mode(4)
    world.reset(0)
    model = world.replicate(Keeps())
    optimizer = torch.optim.SGD([model.weight], lr=0.1)
    data = torch.randn(22, 2, generator=torch.Generator().manual_seed(0))
    for batch in world.loader(data, batch_size=8):
        one_step(world, model, optimizer, batch)
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_buffers_of_every_kind() -> None:
    (reference,) = worlds.run(1, kept)
    assert reference["largest"].tolist() == [2**63 - 1, 2**53 + 1]
    assert torch.signbit(reference["zero"])
    assert int(reference["count"]) == 3  # once a step
    assert torch.isfinite(reference["minimum"]) and reference["spectrum"].abs().min() > 0
    for size in WORLDS:
        for rank in worlds.run(size, kept):
            assert all(torch.equal(rank[name], reference[name]) for name in reference), size


def drawn_around_evaluations(world) -> Tensor:
    """Dropout on shards that were handed out before an evaluation, and a draw after one."""
    world.set_mode(4)
    world.reset(0)
    model = world.replicate(nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(22, 2, generator=torch.Generator().manual_seed(0))
    valid = world.loader(data, batch_size=8, train=False)
    for batch in world.loader(data, batch_size=8):
        for rows in valid:
            with world.evaluation():
                model(rows)
        with world.step(optimizer) as step:
            step.backward(model(batch).sum() * torch.rand(()), len(batch))
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def test_an_evaluation_leaves_random_streams_alone() -> None:
    (reference,) = worlds.run(1, drawn_around_evaluations)
    for size in WORLDS:
        assert all(torch.equal(rank, reference) for rank in worlds.run(size, drawn_around_evaluations)), size


def too_few_shards(world) -> None:
    world.set_mode(1)


def tiny_batch(world) -> None:
    world.set_mode(8)
    world.loader(torch.ones(8, 1), batch_size=4)


@pytest.mark.parametrize(
    ("function", "size", "message"),
    [
        (outside_of_a_loader, 1, "world.step was called outside of a loader"),
        (two_optimizers, 1, "A second optimizer takes steps on the same batches"),
        (two_optimizers_in_turn, 1, "Another optimizer was used in the middle of a step"),
        (twice_on_a_batch, 1, "A second step was begun on the same batch"),
        (a_shard_is_passed_over, 1, "Turn 3 of 4 was begun where turn 2 should be"),
        (an_exception_is_passed_over, 1, "Turn 3 of 4 was begun where turn 1 should be"),
        (forward_changes_a_parameter, 1, "The forward changes the parameter average"),
        (large_buffer_changes_late, 1, "The forward changes the buffer memory"),
        (too_few_shards, 2, "shards is 1 and the world has 2 ranks"),
        (tiny_batch, 1, "batch_size is 4 and a batch is cut into 8 shards"),
    ],
)
def test_what_has_no_meaning_is_refused(function: Any, size: int, message: str) -> None:
    with pytest.raises(worlds.RankFailed, match=message):
        worlds.run(size, function)


# A run that goes on later, elsewhere, ends with the bits of one that was never disturbed.


def in_two_parts(world, folder: str, first: int | None, shards: int = 8, **how: Any) -> dict[str, Any]:
    """Train for `first` steps, or go on to the end; `threads` and `allow_drift` as given."""
    threads = torch.get_num_threads()
    torch.set_num_threads(how.get("threads", threads))
    world.set_mode(shards, allow_drift=how.get("allow_drift", False))
    try:
        settings: dict[str, Any] = {"dtype": torch.float32, "ema_decay": 0.9, "optimizer": adamw}
        task = tasks.image_task(**settings, steps=first or 20, checkpoint_every=None if first is None else 1)
        world.reset(task.seed)
        training = Training(task, world, Path(folder), record := RecordWriter(folder, world.rank))
        training.resume(first is None)
        result = Loop(training).run()
        record.close()
        return {
            "digest": result["digest"],
            "examples": result["examples"],
            "messages": [finding.message for finding in world.findings],
        }
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (4, 1)])
def test_a_run_that_goes_on_elsewhere_ends_with_the_same_bits(
    tmp_path: Path, before: int, after: int
) -> None:
    (whole,) = worlds.run(1, in_two_parts, folder=str(tmp_path / "whole"), first=20)
    folder = str(tmp_path / "parts")
    worlds.run(before, in_two_parts, folder=folder, first=7)  # in the middle of the second epoch
    assert worlds.run(after, in_two_parts, folder=folder, first=None)[0] == whole


@pytest.mark.parametrize(
    ("how", "told"),
    [({"shards": 4}, "--shards was 8 and is 4"), ({"threads": 3}, "--threads was 1 and is 3")],
    ids=["shards", "threads"],
)
def test_other_conditions_are_refused_unless_drift_is_allowed(
    tmp_path: Path, how: dict[str, Any], told: str
) -> None:
    worlds.run(1, in_two_parts, folder=str(tmp_path), first=7)
    with pytest.raises(worlds.RankFailed, match=told) as failure:
        worlds.run(1, in_two_parts, folder=str(tmp_path), first=None, **how)
    assert failure.value.kind == "CheckpointError"
    (found,) = worlds.run(1, in_two_parts, folder=str(tmp_path), first=None, allow_drift=True, **how)
    assert told in found["messages"][0]


def norm_of(world, num_examples: int) -> int:
    world.set_mode(4)
    model = world.replicate(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    return len(model(torch.ones(num_examples, 2)))


def test_a_shard_too_small_for_a_norm_is_told_as_that() -> None:
    assert worlds.run(1, norm_of, num_examples=2) == [2]
    with pytest.raises(worlds.RankFailed, match="A shard of a batch has 1 example") as failure:
        worlds.run(1, norm_of, num_examples=1)
    assert "Give batches of 8 or more" in str(failure.value)
