import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from samestep.metrics.packing import UnpackableError, pack, unpack

CPU = torch.device("cpu")

tensors = hnp.arrays(
    dtype=st.sampled_from(["float32", "float64", "int64", "uint8", "bool", "complex64"]),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
).map(torch.from_numpy)
leaves = st.one_of(tensors, st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary())
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=4), inner, max_size=4),
    ),
    max_leaves=12,
)


def bits(value):
    """The value with every number as its bits, so that NaN and -0.0 compare as well."""
    match value:
        case torch.Tensor():
            return (str(value.dtype), tuple(value.shape), value.numpy().tobytes())
        case float():
            # JSON writes one NaN only; which one it was carries no meaning
            return "nan" if value != value else struct.pack("d", value)
        case list() | tuple():
            return (type(value).__name__, [bits(item) for item in value])
        case dict():
            return {name: bits(item) for name, item in value.items()}
    return (type(value).__name__, value)


@settings(deadline=None)
@given(trees)
def test_what_was_packed_comes_back_bit_by_bit(tree):
    flat = pack(tree, CPU)
    assert flat.dtype == torch.uint8
    assert flat.dim() == 1
    assert bits(unpack(flat)) == bits(tree)


def test_bfloat16_and_views_come_back():
    tree = [torch.arange(6).bfloat16().reshape(2, 3).T, torch.arange(8.0)[::2]]
    for got, put in zip(unpack(pack(tree, CPU)), tree, strict=True):
        assert got.dtype == put.dtype
        assert torch.equal(got, put)


def test_padding_behind_the_bytes_does_no_harm():
    # a gather pads every rank to the longest
    flat = pack([torch.arange(3)], CPU)
    (got,) = unpack(torch.cat([flat, torch.full((40,), 7, dtype=torch.uint8)]))
    assert torch.equal(got, torch.arange(3))


def test_what_comes_back_shares_no_memory():
    tensor = torch.zeros(3)
    got = unpack(pack(tensor, CPU))
    tensor += 1
    assert torch.equal(got, torch.zeros(3))


def test_other_kinds_of_values_are_refused_by_name():
    with pytest.raises(UnpackableError, match="type set"):
        pack({"a": [{1, 2}]}, CPU)
