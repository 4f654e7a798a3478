"""The doctor's training: silent where ranks train alike, and a finding where they change the training."""

from samestep.cli import equivalence

TASK = """
import os

import torch
from samestep import Task, supervised
from torch.utils.data import TensorDataset

points = torch.arange(256.0).reshape(64, 4) / 256
task = Task(
    model=lambda: torch.nn.Linear(4, 1),
    train_data=lambda: TensorDataset(points, points.sum(1, keepdim=True)),
    loss=supervised(torch.nn.MSELoss()),
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1 RATE),
    batch_size=16,
    epochs=1,
)
"""


def found(folder, monkeypatch, rate):
    (folder / "task.py").write_text(TASK.replace("RATE", rate))
    monkeypatch.setattr(equivalence, "_TARGET", str(folder / "task.py"))
    return list(equivalence.differences(2, folder / "runs"))


def test_a_training_that_the_ranks_do_not_change(tmp_path, monkeypatch):
    assert found(tmp_path, monkeypatch, "") == []


def test_a_rate_that_the_ranks_change(tmp_path, monkeypatch):
    findings = found(tmp_path, monkeypatch, '* int(os.environ["WORLD_SIZE"])')
    assert {finding.cause for finding in findings} == {"trains-differently"}
    assert {finding.evidence["mode"] for finding in findings} == {"fast", "bitwise"}
