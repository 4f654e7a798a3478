"""The example of the steering angles: a batch for each rank is named, and a batch for all is silent."""

import json
import re
import runpy

import numpy as np
import pytest
from readme_commands import EXAMPLES, copied, said, shown_in, verified

NAME = "steering"
SHOWN = {shown.command: shown for shown in shown_in(NAME)}
CAUSES = {
    "samestep verify --gpus 1,2 -- python train.py --epochs 1": {"batch-grows-with-world"},
    "samestep verify --gpus 1,2 -- python train.py --epochs 1 --batch all": set(),
    "samestep verify --gpus 1,2 -- python train.py --epochs 1 --keras": {"batch-grows-with-world"},
    "samestep verify --gpus 1,2 -- python train.py --epochs 1 --batch all --keras": set(),
    "samestep verify task.py:keras_task --gpus 1,2 --set epochs=1": set(),
}
"""What is found, by command."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return copied(NAME, tmp_path_factory.mktemp("example"))


class Still:
    """In place of a random generator: full light, and no grain."""

    def uniform(self, low, high):
        return high

    def normal(self, mean, deviation, shape):
        return np.zeros(shape)


@pytest.mark.parametrize(
    ("curvature_per_m", "offset_m"), [(0.0, 0.0), (0.0, 1.0), (0.02, -0.5), (-0.02, 0.0)]
)
def test_frames_show_the_road_that_their_angle_leads_along(curvature_per_m, offset_m):
    road = runpy.run_path(str(EXAMPLES / NAME / "road.py"))
    row = 16
    ahead_m = road["CAMERA_M"] * road["FOCAL_PIXELS"] / (row - road["HORIZON"])
    middle_m = offset_m + curvature_per_m * ahead_m**2 / 2
    shown = road["frame"](curvature_per_m, offset_m, Still())[row]
    ends = np.flatnonzero(shown != shown[0])[[0, -1]]
    # each end of the road is seen to half a pixel
    due = (road["WIDTH"] - 1) / 2 + middle_m * road["FOCAL_PIXELS"] / ahead_m
    assert abs(ends.mean() - due) <= 0.5

    # the circle that the front wheels lead along goes through the point ahead
    look_m = road["LOOK_AHEAD_M"]
    sideways_m = offset_m + curvature_per_m * look_m**2 / 2
    curve_per_m = np.tan(road["steering_angle"](curvature_per_m, offset_m)) / road["WHEELBASE_M"]
    assert curve_per_m * (look_m**2 + sideways_m**2) == pytest.approx(2 * sideways_m)


def test_frames_are_known_by_their_seed():
    frames = runpy.run_path(str(EXAMPLES / NAME / "road.py"))["frames"]
    one, again, other = (frames(8, seed=seed) for seed in (1, 1, 2))
    assert one.tensors[0].equal(again.tensors[0]) and not one.tensors[1].equal(other.tensors[1])


@pytest.mark.parametrize("command", CAUSES)
def test_a_batch_for_each_rank_is_named_and_one_for_all_is_silent(command, folder, capsys):
    code, text = verified(command, folder, capsys)
    assert set(re.findall(r"^\d+\. ([\w-]+)$", text, re.MULTILINE)) == CAUSES[command], text
    assert code == bool(CAUSES[command])
    if command in SHOWN:
        SHOWN[command].assert_said(text)


def test_the_page_shows_what_is_verified_here():
    assert {command for command in SHOWN if command.startswith("samestep verify")} <= set(CAUSES)


def losses(start, folder, end=""):
    """What the trainings of the page that begin and end like this end at, in its order."""
    found = []
    for command, shown in SHOWN.items():
        if command.startswith(start) and command.endswith(end):
            code, text = said(command, folder)
            assert code == 0, text
            shown.assert_said(text)
            found += map(float, re.findall(r"(?:, loss|valid/loss) +(\d\S+)", text))
    return found


def test_the_loss_grows_with_the_ranks_in_their_recipe(folder):
    one, two, four = losses("samestep train --gpus", folder, "train.py")
    assert 5 * one < four and one < two < four


def test_with_a_batch_for_all_the_loss_stays(folder):
    assert losses("samestep train --gpus", folder, "--batch all") == [0.006] * 3  # of three digits


def test_the_table_has_what_the_commands_say():
    page = (EXAMPLES / NAME / "README.md").read_text()
    rows = re.findall(r"^\| (\d) \| (.+) \| (.+) \|$", page, re.MULTILINE)
    assert len(rows) == 3
    for ranks, *cells in rows:
        for cell, end in zip(cells, ("", " --batch all"), strict=True):
            (line,) = SHOWN[f"samestep train --gpus {ranks} -- python train.py{end}"].lines
            assert re.sub(r"^\[rank 0\] | in … s", "", line) == cell


def test_four_ranks_of_the_same_step_end_where_one_does(folder):
    one, four = losses("samestep train task.py", folder)
    # 150 steps, each with sums over the activations of 5 layers, of which the longest has n = 32 · 16 · 32
    # numbers. A sum in another order errs by about √n · 2⁻²⁴ of their sizes (Higham, section 4.2).
    assert abs(four - one) < 150 * 5 * (32 * 16 * 32) ** 0.5 * 2.0**-24 * one


def test_one_gpu_is_recommended_for_their_times_and_eight_are_projected_from_ours(folder):
    (theirs, ours) = (command for command in SHOWN if command.startswith("samestep advise"))
    (sweep,) = (command for command in SHOWN if command.startswith("samestep scale"))
    for command in (theirs, sweep, ours):
        code, text = said(command, folder)
        assert code in ((0, 1) if command == sweep else (0,)), text
        SHOWN[command].assert_said(text)
    advice = json.loads((folder / "runs" / "scale" / "advice.json").read_text())
    kinds = {row["gpus"]: row["kind"] for row in advice["rows"]}
    assert kinds[1] == kinds[2] == "measured" and kinds[8] != "measured"
    # the control: a job that scales is told to use what it has
    (folder / "scaling.csv").write_text("gpus,batch_per_gpu,step_s\n1,32,0.8\n2,16,0.41\n4,8,0.21\n")
    assert said("samestep advise scaling.csv --alone 8m --to 4", folder)[1].rstrip().endswith("\n4")
