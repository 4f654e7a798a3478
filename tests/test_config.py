"""A task in YAML: the same as one in Python, and a clear word for each way to get it wrong."""

import dataclasses
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from samestep.config import PLAIN_SETTINGS, read_config
from samestep.errors import ConfigError
from samestep.task import Loss, Task
from samestep.yamlfile import Loader

CODE = """
import torch
from torch import nn
from samestep import Loss

class Net(nn.Module):
    def __init__(self, width, act=None, name="net"):
        super().__init__()
        self.layer, self.act, self.name = nn.Linear(2, width), act, name
    def forward(self, x):
        return self.layer(x)

class Data(torch.utils.data.Dataset):
    def __init__(self, split, size=8):
        if size < 0:
            raise LookupError("no such size")
        self.split, self.size = split, size
    def __len__(self):
        return self.size
    def __getitem__(self, index):
        return {"x": torch.full((2,), float(index)), "y": index % 3}

class Hook:
    def __init__(self, patience):
        self.patience = patience

def loss(model, batch):
    return Loss(model(batch["x"]).sum(), len(batch["x"]))

def smooth(rate):
    def loss(model, batch):
        return Loss(model(batch["x"]).sum() * rate, 1)
    return loss

def collate(items):
    return torch.utils.data.default_collate(items)

def score(outputs, batch):
    return outputs.argmax(1), batch["y"]

def predict(model, batch):
    return model(batch["x"])

NUMBER = 3
"""

BASE = """
model: {class: config_nets.Net, width: 3}
data:
  train: {class: config_nets.Data, split: train}
  batch_size: 4
loss: {class: torch.nn.CrossEntropyLoss}
inputs: x
target: y
optimizer:
  class: torch.optim.AdamW
  lr: 1e-3
epochs: 2
"""

EVERYTHING = """
n_gpus: 4
seed: 7
model: {class: config_nets.Net, width: 3, act: {class: torch.nn.ELU, alpha: 5e-1}, name: torch.nn.ELU}
data:
  train: {class: config_nets.Data, split: train}
  valid: {class: config_nets.Data, split: valid}
  test: {class: config_nets.Data, split: test}
  batch_size: 4
  eval_batch_size: 5
  workers: 1
  shuffle: false
  sampler: {class: torch.utils.data.RandomSampler, replacement: true, num_samples: 6}
  collate: config_nets.collate
loss: config_nets.loss
optimizer: {class: torch.optim.AdamW, lr: 1e-3, betas: [0.8, 0.9]}
schedule: {class: torch.optim.lr_scheduler.CosineAnnealingLR, T_max: 100, every: epoch}
metrics: {accuracy: {class: torchmetrics.classification.MulticlassAccuracy, num_classes: 3}}
score: config_nets.score
predict: config_nets.predict
hooks: [{class: config_nets.Hook, patience: 3}]
epochs: 2
steps: 9
steps_per_epoch: 3
clip_norm: 1
precision: bf16
accumulate: 2
update: sharded
ema_decay: 0.9
compile: true
channels_last: true
monitor: valid/accuracy
monitor_mode: max
checkpoint_every: 5
keep_last: 3
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with the user's module, which is not the working directory."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "config_nets.py").write_text(CODE)
    yield
    sys.modules.pop("config_nets", None)


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def read(text: str, *overrides: str) -> Task:
        (tmp_path / "run.yaml").write_text(textwrap.dedent(text).removeprefix("\n"))
        return read_config(tmp_path / "run.yaml", overrides)

    return read


def plain(text: str) -> Any:
    return yaml.load(text, Loader)  # noqa: S506  Loader is a SafeLoader


def test_every_setting_of_a_task_can_be_written_in_yaml(read: Any) -> None:
    tasks = [read(EVERYTHING), read(EVERYTHING.replace("  sampler:", "  batch_sampler:"))]
    for field in dataclasses.fields(Task):
        default = {} if field.default is dataclasses.MISSING else field.default
        values = [getattr(task, field.name) for task in tasks]
        assert any(value != default for value in values), f"{field.name} cannot be set in YAML"


def test_plain_settings_keep_their_values(read: Any) -> None:
    task = read(EVERYTHING)
    written = plain(EVERYTHING)
    written |= written["data"] | {"schedule_every": written["schedule"]["every"]}
    assert {name: getattr(task, name) for name in PLAIN_SETTINGS} == {
        name: written[name] for name in PLAIN_SETTINGS
    }


def test_code_is_made_when_asked_for(read: Any) -> None:
    task = read(EVERYTHING)
    nets = sys.modules["config_nets"]
    model = task.model()
    assert isinstance(model, nets.Net) and model is not task.model()
    assert model.act.alpha == 0.5 and model.name == "torch.nn.ELU", "a plain dotted name stays a word"
    assert (task.train_data().split, task.valid_data().split, task.test_data().split) == (
        "train",
        "valid",
        "test",
    )
    optimizer = task.optimizer(model.parameters())
    assert type(optimizer) is torch.optim.AdamW
    assert (optimizer.defaults["lr"], *optimizer.defaults["betas"]) == (0.001, 0.8, 0.9)
    schedule = task.schedule(optimizer)
    assert schedule.optimizer is optimizer and schedule.T_max == 100
    assert len(list(task.sampler(task.train_data()))) == 6
    assert task.metrics["accuracy"]().num_classes == 3
    assert (task.collate, task.loss, task.score) == (nets.collate, nets.loss, nets.score)
    assert [hook.patience for hook in task.hooks] == [3]


def test_nested_samplers_and_schedules_get_the_data_set_and_the_optimizer(read: Any) -> None:
    task = read(
        BASE
        + """
