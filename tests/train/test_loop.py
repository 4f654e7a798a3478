"""What people expect of a trainer, with the same meaning on N ranks as on one."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tasks
import worlds
from samestep import hooks
from samestep.errors import ConfigError
from samestep.record import RecordWriter
from samestep.train import stop
from samestep.train.loop import Loop
from samestep.train.training import Training


class Recording(hooks.Hook):
    """Remembers what it was told, and stops at a step if asked."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.told: list[str] = []
        self.rates: list[float] = []
        self.losses: list[float] = []
        self.stop_at = stop_at

    def before_training(self, training: Training) -> None:
        self.told.append("before")

    def after_step(self, training: Training) -> None:
        self.losses.append(training.loss)
        if training.step == self.stop_at:
            stop.request("the test asked for it")

    def after_epoch(self, training: Training, values: dict[str, float]) -> None:
        self.told.append(f"epoch {training.epoch}")
        self.rates.append(training.optimizer.param_groups[0]["lr"])

    def after_training(self, training: Training) -> None:
        self.told.append("after")


class WorseAndWorse(hooks.Hook):
    """Makes the monitored value rise, for what reacts to that."""

    def after_epoch(self, training: Training, values: dict[str, float]) -> None:
        values["valid/loss"] = 1.0 + training.epoch


