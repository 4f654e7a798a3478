"""The example of the language model: means of means are named, and sums over all bytes are silent."""

import re

import pytest
from readme_commands import copied, said, shown_in, verified

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
