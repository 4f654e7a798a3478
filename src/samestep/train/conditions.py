"""What the bits of a result depend on beside the task: device, libraries, threads and shards.

Bitwise mode promises the same bits under the same conditions. This module makes kernels deterministic, writes
the conditions down, and refuses what differs unless the user allows drift.
"""

import json
import os
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import torch

from samestep import __version__
from samestep.device import kind_of
from samestep.errors import CheckpointError, ConfigError
from samestep.train.checkpoint import Checkpoint
from samestep.world import World

Conditions = Mapping[str, Any]

_CALLED = {
    "shards": "--shards",
    "threads": "--threads",
}


def conditions_of(world: World) -> dict[str, Any]:
    """The conditions of this rank."""
    return {
        "shards": world.shards,
        "threads": torch.get_num_threads(),
        **kind_of(world.device),
        "torch": str(torch.__version__),
        "numpy": metadata.version("numpy"),
        "samestep": __version__,
    }


def differences(earlier: Conditions, now: Conditions) -> list[str]:
    """What is not as it was, one phrase for each condition."""
    return [
        f"{_CALLED.get(name, name)} was {earlier.get(name)!r} and is {now.get(name)!r}"
        for name in {**earlier, **now}
        if earlier.get(name) != now.get(name)
    ]


def refuse_other_ranks(world: World) -> None:
    """Raise a ConfigError if ranks work under different conditions, or find so where drift is allowed."""
    texts = world.gather_texts(json.dumps(conditions_of(world)))
    for rank, text in enumerate(texts):
        if text != texts[0]:
            phrases = differences(json.loads(texts[0]), json.loads(text))
            world.drift(f"From rank 0 to rank {rank}, {', '.join(phrases)}.", ConfigError)


def refuse_other_run(world: World, checkpoint: Checkpoint) -> None:
    """The same for a checkpoint that was saved under other conditions than today's; in bitwise mode only."""
    if world.shards is None:
        return
    if phrases := differences(checkpoint.meta.get("conditions", {}), conditions_of(world)):
        told = ", ".join(phrases)
        world.drift(f"Since the checkpoint {checkpoint.path.name} was saved, {told}.", CheckpointError)


def make_deterministic(*, strict: bool) -> None:
    """Have torch use deterministic kernels only; if not `strict`, warn of an operator that has none."""
    global _before
    _before = _before or _Flags()
    # cuBLAS reads it when it is first used
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=not strict)
    # filling memory that is about to be overwritten would only cost time
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False


class _Flags:
    """What the user had chosen before bitwise mode."""

    def __init__(self) -> None:
        self.is_deterministic = torch.are_deterministic_algorithms_enabled()
        self.warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
        self.fills_memory = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
        self.benchmarks = torch.backends.cudnn.benchmark

    def restore(self) -> None:
        torch.use_deterministic_algorithms(self.is_deterministic, warn_only=self.warns_only)
        torch.utils.deterministic.fill_uninitialized_memory = self.fills_memory  # type: ignore[attr-defined]
        torch.backends.cudnn.benchmark = self.benchmarks


_before: _Flags | None = None


def refuse_operator(message: str) -> None:
    """Raise a ConfigError if torch said that an operator has no deterministic kernel."""
    operator, is_about_it, _ = message.partition(" does not have a deterministic implementation")
    if is_about_it:
        raise ConfigError(
            f"The operator {operator} has no kernel that gives the same bits every time, which bitwise mode "
            "needs. Use another operator in its place, --mode fast, or --allow-drift."
        ) from None


def undo_deterministic() -> None:
    """Let torch choose its kernels as before."""
    global _before
    if _before is not None:
        _before.restore()
        _before = None