class Exploding(tasks.Net):
    """The loss is infinite from the seventh step on."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = getattr(self, "calls", 0) + self.training
        return super().forward(x) * (float("inf") if self.training and self.calls >= 7 else 1.0)


class Unshaped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.LazyConv2d(4, 3)
        self.norm = nn.LazyBatchNorm2d()
        self.out = nn.LazyLinear(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.norm(self.conv(x))).flatten(1))


def settings_of(case: str) -> dict[str, Any]:
    """The changes to the image task that a case is about, and the hook that watches it."""
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    f32 = {"dtype": torch.float32}
    return {
        "plain": {"epochs": 2, "steps": None},
        "steps": {"steps": 7, "epochs": None},
        "epoch schedule": {
            "schedule": lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2], 0.5),
            "schedule_every": "epoch", "epochs": 3, "steps": None,
        },
        "plateau": {
            "schedule": lambda optimizer: plateau(optimizer, patience=0, factor=0.5),
            "hooks": [WorseAndWorse()], "epochs": 3, "steps": None,
        },
        "early stop": {"hooks": [WorseAndWorse(), hooks.EarlyStop(patience=2)], "epochs": 9, "steps": None},
        "nan": {"model": lambda: Exploding(), "hooks": [hooks.StopOnNaN()]},
        "stop": {"hooks": [Recording(stop_at=6)]},
        "train metrics": {"valid_data": None, "epochs": 1, "steps": None},
        "lazy": {"model": lambda: Unshaped().double(), "epochs": 1, "steps": None},
        "channels last": {"channels_last": True, "epochs": 1, "steps": None},
        "bf16": {"precision": "bf16", **f32, "epochs": 1, "steps": None},
        "fp16": {"precision": "fp16", **f32, "epochs": 1, "steps": None},
        "compile": {"compile": True, "model": lambda: tasks.Net(dropout=0.0), "steps": 6},
        "adam": {"optimizer": lambda p: torch.optim.AdamW(p, lr=1e-3), "clip_norm": None, "steps": 6},
    }[case]  # fmt: skip


def run(world, folder: str, case: str, resume: bool = False, **changes: Any) -> dict[str, Any]:
    stop.clear()
    task = tasks.image_task(**(settings_of(case) | changes))
    watcher = next((hook for hook in task.hooks if isinstance(hook, Recording)), Recording())
    task = dataclasses.replace(task, hooks=[*(h for h in task.hooks if h is not watcher), watcher])
    world.reset(task.seed)
    out = Path(folder) / (case + ("" if changes.get("shared") else str(world.size)))
    out.mkdir(exist_ok=True, parents=True)
    record = RecordWriter(out, world.rank)
    training = Training(task, world, out, record)
    training.resume(resume)
    result = Loop(training).run()
    record.close()
    stop.clear()
    best = training.checkpoints.best()
    return {
        **result,
        "told": watcher.told,
        "rates": watcher.rates,
        "losses": watcher.losses,
        "weights": torch.cat([p.detach().double().reshape(-1) for p in training.model.parameters()]),
        "best": None if best is None else best.name,
        "names": [type(module).__name__ for module in training.model.modules()],
        "kept": [path.name for path in training.checkpoints.all()],
    }


def on(sizes: tuple[int, ...], folder: Path, case: str, **changes: Any) -> list[dict[str, Any]]:
    return [worlds.run(size, run, folder=str(folder), case=case, **changes)[0] for size in sizes]


def same_weights(results: list[dict[str, Any]], tolerance: float = 1e-12) -> bool:
    reference = results[0]["weights"]
    return all(
        float((r["weights"] - reference).abs().max()) <= tolerance * float(reference.abs().max())
        for r in results
    )


def test_hooks_are_told_and_the_best_is_kept(tmp_path: Path) -> None:
    for result in on((1, 2), tmp_path, "plain"):
        assert result["told"] == ["before", "epoch 1", "epoch 2", "after"]
        assert result["status"] == "finished"
        assert result["steps"] == 10
        assert result["examples"] == 86
        assert result["best"] in result["kept"]
        assert set(result["values"]) == {"train/loss", "valid/loss", "valid/accuracy"}


def test_a_number_of_steps_ends_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    for result in on((1, 3), tmp_path, "steps"):
        assert (result["steps"], result["examples"]) == (7, 43 + 20)
        assert result["told"] == ["before", "epoch 1", "after"], "the second epoch did not end"
        assert set(result["values"]) == {"train/loss", "valid/loss", "valid/accuracy"}


@pytest.mark.parametrize(
    ("case", "rates"), [("epoch schedule", [0.1, 0.05, 0.025]), ("plateau", [0.1, 0.1, 0.05])]
)
def test_schedules_step_once_an_epoch(tmp_path: Path, case: str, rates: list[float]) -> None:
    results = on((1, 2), tmp_path, case)
    for result in results:
        assert result["rates"] == pytest.approx(rates)
    assert same_weights(results)


def test_early_stop(tmp_path: Path) -> None:
    for result in on((1, 3), tmp_path, "early stop"):
        assert result["told"] == ["before", "epoch 1", "epoch 2", "epoch 3", "after"]
        assert "has not got better" in result["stop_reason"]
        assert result["status"] == "finished"


def test_stop_on_nan_keeps_the_last_good_weights(tmp_path: Path) -> None:
    results = on((1, 2, 3), tmp_path, "nan")
    for result in results:
        assert result["status"] == "stopped"
        assert result["steps"] == 6
        assert torch.isfinite(result["weights"]).all()
        assert all(math.isfinite(loss) for loss in result["losses"])
    assert same_weights(results)


def test_a_wish_of_one_rank_stops_all_after_the_same_step(tmp_path: Path) -> None:
    result = worlds.run(3, run, folder=str(tmp_path), case="stop")
    assert {rank["steps"] for rank in result} == {8}, "asked in step 6, told in step 7, known after step 8"
    assert {rank["status"] for rank in result} == {"stopped"}


def test_without_validation_metrics_are_those_of_training(tmp_path: Path) -> None:
    results = on((1, 2, 4), tmp_path, "train metrics")
    for result in results:
        assert set(result["values"]) == {"train/loss", "train/accuracy"}
        for name, value in results[0]["values"].items():
            assert result["values"][name] == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("case", ["lazy", "channels last", "adam"])
def test_the_same_weights(tmp_path: Path, case: str) -> None:
    results = on((1, 2, 3), tmp_path, case)
    # Adam divides by the root of a second moment that may be near 0: allow for 1e3 times the rounding
    assert same_weights(results, 1e-9 if case == "adam" else 1e-12)
    if case == "lazy":
        assert not any("Lazy" in name for name in results[1]["names"])
        assert any("Synchronised" in name for name in results[1]["names"])


@pytest.mark.parametrize("case", ["bf16", "fp16"])
def test_half_precision(tmp_path: Path, case: str) -> None:
    results = on((1, 2), tmp_path, case)
    # every layer rounds to half precision, forward and backward: 8 roundings a step, 5 steps
    dtype = torch.bfloat16 if case == "bf16" else torch.float16
    assert same_weights(results, 5 * 8 * torch.finfo(dtype).eps)
    assert not same_weights(results, 1e-12), "the half precision was not used"


def test_compiled(tmp_path: Path) -> None:
    results = on((2,), tmp_path, "compile")
    uncompiled = on((1,), tmp_path, "compile", compile=False)
    assert same_weights([*uncompiled, *results])


RESUMED = {"checkpoint_every": 3, "steps": 20}


def interrupted_then_resumed(world, folder: str, part: str, **changes: Any) -> dict[str, Any]:
    """The first 8 steps, leaving a checkpoint in the middle of the second epoch; then the rest of 20."""
    case = settings_of("plain") | RESUMED | changes
    if part == "first":
        case["steps"] = 8
    task = tasks.image_task(**case)
    world.reset(task.seed)
    out = Path(folder)
    record = RecordWriter(out, world.rank)
    training = Training(task, world, out, record)
    training.resume(part == "rest")
    begun_at = training.step
    result = Loop(training).run()
    record.close()
    weights = torch.cat([p.detach().double().reshape(-1) for p in training.model.parameters()])
    return {**result, "begun_at": begun_at, "weights": weights}


@pytest.mark.parametrize(
    "changes", [{}, {"accumulate": 2, "ema_decay": 0.9, "valid_data": None}], ids=["plain", "more"]
)
def test_resumed_in_the_middle_of_an_epoch_on_another_world(tmp_path: Path, changes: dict[str, Any]) -> None:
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    arguments = {"epochs": 4, **changes}
    reference = worlds.run(1, interrupted_then_resumed, folder=str(undisturbed), part="whole", **arguments)[0]
    for first, rest in ((3, 1), (1, 2), (2, 4)):
        folder = tmp_path / f"{first}-{rest}"
        folder.mkdir()
        worlds.run(first, interrupted_then_resumed, folder=str(folder), part="first", **arguments)
        result = worlds.run(rest, interrupted_then_resumed, folder=str(folder), part="rest", **arguments)[0]
        assert result["begun_at"] == 8
        assert (result["steps"], result["examples"]) == (reference["steps"], reference["examples"])
        assert same_weights([reference, result])
        for name, value in reference["values"].items():
            assert result["values"][name] == pytest.approx(value, rel=1e-12), name


def test_resumed_on_the_same_world_has_the_same_bits(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    reference = worlds.run(
        2, interrupted_then_resumed, folder=str(tmp_path / "whole"), part="whole", epochs=4
    )[0]
    worlds.run(2, interrupted_then_resumed, folder=str(tmp_path / "parts"), part="first", epochs=4)
    result = worlds.run(2, interrupted_then_resumed, folder=str(tmp_path / "parts"), part="rest", epochs=4)[0]
    assert result["digest"] == reference["digest"]


def stretched(world, folder: str, steps: list[int], **changes: Any) -> dict[str, Any]:
    """Train to each number of steps in turn, resuming in between."""
    for number, count in enumerate(steps):
        task = tasks.image_task(**({"steps": count, "train_data": lambda: tasks.Images(20)} | changes))
        world.reset(task.seed)
        record = RecordWriter(Path(folder), world.rank)
        training = Training(task, world, Path(folder), record)
        training.resume(number > 0)
        result = Loop(training).run()
        record.close()
    return result


@pytest.mark.parametrize("steps", [[3, 7], [4, 8], [2, 4, 7]])
def test_more_steps_later_are_the_same_as_more_steps_at_once(tmp_path: Path, steps: list[int]) -> None:
    changes = {
        "schedule": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
        "schedule_every": "epoch",
        "checkpoint_every": 2,
    }
    digests = []
    for name, parts in (("once", steps[-1:]), ("parts", steps)):
        (tmp_path / name).mkdir()
        digests.append(stretched_here(tmp_path / name, parts, changes)["digest"])
    assert digests[0] == digests[1]


def stretched_here(folder: Path, steps: list[int], changes: dict[str, Any]) -> dict[str, Any]:
    # in this process, alone: functions cannot be sent to a rank
    import samestep

    world = samestep.init()
    world.on_finding = lambda finding: None
    return stretched(world, str(folder), steps, **changes)


class Restless(tasks.Images):
    """A validation set that draws."""

    def __init__(self) -> None:
        super().__init__(23, augment=True)


def test_validation_draws_the_same_each_time(tmp_path: Path) -> None:
    constant = {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.0), "schedule": None}
    changes = {**constant, "valid_data": Restless, "epochs": 2, "model": lambda: tasks.Net(dropout=0.0)}
    stretched_here(tmp_path, [8], changes)
    rows = [json.loads(line)["values"]["valid/loss"] for line in (tmp_path / "epochs.jsonl").open()]
    assert len(rows) == 2
    # the running statistics move on, so that the losses differ a little; other draws would differ by far more
    assert rows[0] == pytest.approx(rows[1], rel=0.2)


def test_metrics_of_training_need_outputs(tmp_path: Path) -> None:
    def bare_loss(model: nn.Module, batch: Any) -> tuple[torch.Tensor, int]:
        return tuple(tasks.image_loss(model, batch)[:2])

    with pytest.raises(ConfigError, match="returns no outputs"):
        stretched_here(
            tmp_path, [2], {"valid_data": None, "loss": bare_loss, "predict": lambda m, b: m(b[0])}
        )


def test_what_is_not_a_number_is_never_the_best() -> None:
    nan = math.nan
    assert [hooks.is_better(v, b, "min") for v, b in ((nan, None), (1.0, None), (nan, 1.0), (0.5, 1.0))] == [
        False, True, False, True,
    ]  # fmt: skip
    assert hooks.is_better(2.0, 1.0, "max")
    assert not hooks.is_better(1.05, 1.0, "max", 0.1)


def test_a_loss_that_is_not_finite_saves_nothing(tmp_path: Path) -> None:
    changes = {
        "model": Exploding,
        "hooks": [hooks.StopOnNaN()],
        "checkpoint_every": 4,
        "train_data": tasks.Images,
    }
    result = stretched_here(tmp_path, [20], changes)
    assert result["status"] == "stopped"
    kept = sorted(path.name for path in (tmp_path / "checkpoints").glob("step-*"))
    assert kept[-1] != "step-000000006"
