"""Any sampler, any data set, any world: each drawn index exactly once, and the same batch everywhere."""

import functools
import gc
import random
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import worlds

SIZES = (1, 2, 3, 4)


class Numbers(Dataset[Tensor]):
    """Example i is the number i; what was asked of it is remembered."""

    def __init__(self, num_examples: int = 23) -> None:
        self.num_examples = num_examples
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.num_examples

    def __getitem__(self, index: int) -> Tensor:
        self.asked.append(index)
        return torch.tensor(index)


class Unseeded:
    """Draws from the operating system: no two iterations agree, and nobody can seed it."""

    def __iter__(self):
        yield from random.SystemRandom().sample(range(23), 23)

    def __len__(self) -> int:
        return 23


class Infinite:
    def __iter__(self):
        while True:
            yield from torch.randperm(23).tolist()


class Shrinking:
    """Yields another number of examples each epoch, and says a length that is wrong."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):
        yield from range(20 - 7 * self.epoch)

    def __len__(self) -> int:
        return 23


class Stateful:
    """Goes on where it is, across epochs, and can be told where that is."""

    def __init__(self) -> None:
        self.at = 0
        self.left = 0

    def __iter__(self):
        self.left = self.left or 17
        while self.left:
            self.at = (self.at + 5) % 23
            self.left -= 1
            yield self.at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "left": self.left}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.left = state["at"], state["left"]


def sampler_of(kind: str) -> Any:
    return {
        "default": dict,
        "ordered": lambda: {"shuffle": False},
        "random": lambda: {"sampler": RandomSampler(range(23))},
        "random with a generator": lambda: {
            "sampler": RandomSampler(range(23), generator=torch.Generator().manual_seed(8))
        },
        "weighted": lambda: {"sampler": WeightedRandomSampler(torch.arange(23.0), 31, replacement=True)},
        "subset": lambda: {"sampler": SubsetRandomSampler([3, 1, 4, 15, 9, 2, 6])},
        "unseeded": lambda: {"sampler": Unseeded()},
        "infinite": lambda: {"sampler": Infinite(), "steps_per_epoch": 7},
        "shrinking": lambda: {"sampler": Shrinking()},
        "stateful": lambda: {"sampler": Stateful()},
        "batches": lambda: {"batch_sampler": BatchSampler(RandomSampler(range(23)), 6, drop_last=False)},
        "uneven batches": lambda: {"batch_sampler": [[0], [1, 2], [3, 4, 5, 6, 7, 8, 9], [10, 11, 12]]},
        "made of the data": lambda: {"sampler": RandomSampler},
    }[kind]()


def epochs_of(world, kind: str, epochs: int = 2, workers: int = 0) -> list[list[list[int]]]:
    """What this rank trained on: epoch by epoch, step by step; idle turns count nothing."""
    loader = world.loader(Numbers(), batch_size=6, workers=workers, **sampler_of(kind))
    return [
        [batch.tolist() if world.share.count else [] for batch in loader]
        for _ in range(epochs)
    ]  # fmt: skip


def together(ranks: list[list[list[list[int]]]]) -> list[list[list[int]]]:
    """The global batches, from those of the ranks."""
    return [
        [sum((list(part) for part in parts), []) for parts in zip(*epoch, strict=True)]
        for epoch in zip(*ranks, strict=True)
    ]


REPEATABLE = [
    "default", "ordered", "random", "random with a generator", "weighted", "subset", "infinite", "shrinking",
    "stateful", "batches", "uneven batches", "made of the data",
]  # fmt: skip


@pytest.mark.parametrize("kind", REPEATABLE)
def test_global_batches_do_not_depend_on_the_world(kind: str) -> None:
    reference = together(worlds.run(1, epochs_of, kind=kind))
    assert sum(map(len, reference[0])) > 0
    for size in SIZES[1:]:
        assert together(worlds.run(size, epochs_of, kind=kind)) == reference


@pytest.mark.parametrize("size", SIZES)
def test_an_unseeded_sampler_is_shared_out_exactly_once(size: int) -> None:
    for epoch in together(worlds.run(size, epochs_of, kind="unseeded")):
        assert Counter(sum(epoch, [])) == Counter(range(23))


def test_drawing_on_every_rank_would_not_do() -> None:
    """The negative control: ranks that each take their share of their own draw repeat and miss examples."""
    drawn = [list(Unseeded()) for _ in range(2)]
    mixed = [*drawn[0][:12], *drawn[1][12:]]
    assert Counter(mixed) != Counter(range(23))


@pytest.mark.parametrize("kind", ["default", "random", "weighted"])
def test_the_next_epoch_is_another(kind: str) -> None:
    first, second = together(worlds.run(2, epochs_of, kind=kind))
    assert first != second


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(workers: int) -> None:
    for kind in ("default", "weighted", "uneven batches"):
        expected = together(worlds.run(2, epochs_of, kind=kind))
        assert together(worlds.run(2, epochs_of, kind=kind, workers=workers)) == expected


def asked_of(world) -> list[int]:
    dataset = Numbers()
    for _ in world.loader(dataset, batch_size=5):
        pass
    return dataset.asked


@pytest.mark.parametrize("size", SIZES)
def test_the_data_set_is_asked_once_for_each_example(size: int) -> None:
    # 23 in batches of 5: the last batch of 3 leaves the fourth rank idle, which must not ask again
    assert Counter(sum(worlds.run(size, asked_of), [])) == Counter(range(23))


def resumed(world, kind: str, at: int, state: Any = None, epoch: int = 1) -> tuple[Any, list[list[int]]]:
    """Without a state: go to step `at` of an epoch and return the state; with one: the rest of that epoch."""
    loader = world.loader(Numbers(), batch_size=6, workers=2 if kind == "default" else 0, **sampler_of(kind))
    if state is not None:
        loader.load_state(state)
        return None, [batch.tolist() if world.share.count else [] for batch in loader]
    for _ in range(epoch):
        for _ in loader:
            pass
    batches = iter(loader)
    for _ in range(at):
        next(batches)
    return loader.state(), [batch.tolist() if world.share.count else [] for batch in batches]


@pytest.mark.parametrize("kind", REPEATABLE)
def test_the_middle_of_an_epoch_is_found_again_on_another_world(kind: str) -> None:
    at = 1 if kind == "subset" else 2
    before = worlds.run(2, resumed, kind=kind, at=at)
    state = before[0][0]
    rest = together([[rank[1]] for rank in before])
    for size in (1, 3):
        after = worlds.run(size, resumed, kind=kind, at=at, state=state)
        assert together([[rank[1]] for rank in after]) == rest


def test_a_sampler_that_cannot_be_repeated_is_refused_in_the_middle() -> None:
    state = worlds.run(2, resumed, kind="unseeded", at=2)[0][0]
    with pytest.raises(worlds.RankFailed, match="drew other examples") as failure:
        worlds.run(2, resumed, kind="unseeded", at=2, state=state)
    assert failure.value.kind == "DataError"


class Stream(IterableDataset[Tensor]):
    def __init__(self, num_examples: int = 23, *, by_rank: bool = False, has_length: bool = True) -> None:
        self.num_examples = num_examples
        self.by_rank = by_rank
        if has_length:
            self.__class__ = type("SizedStream", (Stream,), {"__len__": lambda self: self.num_examples})

    def __iter__(self):
        noise = np.random.rand() + torch.rand(()).item() + random.random()
        shift = torch.distributed.get_rank() if self.by_rank else 0
        for i in range(self.num_examples):
            yield torch.tensor([i + shift, noise])


def stream_epochs(world, workers: int = 0, **options: Any) -> list[list[list[list[float]]]]:
    loader = world.loader(Stream(**options), batch_size=6, workers=workers)
    return [[batch.tolist() if world.share.count else [] for batch in loader] for _ in range(2)]


@pytest.mark.parametrize("workers", [0, 2])
def test_streams_are_shared_out_too(workers: int) -> None:
    reference = together(worlds.run(1, stream_epochs, workers=workers))
    for size in SIZES[1:]:
        assert together(worlds.run(size, stream_epochs, workers=workers)) == reference
    if workers == 0:
        assert [int(row[0]) for batch in reference[0] for row in batch] == list(range(23))


def test_a_stream_that_splits_itself_by_rank_is_refused() -> None:
    with pytest.raises(worlds.RankFailed, match="other examples on rank 1"):
        worlds.run(2, stream_epochs, by_rank=True)


@dataclass
class Cloud:
    """A batch of point clouds of different lengths."""

    coordinates: list[Tensor]
    labels: Tensor
    note: str


class Pair(NamedTuple):
    x: Tensor
    y: dict[str, Tensor]


class Clouds(Dataset[Tensor]):
    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((index + 1, 3), float(index))


def collate_cloud(examples: list[Tensor]) -> Cloud:
    return Cloud(list(examples), torch.tensor([len(e) for e in examples]), "kept")


def collate_pair(examples: list[Tensor]) -> Pair:
    return Pair(torch.cat(examples), {"lengths": torch.tensor([len(e) for e in examples])})


def structures(world) -> tuple[list[int], list[int], str]:
    clouds = [b for b in world.loader(Clouds(), batch_size=4, collate=collate_cloud) if world.share.count]
    pairs = [b for b in world.loader(Clouds(), batch_size=4, collate=collate_pair) if world.share.count]
    assert all(isinstance(c, Cloud) and c.note == "kept" for c in clouds)
    assert all(isinstance(p, Pair) for p in pairs)
    return (
        sum((c.labels.tolist() for c in clouds), []),
        sum((p.y["lengths"].tolist() for p in pairs), []),
        str([len(c.coordinates) for c in clouds]),
    )


@pytest.mark.parametrize("size", SIZES)
def test_batches_of_any_structure(size: int) -> None:
    ranks = worlds.run(size, structures)
    for part in (0, 1):
        assert sorted(sum((rank[part] for rank in ranks), [])) == list(range(1, 12))


class Noisy(Dataset[Tensor]):
    """Draws from all three generators; from the tenth epoch position on only, if `late`."""

    def __init__(self, *, late: bool = False) -> None:
        self.late = late

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Tensor:
        if self.late and index < 25:
            return torch.tensor([float(index), 0.0, 0.0, 0.0])
        return torch.tensor([index, random.random(), np.random.rand(), torch.rand(()).item()])


def noise(world, workers: int = 0, late: bool = False, shuffle: bool = True) -> list[list[float]]:
    rows = []
    loader = world.loader(Noisy(late=late), batch_size=7, workers=workers, shuffle=shuffle)
    for _ in range(2):
        for batch in loader:
            # what the training itself draws must not disturb the data, nor the data the training
            random.random(), torch.rand(world.rank + 1)
            rows += batch.tolist() if world.share.count else []
    return rows


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_augmentation_belongs_to_the_example(workers: int, late: bool) -> None:
    reference = worlds.run(1, noise, late=late, shuffle=not late)[0]
    for size in (1, 2, 3):
        ranks = worlds.run(size, noise, workers=workers, late=late, shuffle=not late)
        assert sorted(sum(ranks, [])) == sorted(reference)
    drawn = [tuple(row) for row in reference if row[1]]
    assert len({row[1] for row in drawn}) == len(drawn), "two examples or epochs got the same numbers"


def main_process_draws(world) -> list[float]:
    random.seed(4), np.random.seed(4)
    for _ in world.loader(Noisy(), batch_size=7):
        pass
    return [random.random(), np.random.rand()]


def test_loading_leaves_the_process_wide_generators_alone() -> None:
    random.seed(4), np.random.seed(4)
    expected = [random.random(), np.random.rand()]
    for size in (1, 3):
        assert worlds.run(size, main_process_draws) == [expected] * size


def refused(world, case: str) -> None:
    if case == "batch smaller than the world":
        world.loader(Numbers(), batch_size=2)
    if case == "no batch":
        world.loader(Numbers())
    if case == "empty":
        world.loader(Numbers(0), batch_size=8)
    if case == "endless stream":
        world.loader(Stream(has_length=False), batch_size=8)
    if case == "already shared out":
        world.loader(Numbers(), batch_size=8, sampler=DistributedSampler(Numbers(), num_replicas=3, rank=0))
    if case == "no length":
        world.loader(iter([1, 2]), batch_size=8)
    if case == "sampler for a stream":
        world.loader(Stream(), batch_size=8, sampler=[1, 2])


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("batch smaller than the world", "batch_size is 2 and the world has 3 ranks"),
        ("no batch", "Neither batch_size nor batch_sampler was given"),
        ("empty", "Numbers is empty"),
        ("endless stream", "without a length"),
        ("already shared out", "already shares its examples out to 3 ranks"),
        ("no length", "__getitem__"),
        ("sampler for a stream", "cannot be asked for an index"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(case: str, sentence: str) -> None:
    with pytest.raises(worlds.RankFailed, match=sentence) as failure:
        worlds.run(3, refused, case=case)
    assert failure.value.kind == "DataError"


def of_another_loader(world, name: str) -> None:
    world.loader(Numbers(), batch_size=8, **{name: 2})


@pytest.mark.parametrize(("name", "said"), [("num_workers", "say workers"), ("drop_last", "steps_per_epoch")])
def test_names_of_torchs_loader_are_answered_with_ours(name: str, said: str) -> None:
    with pytest.raises(worlds.RankFailed, match=f"world.loader has no {name}: .*{said}"):
        worlds.run(1, of_another_loader, name=name)


def seconds_to_let_go(world) -> float:
    loader = world.loader(Numbers(), batch_size=6, workers=2)
    for _ in loader:
        pass
    began = time.monotonic()
    del loader
    gc.collect()
    return time.monotonic() - began


def test_workers_end_with_their_loader() -> None:
    # torch waits 5 s for each worker that it finds in a circle of references
    assert max(worlds.run(2, seconds_to_let_go)) < 4


def two_at_once(world) -> None:
    for _ in zip(world.loader(Numbers(), batch_size=4), world.loader(Numbers(), batch_size=4), strict=True):
        pass


def test_two_training_loaders_at_once_are_refused() -> None:
    with pytest.raises(worlds.RankFailed, match="Two training loaders"):
        worlds.run(2, two_at_once)


def evaluation_between(world) -> list[int]:
    """An evaluation in the middle of training leaves the training's share alone."""
    counts = []
    for _ in world.loader(Numbers(), batch_size=6):
        before = world.share
        for _ in world.loader(Numbers(3), batch_size=2, train=False):
            pass
        assert world.share is before
        counts.append(world.share.count)
    return counts


