"""Tables of tensors are fetched at once, and nobody can tell but by the clock."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from samestep.data.examples import MapExamples, Request
from samestep.data.shard import shares


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
