import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samestep.observations import sample_positions
from samestep.probe.generators import Generators
from samestep.probe.summaries import bits_print, example_prints, settings_of, summary, tensors_in

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool,
    torch.complex64,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_dtype_has_a_summary(dtype):
    values = torch.tensor([0, 1, 1, 0, 1]).to(dtype)
    found = summary(values, "w")
    assert found.dtype == str(dtype)[6:] and found.shape == (5,) and found.max_abs == 1.0
    assert found.mean == pytest.approx(0.6) and found.rms == pytest.approx(0.6**0.5)
    flat = torch.view_as_real(values).reshape(-1) if values.is_complex() else values
    assert list(found.sample) == [float(flat[place]) for place in sample_positions("w", len(flat))]


@given(st.integers(1, 200_000), st.data())
def test_no_change_of_one_bit_goes_unseen(count, data):
    values = torch.arange(count, dtype=torch.int32)
    before = bits_print(values.view(torch.float32))
    where, bit = data.draw(st.integers(0, count - 1)), data.draw(st.integers(0, 30))
    values[where] ^= 1 << bit
    assert bits_print(values.view(torch.float32)) != before


def test_order_shape_and_dtype_count_but_memory_does_not():
    values = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    assert bits_print(values) == bits_print(values.t().contiguous().t())
    assert bits_print(values) != bits_print(values.flip(0))
    assert bits_print(values) != bits_print(values.reshape(4, 6))
    assert bits_print(values) != bits_print(values.view(torch.int32))
    assert bits_print(torch.zeros(2)) != bits_print(torch.tensor([0.0, -0.0]))
    # one up here and three down there would cancel if elements were weighed by their place
    one, other = torch.tensor([[5, 9], [8, 8]], dtype=torch.int32)
    assert bits_print(one) != bits_print(other)


def test_nothing_and_not_numbers():
    assert summary(torch.empty(0, 3), "w").sample == () and summary(torch.empty(0, 3)).rms == 0.0
    found = summary(torch.tensor([1.0, float("nan")]))
    assert found.mean != found.mean and found.max_abs != found.max_abs
    assert summary(torch.tensor([float("inf")])).max_abs == float("inf")
    assert summary(torch.eye(3).to_sparse()).print == bits_print(torch.eye(3))


def test_examples_are_known_by_their_rows():
    rows = torch.randn(3, 70_000, generator=torch.Generator().manual_seed(0))
    label = torch.tensor([1, 2, 3])
    prints = example_prints([label, rows], 3)
    assert len(set(prints)) == 3
    assert example_prints([label, rows[[2, 0, 1]]], 3) == (prints[2], prints[0], prints[1])
    assert example_prints([torch.tensor(1.0), rows], 4) == () == example_prints([], None)


def test_looking_at_generators_moves_none():
    torch.rand(1), np.random.rand(), random.random()
    first, again = Generators().described(), Generators().described()
    assert first == again
    torch.rand(1)
    assert Generators().described().torch != first.torch and Generators().described().numpy == first.numpy
    np.random.rand()
    assert Generators().described().numpy != first.numpy and Generators().described().python == first.python
    random.random()
    assert Generators().described().python != first.python


def test_containers_and_settings():
    assert len(tensors_in({"a": [torch.ones(1), 3], "b": (torch.ones(2),)})) == 2
    assert settings_of({"lr": 0.1, "_hidden": 1, "params": []}) == {"lr": "0.1"}