def test_an_evaluation_in_the_middle_of_training() -> None:
    assert worlds.run(1, evaluation_between) == [[6, 6, 6, 5]]


def drawn_through(world, is_watched: bool) -> tuple[int, list[list[float]]]:
    """How often torch's loader was asked for an epoch, maybe with somebody who looks on, and the epoch."""
    asked: list[DataLoader] = []

    @functools.wraps(DataLoader.__iter__)
    def watched(loader: DataLoader) -> Any:
        asked.append(loader)
        return watched.__wrapped__(loader)

    before = DataLoader.__iter__
    if is_watched:
        DataLoader.__iter__ = watched
    try:
        batches = [batch.tolist() for batch in world.loader(Numbers(), batch_size=6)]
    finally:
        DataLoader.__iter__ = before
    return len(asked), batches


def test_without_workers_torchs_loader_is_left_out_unless_somebody_watches_it() -> None:
    for size in (1, 2):
        for plain, watched in zip(
            worlds.run(size, drawn_through, is_watched=False),
            worlds.run(size, drawn_through, is_watched=True),
            strict=True,
        ):
            assert (plain[0], watched[0]) == (0, 1)
            assert plain[1] == watched[1]


def masked(examples: list[Tensor]) -> Tensor:
    return torch.stack(examples) * (torch.rand(len(examples)) > 0.5)


def collate_causes(world, random: bool) -> list[str]:
    world.on_finding = lambda finding: None
    for _ in world.loader(Numbers(), batch_size=6, workers=1, collate=masked if random else torch.stack):
        pass
    world.on_finding = None
    return [finding.cause for finding in world.findings]


@pytest.mark.parametrize("random", [True, False])
def test_a_collate_function_that_draws_is_a_finding(random: bool) -> None:
    expected = ["collate-depends-on-rank"] if random else []
    assert worlds.run(2, collate_causes, random=random) == [expected] * 2
    assert worlds.run(1, collate_causes, random=random) == [[]]


def empty_batch(world) -> None:
    for _ in world.loader(Numbers(), batch_size=1, batch_sampler=[[1, 2], [], [3]]):
        pass


def test_a_batch_without_an_index_is_refused() -> None:
    with pytest.raises(worlds.RankFailed, match="without an index"):
        worlds.run(1, empty_batch)
