"""What is run for a cell."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.errors import ConfigError
from samestep.scale.variants import Cell, Variant, comparisons


def test_every_number_of_gpus_with_every_batch_and_one_gpu_always():
    found = comparisons([4, 2], [16, 8])
    assert [(c.cell.gpus, c.cell.batch_size) for c in found] == [
        (1, 8),
        (2, 8),
        (4, 8),
        (1, 16),
        (2, 16),
        (4, 16),
    ]
    assert all(c.reference == Cell(gpus=1, batch_size=c.cell.batch_size) for c in found)


def test_a_batch_that_grows_is_compared_with_that_of_one_gpu():
    found = comparisons([1, 4], [8], is_weak=True)
    assert [c.cell.batch_size for c in found] == [8, 32]
    assert found[1].reference == Cell(gpus=1, batch_size=8)
    assert found[1].ratio == 1


@given(st.integers(1, 64), st.integers(64, 10_000), st.booleans())
def test_a_gpu_has_its_part_of_the_batch(gpus, batch, is_weak):
    found = comparisons([gpus], [batch], is_weak=is_weak)[-1]
    assert found.ratio == (1 if is_weak else Fraction(1, gpus))
    assert found.cell.largest_share * gpus >= found.cell.batch_size > (found.cell.largest_share - 1) * gpus


def test_what_a_gap_is_made_of():
    roles = comparisons([4], [32])[1].roles(has_norms=True)
    names = {role: variant.name for role, variant in roles.items()}
    assert names == {
        "full": "full-4x32", "local-norms": "local-norms-4x32", "silent": "silent-4x32",
        "cached": "cached-4x32", "alone": "cached-1x8", "one": "full-1x32", "alone-full": "cached-1x32",
    }  # fmt: skip
    assert "local-norms" not in comparisons([4], [32])[1].roles(has_norms=False)


def test_one_gpu_needs_its_two():
    roles = comparisons([1], [32])[0].roles(has_norms=True)
    assert {variant.name for variant in roles.values()} == {"full-1x32", "cached-1x32"}


def test_runs_that_are_the_same_are_made_once():
    roles = [c.roles(has_norms=False) for c in comparisons([4], [8, 32])]
    assert roles[1]["alone-full"] != roles[3]["alone-full"]
    assert roles[3]["alone"] == roles[1]["alone-full"] == Variant(gpus=1, batch_size=8, kind="cached")


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("full", (False, False, False)),
        ("local-norms", (True, False, False)),
        ("silent", (True, True, False)),
        ("cached", (True, True, True)),
    ],
)
def test_each_kind_takes_one_thing_more_away(kind, changes):
    many = Variant(gpus=2, batch_size=8, kind=kind)
    assert (many.are_norms_local, many.is_exchange_off, many.is_data_cached) == changes
    one = Variant(gpus=1, batch_size=8, kind=kind)
    assert (one.are_norms_local, one.is_exchange_off) == (False, False)


@pytest.mark.parametrize(
    ("worlds", "batches", "told"),
    [
        ([1, 4], [2, 8], "A batch of 2 was to be shared by 4 GPUs"),
        ([0], [8], "GPUs: 0 asked for"),
        ([1], [-3], "batch sizes: -3 asked for"),
        ([1], [], "batch sizes: none asked for"),
    ],
)
def test_what_cannot_be_is_refused(worlds, batches, told):
    with pytest.raises(ConfigError, match=told):
        comparisons(worlds, batches)


def test_a_small_batch_that_grows_is_large_enough():
    assert comparisons([4], [1], is_weak=True)[1].cell == Cell(gpus=4, batch_size=4)
