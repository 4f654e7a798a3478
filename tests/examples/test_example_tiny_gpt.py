"""The example of the language model: means of means are named, and sums over all bytes are silent."""

import re

import pytest
from readme_commands import EXAMPLES, blocks_in, copied, said, shown_in, verified

NAME = "tiny_gpt"
VERIFIED = {shown.command: shown for shown in shown_in(NAME, "samestep verify")}
CAUSES = {
    "samestep verify --gpus 1,2 -- python ddp.py --precision fp32 --fault": {"tokens-averaged-per-rank"},
    "samestep verify --gpus 1,2 -- python ddp.py --precision fp32": set(),
    "samestep verify task.py --gpus 1,2 --set precision=fp32 --set steps=6": set(),
}
"""What is found, by command."""


def test_the_page_shows_the_fault_and_both_cures():
    assert set(VERIFIED) == set(CAUSES)


@pytest.mark.parametrize("command", CAUSES)
def test_means_of_means_are_named_and_sums_are_silent(command, tmp_path, capsys):
    code, text = verified(command, copied(NAME, tmp_path), capsys)
    assert set(re.findall(r"^\d+\. ([\w-]+)$", text, re.MULTILINE)) == CAUSES[command], text
    assert code == bool(CAUSES[command]), text
    VERIFIED[command].assert_said(text)


@pytest.mark.parametrize("shown", shown_in(NAME, "samestep train"), ids=lambda shown: shown.command)
def test_it_trains_as_the_page_says(shown, tmp_path):
    code, text = said(shown.command, copied(NAME, tmp_path))
    assert code == 0, text
    shown.assert_said(text)


CUTS = """
from torch.utils.data import DataLoader

torch.manual_seed(0)
model = GPT().double()
for size in (16, 4, 1):
    losses = [loss_of_bytes(model, batch) for batch in DataLoader(Paragraphs(0, 16), size)]
    sums, weights = zip(*((loss.sum.item(), loss.weight.item()) for loss in losses))
    means = [total / weight for total, weight in zip(sums, weights)]
    print(sum(sums) / sum(weights), sum(means) / len(means))
"""


def test_the_loss_that_the_page_shows_does_not_depend_on_the_cut(tmp_path):
    (shown,) = blocks_in(NAME, "python")
    assert shown in (EXAMPLES / NAME / "task.py").read_text()
    folder = copied(NAME, tmp_path)
    (folder / "cuts.py").write_text(f"from task import *\n\n\n{shown}{CUTS}")
    code, text = said("python cuts.py", folder)
    assert code == 0, text
    whole, _, in_four, means_of_four, one_by_one, means_of_one = map(float, text.split())
    # n numbers that are added in another order err by at most n · 2⁻⁵³ of the sum of their sizes: at most
    # 16 · 96 bytes, and behind each of them some 20 sums of the forward pass, of no more than 4 · 32 products
    limit = (16 * 96 + 20 * 4 * 32) * 2.0**-53 * whole
    assert abs(in_four - whole) <= limit
    assert abs(one_by_one - whole) <= limit
    # the control: means of means
    assert abs(means_of_four - whole) > 1e6 * limit
    assert abs(means_of_one - whole) > 1e6 * limit
