"""Ranks that start with different models are refused on all ranks, with names, before the first step."""

import pytest
import torch
from torch import nn

import worlds


class Named(nn.Module):
    def __init__(self, names: list[str]) -> None:
        super().__init__()
        for name in names:
            self.add_module(name, nn.Linear(2, 2))


def replicate(world, case: str, from_rank: int | None = None) -> list[float]:
    odd = world.rank == 1
    torch.manual_seed(5)
    model = Named(["a", "b", "c"])
    if case == "order" and odd:
        model = Named(["b", "a", "c"])
        torch.manual_seed(5)
        model.load_state_dict(Named(["a", "b", "c"]).state_dict())
    if case == "missing" and odd:
        model = Named(["a", "b"])
    if case == "shape" and odd:
        model.b = nn.Linear(2, 3)
    if case == "dtype" and odd:
        model.c.double()
    if case == "trainable" and odd:
        model.b.bias.requires_grad_(False)
    if case == "value" and odd:
        model.b.weight.data[0, 0] += 1e-7
    if case == "buffer":
        model.register_buffer("scale", torch.tensor(1.0 + world.rank))
    if case == "lazy":
        model.d = nn.LazyLinear(2)
    world.replicate(model, from_rank=from_rank)
    return [float(value.sum()) for value in model.state_dict().values()]


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("order", "rank 1 .*the order differs.*a.weight on rank 0, b.weight here"),
        ("missing", "rank 1 .*lacks c.weight, c.bias"),
        ("shape", r"shape of b.weight, b.bias differs \(\[2, 2\] on rank 0, \[3, 2\] here\)"),
        ("dtype", "dtype of c.weight, c.bias differs"),
        ("trainable", "trainable of b.bias differs"),
        ("value", "the values of b.weight differ"),
        ("buffer", "the values of scale differ"),
        ("lazy", "without a shape"),
    ],
)
def test_unequal_replicas_are_refused_by_name(case: str, sentence: str) -> None:
    with pytest.raises(worlds.RankFailed, match=sentence) as failure:
        worlds.run(3, replicate, case=case)
    assert failure.value.kind == "ReplicaError"


@pytest.mark.parametrize("size", [1, 2, 3])
def test_equal_replicas_pass(size: int) -> None:
    ranks = worlds.run(size, replicate, case="none")
    assert all(rank == ranks[0] for rank in ranks)


def test_values_can_be_taken_from_one_rank() -> None:
    ranks = worlds.run(2, replicate, case="buffer", from_rank=1)
    assert ranks[0] == ranks[1]
    assert ranks[0][0] == 2.0, "the model's own buffer comes first"
