"""The example of the towers: its page is true, and its model is the same wherever it is restored."""

import csv
import re

import numpy as np
import pytest
from readme_commands import copied, said, shown_in, verified

NAME = "yaml_towers"
VERIFIED = {shown.command: shown for shown in shown_in(NAME, "samestep verify")}
CAUSES = {
    "samestep verify --gpus 1,4 -- python towers.py": {"norm-not-synchronised", "clipped-before-exchange"},
    "samestep verify --gpus 1,4 -- python towers.py --clip whole": {
        "norm-not-synchronised",
        "unequal-batches-averaged",
    },
    "samestep verify --gpus 1,4 -- python towers.py --clip whole --weigh examples": {"norm-not-synchronised"},
    "samestep verify towers.yaml --gpus 1,4 --set epochs=1": set(),
}
"""What is found, by command: each cure takes its own finding away, and the YAML file has none."""


@pytest.mark.parametrize("command", CAUSES)
def test_faults_of_towers_are_named_and_their_cures_are_silent(command, tmp_path, capsys):
    code, text = verified(command, copied(NAME, tmp_path), capsys)
    assert set(re.findall(r"^\d+\. ([\w-]+)$", text, re.MULTILINE)) == CAUSES[command], text
    assert code == bool(CAUSES[command])
    if command in VERIFIED:
        VERIFIED[command].assert_said(text)


def test_the_page_shows_the_faults_and_the_cure():
    assert set(VERIFIED) <= set(CAUSES)
    assert any(CAUSES[command] for command in VERIFIED)
    assert not all(CAUSES[command] for command in VERIFIED)


NOT_INSTALLED = "raise ImportError('Samestep is not installed here')"
# A sum of n float32 numbers in another order errs by at most n·2⁻²⁴ of the sum of their sizes; the three
# layers have sums of 9, 72 and 256 numbers. Logits are below 100.
TOLERANCE = (9 + 72 + 256) * 2.0**-24 * 100


def difference_in(text):
    return float(re.search(r"largest difference .* (\S+)$", text, re.MULTILINE)[1])


def test_trained_on_four_ranks_restored_on_one_and_on_none(tmp_path):
    folder = copied(NAME, tmp_path)
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "samestep.py").write_text(NOT_INSTALLED)
    assert said("python -c 'import training'", folder, PYTHONPATH=str(bare))[0] != 0

    accuracies = []
    for shown in shown_in(NAME):
        if shown.command in VERIFIED:
            continue
        if is_plain := shown.command.startswith("python"):
            code, text = said(shown.command, folder, PYTHONPATH=str(bare))
        else:
            code, text = said(shown.command, folder)
        assert code == 0, text
        shown.assert_said(text)
        accuracies += re.findall(r"^accuracy +(\S+)", text, re.MULTILINE)
        if is_plain:
            assert difference_in(text) <= TOLERANCE
            # the control: the same predictions in another order are not those of the model
            path = folder / "predicted" / "predictions" / "output.npy"
            np.save(path, np.load(path)[::-1])
            code, text = said(shown.command, folder, PYTHONPATH=str(bare))
            assert difference_in(text) > 1e3 * TOLERANCE

    on_one, on_none = map(float, accuracies)
    assert on_one == pytest.approx(on_none, abs=1e-4)  # of four digits each
    rows = list(csv.DictReader((folder / "trace.csv").open()))
    assert [int(row["step"]) for row in rows] == [21, 42, 63, 84]  # 3 epochs on four ranks, one more on one