schedule:
  class: torch.optim.lr_scheduler.SequentialLR
  milestones: [2]
  schedulers:
    - {class: torch.optim.lr_scheduler.ConstantLR}
    - {class: torch.optim.lr_scheduler.ExponentialLR, gamma: 0.9}
""",
        "data.batch_sampler={class: torch.utils.data.BatchSampler, batch_size: 3, drop_last: false, "
        "sampler: {class: torch.utils.data.SequentialSampler}}",
    )
    assert list(task.batch_sampler(task.train_data())) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    optimizer = task.optimizer(task.model().parameters())
    assert task.schedule(optimizer)._schedulers[1].optimizer is optimizer


def test_criteria_become_losses_and_targets_reach_metrics(read: Any) -> None:
    task = read(BASE, "loss.weight={class: torch.tensor, data: [1.0, 2.0, 3.0]}")
    model, data = task.model(), task.train_data()
    batch = torch.utils.data.default_collate([data[i] for i in range(4)])
    found: Loss = task.loss(model, batch)
    weight = torch.tensor([1.0, 2.0, 3.0])
    expected = nn.CrossEntropyLoss(weight=weight)(model(batch["x"]), batch["y"])
    torch.testing.assert_close(found.sum / found.weight, expected, check_dtype=False)
    assert task.score(found.outputs, batch)[1] is batch["y"]

    made = read(BASE.replace("inputs: x\n", ""), "loss={class: config_nets.smooth, rate: 2.0}")
    assert made.loss(model, batch).weight == 1


def test_overrides_reach_everything(read: Any) -> None:
    task = read(EVERYTHING, "optimizer.lr=0.5", "batch_size=6", "schedule_every=step", "hooks.0.patience=8")
    assert task.optimizer(task.model().parameters()).defaults["lr"] == 0.5
    assert (task.batch_size, task.schedule_every, task.hooks[0].patience) == (6, "step", 8)
    assert read(BASE, "data.valid={class: config_nets.Data, split: v}").valid_data().split == "v"
    shared = BASE.replace("train: {", "train: &d {").replace("  batch_size", "  valid: *d\n  batch_size")
    apart = read(shared, "data.valid.split=other")
    assert (apart.train_data().split, apart.valid_data().split) == ("train", "other")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "optimizer:",
            "optimiser:",
            r"run.yaml:8: unknown key `optimiser` at the top level; did you mean `optimizer`\?",
        ),
        (
            "  batch_size: 4",
            "  batchsize: 4",
            r"run.yaml:4: unknown key `batchsize` in `data`; did you mean `batch_size`",
        ),
        (
            "epochs: 2",
            "batch_size: 4",
            r"run.yaml:11: unknown key `batch_size`.*it stands at `data.batch_size`",
        ),
        ("epochs: 2", "zzz: 4", r"unknown key `zzz` at the top level. The keys are n_gpus, "),
        ("epochs: 2", "", "neither `epochs` nor `steps`"),
        ("epochs: 2", "epochs: two", "run.yaml:11: `epochs` is 'two'; it should be a valid integer"),
        ("epochs: 2", "epochs: true", "run.yaml:11: `epochs` is True; it should be a valid integer"),
        ("epochs: 2", "epochs: 0", "run.yaml: epochs is 0; it must be a whole number"),
        ("epochs: 2", "epochs: 2\nprecision: fp8", "run.yaml:12: `precision` is 'fp8'; it should be 'fp32'"),
        ("epochs: 2", "epochs: 2\nn_gpus: 0", "run.yaml:12: `n_gpus` is 0; it should be greater"),
        ("epochs: 2", "epochs: 2\nepochs: 3", "run.yaml:12: .*the key `epochs` is there twice"),
        ("epochs: 2", "epochs: [2", "run.yaml:.* this YAML cannot be read"),
        (
            "epochs: 2",
            "x: !!python/object/apply:os.system ['true']",
            "run.yaml:11: .*could not determine a constructor",
        ),
        (
            "epochs: 2",
            "epochs: 2\nhooks: [EarlyStop]",
            "run.yaml:12: `hooks.0` is 'EarlyStop'; it must be {class",
        ),
        (
            "epochs: 2",
            "epochs: 2\nmetrics: {a: {num: 3}}",
            "run.yaml:12: `metrics.a` is {'num': 3}; it must be",
        ),
        (
            "epochs: 2",
            "epochs: 2\nscore: config_nets.NUMBER",
            "`config_nets.NUMBER` is 3; it must be a class",
        ),
        ("target: y", "target: 1.5", "run.yaml:7: `target` is 1.5; it must be a position or a key"),
        ("  train: {", "  valid: {", "run.yaml:2: the key `train` is missing in `data`"),
        (
            "model: {class",
            "model: {klass",
            "run.yaml:1: `model` is .*; it must be {class: package.module.Name",
        ),
        ("{class: config_nets.Net, width: 3}", "{class: 3}", "run.yaml:1: `model`: `class` is 3; it must be"),
        ("width: 3", "width: 3, on: 4", "its key True must be a word"),
        ("config_nets.Net", "config_nets.Nett", r"run.yaml:1: `model`: .*no `Nett`; did you mean `Net`"),
        ("config_nets.Net", "config_net.Net", "there is no module `config_net`"),
        ("config_nets.Net", "Net", "`Net` is not of the form `package.module.Name`"),
        (
            "torch.optim.AdamW",
            "torch.optm.AdamW",
            r"run.yaml:8: .*`torch` has no `optm`; did you mean `optim`",
        ),
        (
            "width: 3",
            "widht: 3",
            r"config_nets.Net has no argument `widht`; did you mean `width`\? It takes width, act",
        ),
        (", width: 3", "", "run.yaml:1: `model`: config_nets.Net needs width, which is not given"),
        (
            "width: 3",
            "width: 3,\n  act: {class: torch.nn.EL}",
            "run.yaml:2: `model.act`: .*no `EL`; did you mean `ELU`",
        ),
        ("lr: 1e-3", "rate: 1e-3", "run.yaml:10: `optimizer.rate`: torch.optim.AdamW has no argument `rate`"),
        (
            "{class: torch.nn.CrossEntropyLoss}",
            "torch.nn.MSELoss",
            r"is a class; write {class: torch.nn.MSELoss}",
        ),
        (
            "{class: torch.nn.CrossEntropyLoss}",
            "config_nets.loss",
            "run.yaml:6: `inputs` is given, but `loss` is",
        ),
        ("EntropyLoss", "EntropyLoss, reduction: sum", "run.yaml:5: `loss`: CrossEntropyLoss has reduction"),
    ],
)
def test_configs_that_are_refused(read: Any, old: str, new: str, message: str) -> None:
    read(BASE)
    assert BASE.count(old) == 1
    with pytest.raises(ConfigError, match=message):
        read(BASE.replace(old, new))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.rate=1", "--set optimizer.rate=1: .*no argument `rate`"),
        ("epochs=two", "--set epochs=two: `epochs` is 'two'"),
        ("epoch=2", "--set epoch=2: unknown key `epoch` at the top level; did you mean `epochs`"),
        ("epochs.x=2", "`epochs` is 2 in .*run.yaml, which has no `x` to set"),
        ("data.batch_size", "not of the form key=value"),
    ],
)
def test_overrides_that_are_refused(read: Any, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(BASE, override)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "run.yaml holds None"),
        ("- 1", r"holds \[1\]"),
        ("a: &a [*a]", "holds itself"),
        ("\0", "cannot be read"),
    ],
)
def test_files_that_hold_no_keys_are_refused(read: Any, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(text)


def test_files_that_cannot_be_opened_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent.yaml cannot be read"):
        read_config(tmp_path / "absent.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"model: \xe9")
    with pytest.raises(ConfigError, match=r"latin.yaml cannot be read"):
        read_config(tmp_path / "latin.yaml")


def test_exceptions_of_the_users_code_pass_with_their_place(read: Any, tmp_path: Path) -> None:
    task = read(BASE, "data.train.size=-1")
    with pytest.raises(LookupError, match="no such size") as caught:
        task.train_data()
    assert "while making config_nets.Data (" in caught.value.__notes__[0]
    (tmp_path / "config_broken.py").write_text("\nimport absent_one\n")
    with pytest.raises(ConfigError, match=r"config_broken.py:2: ModuleNotFoundError") as failed:
        read(BASE.replace("config_nets.Net", "config_broken.Net"))
    assert isinstance(failed.value.__cause__, ModuleNotFoundError)


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["{!r}", "{:e}", "{:.3E}", "{:g}"]))
def test_numbers_are_numbers_however_they_are_written(value: float, form: str) -> None:
    text = form.format(value)
    assert plain(f"lr: {text}")["lr"] == float(text)


def test_plain_yaml_takes_such_numbers_for_words() -> None:
    assert yaml.safe_load("1e-3") == "1e-3"
    assert plain("[1e-3, 1e3, .5e1, 2.E-2]") == [0.001, 1000.0, 5.0, 0.02]
    assert plain("[e3, 1e, v1e3, 1e3x, '1e3']") == ["e3", "1e", "v1e3", "1e3x", "1e3"]
