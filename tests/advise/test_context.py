"""What a sweep tells beside its steps, and what it costs to let the batch grow."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.advise.context import NoiseScale, read_context
from samestep.advise.convergence import data_in_words, examples_needed, too_small

SWEEP = {
    "cells": [
        {"gpus": 1, "batch_size": 64, "start_s": 3.0, "warm_up_s": 1.0, "steps_per_epoch": 100,
         "evaluation_s": 2.0, "checkpoint_s": None},
        {"gpus": 2, "batch_size": 64, "start_s": 5.0, "warm_up_s": None, "steps_per_epoch": None},
        {"gpus": 4, "batch_size": 64, "start_s": None},
    ],
    "gaps": [
        {"gpus": 2, "batch_size": 64, "ideal_s": 0.2, "measured_s": 0.25, "parts": [
            {"name": "exchange not hidden", "seconds": 0.04, "low": 0.03, "high": 0.05},
            {"name": "input pipeline", "seconds": 0.01, "low": -0.01, "high": 0.03},
        ]},
    ],
    "noise_scale": {"value": 300.0, "low": 200.0, "high": None},
}  # fmt: skip


def write(folder, sweep):
    folder.mkdir(exist_ok=True)
    (folder / "scale.json").write_text(json.dumps(sweep))
    return folder


def test_what_a_sweep_tells(tmp_path):
    found = read_context([write(tmp_path, SWEEP)])
    assert found.overheads.start_s == {1: 4.0, 2: 5.0}
    assert (found.overheads.start_at(1), found.overheads.start_at(3), found.overheads.start_at(64)) == (
        4,
        5,
        5,
    )
    assert found.overheads.epoch_at(8) == 2.0
    assert found.examples_per_epoch == 6400
    assert found.noise == NoiseScale(value=300.0, low=200.0, high=None)
    bars = found.bars_at(8)
    assert bars.gpus == 2
    assert bars.seconds("exchange not hidden") == 0.04
    assert bars.seconds("input pipeline") == 0.0  # it may be nothing
    assert bars.largest.name == "exchange not hidden"


def test_what_a_sweep_found_that_decides(tmp_path):
    said = {"cause": "duplicated-work", "message": "Twice.", "evidence": {}, "fix": "Shard."}
    marks = [{"mark": "busy", "gpus": 1}, {"mark": "busy", "gpus": 2}, {"mark": "too-noisy", "gpus": 2}]
    found = read_context([write(tmp_path, SWEEP | {"findings": [{"cause": "x"}, said], "fairness": marks})])
    assert (found.duplicated.message, found.duplicated.fix) == ("Twice.", "Shard.")
    assert found.marks == ("busy", "too-noisy")
    assert read_context([write(tmp_path, SWEEP)]).duplicated is None


def test_a_sweep_that_tells_nothing(tmp_path):
    found = read_context([write(tmp_path, {"cells": [], "noise_scale": {"value": None, "reason": "few"}})])
    assert not found.has_start
    assert (found.examples_per_epoch, found.noise, found.bars) == (None, None, ())
    assert read_context([tmp_path / "nowhere"]) == read_context([])


def test_bars_of_other_batches_are_parts_of_other_steps(tmp_path):
    gaps = [SWEEP["gaps"][0] | {"batch_size": size, "measured_s": size / 256} for size in (128, 64)]
    found = read_context([write(tmp_path, SWEEP | {"gaps": gaps})])
    assert [bars.batch_size for bars in found.bars] == [64, 128]
    assert found.of_batches({2: 64.0}).bars_at(2).measured_s == 0.25
    assert found.of_batches({2: 128.0}).bars_at(2).measured_s == 0.5
    assert found.of_batches({2: 32.0}).bars == () == found.of_batches({4: 64.0}).bars


def test_of_two_sweeps_the_last_counts(tmp_path):
    other = SWEEP | {"noise_scale": {"value": 500.0, "low": None, "high": None}, "gaps": []}
    found = read_context([write(tmp_path / "a", SWEEP), write(tmp_path / "b", other)])
    assert found.noise.value == 500
    assert len(found.bars) == 1


SIZES = st.floats(1, 1e6)


@given(SIZES, SIZES, SIZES)
def test_a_larger_batch_never_needs_fewer_examples_and_never_more_steps(batch, times, noise):
    found = examples_needed(batch * times, batch, NoiseScale(value=noise, low=noise / 2, high=noise * 2))
    assert 1 - 1e-12 <= found.low <= found.factor * (1 + 1e-12)
    assert found.factor <= found.high * (1 + 1e-12)
    assert found.high <= times * (1 + 1e-12)


def test_a_small_noise_scale_makes_a_larger_batch_useless_and_a_large_one_makes_it_free():
    assert examples_needed(1024, 64, NoiseScale(value=1e-9, low=None, high=None)).factor == pytest.approx(16)
    assert examples_needed(1024, 64, NoiseScale(value=1e12, low=None, high=None)).factor == pytest.approx(1)


def test_an_open_interval_goes_to_the_worst_and_the_best_case():
    found = examples_needed(256, 64, NoiseScale(value=100.0, low=None, high=None))
    assert (found.low, found.high) == (1.0, 4.0)


def test_without_noise_only_the_same_batch_is_known():
    assert examples_needed(64, 64, None).is_known
    found = examples_needed(256, 64, None)
    assert (found.factor, found.is_known, found.high) == (1.0, False, None)


def test_data_in_words():
    assert data_in_words(8, 512, 5120) == (
        "On 8 GPUs with a batch of 512, an epoch is 10 steps and 640 examples a GPU"
    )
    assert too_small({1: 64, 8: 512}, 512 * 20) is None
    assert too_small({1: 64, 8: 512}, 512 * 20 - 1).evidence["gpus"] == 8
    assert too_small({1: 64}, None) is None
