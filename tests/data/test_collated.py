"""Batches are those of torch's `default_collate`, on the way that is faster as on the other."""

from collections import namedtuple

import pytest
import torch
from torch.utils.data import default_collate

from samestep.data import examples as module
from samestep.data.examples import _collated

Pair = namedtuple("Pair", "x y")
X, Y = torch.arange(6.0).view(3, 2), torch.tensor([1, 0, 2])
FASTER = {
    "pairs": [(x, y) for x, y in zip(X, Y, strict=True)],
    "one of each": [(x,) for x in X],
    "one example": [(X[0], Y[0])],
    "half": [(x.half(), y) for x, y in zip(X, Y, strict=True)],
}
OTHERS = {
    "tensors": list(X),
    "numbers beside them": [(x, 3) for x in X],
    "lists": [[x, y] for x, y in zip(X, Y, strict=True)],
    "named": [Pair(x, y) for x, y in zip(X, Y, strict=True)],
    "parameters": [(torch.nn.Parameter(x),) for x in X],
    "nothing": [(), ()],
}


def same(one, other):
    if isinstance(one, torch.Tensor):
        return type(one) is type(other) and one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))


@pytest.mark.parametrize("examples", [*FASTER.values(), *OTHERS.values()], ids=[*FASTER, *OTHERS])
def test_batches_are_those_of_torch(examples):
    assert same(_collated(examples), default_collate(examples))


@pytest.mark.parametrize("examples", FASTER.values(), ids=FASTER)
def test_tuples_of_tensors_take_the_faster_way(examples, monkeypatch):
    monkeypatch.setattr(module, "default_collate", None)
    _collated(examples)


@pytest.mark.parametrize(
    "examples",
    [[(X[0], Y[0]), (X[1],)], [(X[0],), (X[:2],)], [(X[0],), [X[1]]], [(X[0].to_sparse(),)] * 2],
    ids=["longer", "larger", "a list among them", "sparse"],
)
def test_what_torch_refuses_is_refused_alike(examples):
    try:
        expected = default_collate(examples)
    except Exception as error:
        with pytest.raises(type(error)) as raised:
            _collated(examples)
        assert str(raised.value) == str(error)
    else:
        assert same(_collated(examples), expected)
