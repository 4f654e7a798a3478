"""The example of the equivariant network: each fault of the story is named, and the cures are silent."""

import re

import pytest
from readme_commands import EXAMPLES, copied, shown_in, verified

from samestep.launch.warm import Warm

NAME = "equivariant_frechet"
WRONG = "samestep verify --gpus 1,2 -- python train.py --fault"
VERIFIED = {shown.command: shown for shown in shown_in(NAME, "samestep verify")}
CAUSES = {
    f"{WRONG} set-order": {"parameter-order-differs"},
    f"{WRONG} early-sampler": {"sampler-knows-no-world"},
    f"{WRONG} local-norms": {"norm-not-synchronised"},
    f"{WRONG} summed-statistics": {"metric-merged-wrongly"},
    f"{WRONG} same-seed": {"same-randomness-on-every-rank"},
    "samestep verify --gpus 1,2 -- python train.py": set(),
    "samestep verify --gpus 1,2 -- python same_step.py": set(),
}
"""What is found, by command."""
LIBRARIES = ("torchmetrics", "joblib", "scipy.ndimage", "scipy.stats")
"""What the example is going to import; not escnn, which wants `network.py` before it."""


@pytest.fixture(scope="module")
def warm():
    """Ranks are forked of several processes: sets are in another order in each."""
    with Warm(threads=1, num=2, modules=LIBRARIES) as warm:
        yield warm


def test_the_page_shows_every_fault_and_the_cures():
    assert set(VERIFIED) == set(CAUSES)
    text = (EXAMPLES / NAME / "train.py").read_text()
    faults = re.search(r"^FAULTS = \((.*)\)$", text, re.MULTILINE)[1]
    assert {f"{WRONG} {fault}" for fault in re.findall(r'"([\w-]+)"', faults)} < set(CAUSES)


@pytest.mark.parametrize("command", CAUSES)
def test_faults_are_named_and_cures_are_silent(command, warm, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("readme_commands.forked", warm)
    code, text = verified(command, copied(NAME, tmp_path), capsys)
    found = re.findall(r"^\d+\. ([\w-]+)$", text, re.MULTILINE)
    assert set(found) == CAUSES[command], text
    assert code == bool(CAUSES[command]), text
    VERIFIED[command].assert_said(text)
