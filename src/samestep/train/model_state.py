"""Putting weights and buffers from a checkpoint into a model, by name."""

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from samestep.errors import CheckpointError, listed


def load_model_state(model: nn.Module, state: dict[str, Any], path: Path) -> None:
    """Load the state; refuse, with names and shapes, one that is of another model."""
    own = model.state_dict()
    missing = [name for name in own if name not in state]
    extra = [name for name in state if name not in own]
    shapes = [
        f"{name} is {tuple(state[name].shape)} there and {tuple(value.shape)} here"
        for name, value in own.items()
        if name in state and isinstance(value, Tensor) and state[name].shape != value.shape
    ]
    if missing or extra or shapes:
        parts = [
            f"it lacks {listed(missing)}" if missing else "",
            f"it has {listed(extra)} besides" if extra else "",
            listed(shapes),
        ]
        raise CheckpointError(
            f"The checkpoint {path} is of another model: {'; '.join(part for part in parts if part)}."
        )
    model.load_state_dict(state)
