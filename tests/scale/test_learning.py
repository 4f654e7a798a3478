"""What a sweep tells of the training, with and without the answer that it wrote."""

import shutil
from pathlib import Path

import pytest
from pretended import Pretended
from synthetic import Job

from samestep.advise.noise import Noise
from samestep.observed import Group
from samestep.report.unfinished import judged_again
from samestep.scale.asked import Asked
from samestep.scale.folder import SweepFolder
from samestep.scale.learning import curves_of, noise_of
from samestep.scale.looks import Look
from samestep.scale.measure import measure
from samestep.scale.plan import Sweep

SWEEP = Sweep(worlds=(1, 2), batches=(8,))


def look(size, value):
    return Look(world_size=size, status="cut", noise=Noise(value=value, low=1.0, high=9.0, num_steps=7))


def measured(folder: Path, **program):
    runner = Pretended(out=folder, num_steps=16, **program)
    asked = Asked(worlds=(1, 2), most_rounds=2, fewest_rounds=2)
    return measure(asked, SweepFolder(folder), runner).result.to_json()


def test_most_ranks_tell_the_noise_scale():
    told = noise_of({1: look(1, 3.0), 2: look(2, 4.0), 4: look(4, None)})
    assert told == {"value": 4.0, "low": 1.0, "high": 9.0, "num_steps": 7, "from_gpus": 2}
    assert noise_of({1: Look(world_size=1, status="cut")}) is None


def test_without_rows_there_are_no_curves(tmp_path):
    assert curves_of(SWEEP, Job().runs(SWEEP, rounds=2), tmp_path) == []


@pytest.mark.parametrize("gone", [None, Group])
def test_a_sweep_that_was_killed_is_judged_as_if_it_had_written_its_answer(tmp_path, gone):
    written = measured(
        tmp_path / "a", edit=lambda row, rank, size: None if gone and isinstance(row, gone) else row
    )
    assert written["cells"][1]["status"] == ("refused" if gone else "measured")
    folder = shutil.copytree(tmp_path / "a", tmp_path / "copied")
    again = judged_again(folder)
    for part in ("cells", "gaps", "findings", "fairness", "curves", "noise_scale"):
        assert again[part] == written[part], part
    # only what was seen before anything was timed tells that ranks never meet
    shutil.rmtree(folder / "looks")
    assert judged_again(folder)["cells"][1]["status"] == "measured"
