"""Checkpoints for a loop that the user wrote: the same format, and the same freedom from the world."""

from pathlib import Path
from typing import Any

from torch import nn

from samestep.data.loader import Loader
from samestep.train.checkpoint import CheckpointFolder, load, resolve
from samestep.train.conditions import conditions_of, refuse_other_run
from samestep.train.model_state import load_model_state
from samestep.train.optimizer_state import load_optimizer_state, optimizer_state
from samestep.train.step import Stepper
from samestep.world import World


class Checkpoints:
    """Saves and restores what a hand-written loop consists of; all ranks call it.

    `others` are further things with `state_dict` and `load_state_dict`, by name: schedules, averaged models.
    """

    def __init__(
        self,
        folder: Path,
        world: World,
        model: nn.Module,
        stepper: Stepper,
        loader: Loader | None,
        others: dict[str, Any],
        keep_last: int,
    ) -> None:
        self._folder = CheckpointFolder(folder, keep_last)
        self._world = world
        self._model = model
        self._stepper = stepper
        self._loader = loader
        self._others = others

    def save(self, *, best: bool = False) -> None:
        """Copy the state and return; the first rank writes it in the background. Call it between steps."""
        states = self._stepper.optimizer_states()
        if not self._world.is_first:
            return
        training = {
            "stepper": self._stepper.state(),
            "loader": None if self._loader is None else self._loader.state(),
            "others": {name: thing.state_dict() for name, thing in self._others.items()},
        }
        sections = {
            "model": dict(self._model.state_dict()),
            "optimizer": optimizer_state(self._stepper.optimizer, self._model, states),
            "training": training,
        }
        about = {"world_size": self._world.size, "conditions": conditions_of(self._world)}
        self._folder.save(self._stepper.num_steps, sections, about, best=best)

    def restore(self) -> int:
        """Go on from the newest whole checkpoint, and tell its step; 0 where there is none yet."""
        newest = resolve(self._folder.folder) if self._world.is_first and self._folder.all() else ""
        path = self._world.broadcast_text(str(newest))
        if not path:
            return 0
        checkpoint = load(Path(path))
        refuse_other_run(self._world, checkpoint)
        training = checkpoint.sections["training"]
        load_model_state(self._model, checkpoint.sections["model"], checkpoint.path)
        load_optimizer_state(self._stepper.optimizer, self._model, checkpoint.sections["optimizer"])
        self._stepper.load_state(training["stepper"])
        if self._loader is not None and training["loader"] is not None:
            self._loader.load_state(training["loader"])
        for name, thing in self._others.items():
            if name in training["others"]:
                thing.load_state_dict(training["others"][name])
        return checkpoint.step

    def wait(self) -> None:
        """Return when the last save is on disk; raise its error if it failed."""
        self._folder.wait()
