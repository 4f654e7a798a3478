"""What is fetched and collated in less time is what it would be otherwise: only the clock can tell."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from samestep.data.examples import MapExamples, Request
from samestep.data.generators import seed_all
from samestep.data.shard import shares


class Late:
    """A collate function that changes what it gets, and draws from its twelfth batch on only."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.num_calls = 0

    def __call__(self, examples: list[dict[str, float]]) -> list[float]:
        self.num_calls += 1
        values = [example.pop("value") for example in examples]
        if values[0] < self.first:
            return values
        return [value + random.random() + float(np.random.rand()) + float(torch.rand(())) for value in values]


class Records:
    """Examples that are made when they are asked for."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, float]:
        return {"value": float(index)}


class Jittered(TensorDataset):
    """Looks like a table and draws: it must not be fetched like one."""

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(tensor + torch.rand(()) for tensor in super().__getitem__(index))


def table() -> TensorDataset:
    return TensorDataset(torch.arange(60.0).view(20, 3), torch.arange(20.0))


def batch_of(dataset: TensorDataset, indices: list[Any], collate: Any = None) -> Any:
    share = shares(len(indices), rank=0, world_size=1, turns=1, epoch=0, position=0)
    return MapExamples(dataset, collate=collate, seed=0).__getitems__(Request(share, [indices])).batches[0]


@pytest.mark.parametrize("indices", [[3], [5, 1, 19, 5], [-1, 0], list(range(20))])
def test_a_table_gives_the_batches_that_torch_would_collate(indices: list[int]) -> None:
    dataset = table()
    batch, expected = batch_of(dataset, indices), default_collate([dataset[i] for i in indices])
    assert type(batch) is type(expected)
    for ours, theirs in zip(batch, expected, strict=True):
        assert torch.equal(ours, theirs) and ours.dtype == theirs.dtype and ours.is_contiguous()


def test_a_batch_is_no_window_on_the_table() -> None:
    dataset = table()
    batch_of(dataset, [0, 1, 2])[0].zero_()
    assert dataset.tensors[0][1, 0] == 3


def test_keys_that_are_no_numbers_mean_what_the_data_set_says() -> None:
    assert batch_of(TensorDataset(table().tensors[0]), [(1, 2), (3, 0)])[0].tolist() == [5.0, 9.0]


def test_a_collate_function_gets_examples() -> None:
    assert batch_of(table(), [4, 2], collate=lambda examples: [float(y) for _, y in examples]) == [4.0, 2.0]


def test_a_table_that_draws_is_fetched_by_key() -> None:
    """The negative control: at once, all rows would get the same jitter."""
    dataset = Jittered(torch.zeros(4))
    assert len(set(batch_of(dataset, [0, 1, 2, 3])[0].tolist())) == 4
    assert len(set(dataset[[0, 1, 2, 3]][0].tolist())) == 1


def collated(collate: Late, seed: int) -> list[list[float]]:
    examples = MapExamples(Records(), collate=collate, seed=0)
    batches = []
    for index in range(0, 40, 2):
        seed_all(seed + index)  # whatever the streams are at that time
        share = shares(2, rank=0, world_size=1, turns=1, epoch=0, position=index)
        batches.append(examples.__getitems__(Request(share, [[index, index + 1]])).batches[0])
    return batches


def test_a_collate_function_that_begins_to_draw_gets_the_numbers_that_it_would_have_got() -> None:
    """It is called once for each batch, and once more for the one at which it was found out."""
    late = Late(24)
    batches = collated(late, seed=1)
    assert late.num_calls == 21
    assert batches == collated(Late(24), seed=2)
    assert batches[12:] == collated(Late(0), seed=3)[12:]


def test_a_quiet_collate_function_leaves_the_streams_alone() -> None:
    quiet = Late(100)
    seed_all(5)
    expected = random.random(), float(np.random.rand()), float(torch.rand(()))
    assert collated(quiet, seed=1) == [[float(i), float(i + 1)] for i in range(0, 40, 2)]
    assert quiet.num_calls == 20
    examples = MapExamples(Records(), collate=Late(100), seed=0)
    seed_all(5)
    for index in range(20):
        share = shares(1, rank=0, world_size=1, turns=1, epoch=0, position=index)
        examples.__getitems__(Request(share, [[index]]))
    assert (random.random(), float(np.random.rand()), float(torch.rand(()))) == expected
