"""Experiment: what is changed in a run on purpose, to find out by what two runs differ.

Knows what can be changed and how that is written to a file. The probe makes the changes; why an experiment is
made is not known here.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samestep.errors import RecordError

Batches = Mapping[str, tuple[tuple[int, ...], ...]]
"""The batches of passes over loaders, by `pass_key`; each batch is the indices of its examples."""


def share_of(batch_size: int, rank: int, world_size: int) -> int:
    """The examples of a global batch that a rank has; those of all ranks add up to it."""
    return batch_size * (rank + 1) // world_size - batch_size * rank // world_size


def pass_key(loader: int, number: int, rank: int | None = None) -> str:
    """How a pass over a loader is named, on all ranks or on one; counted as in `Batch` rows."""
    return f"{loader}/{number}" + ("" if rank is None else f"@{rank}")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Changes to a run; without any, a program runs as it is.

    `seed`: the generators of Python, numpy and torch are seeded by `seed` + rank before the first line runs.
    `is_dropout_off`: dropout passes everything on, in modules, functions and attention.
    `are_norms_frozen`: layers that keep statistics use and leave those that they have.
    `are_examples_seeded`: the generators are seeded by an example's index while it is fetched.
    `batches`: a pass that is named hands out these batches instead of its sampler's, and ends after them.
    `lengths`: a loader made at the line (`Loader.where`) says that it has this many batches.
    `is_exchange_off`: nothing is exchanged between ranks in training steps; each goes on with what it has.
    `is_data_cached`: a loader hands out its first few batches again and again, as many as it would have.
    `are_norms_local`: layers that take statistics over all ranks take them over their own rank's batch.
    `batch_size`: global; the batches of each rank have its share of so many examples.
    `loaders`: lines (`Loader.where`) of the loaders that `is_data_cached` and `batch_size` are meant for; all
    if none is named.
    """

    seed: int | None = None
    is_dropout_off: bool = False
    are_norms_frozen: bool = False
    are_examples_seeded: bool = False
    batches: Batches = field(default_factory=dict)
    lengths: Mapping[str, int] = field(default_factory=dict)
    is_exchange_off: bool = False
    is_data_cached: bool = False
    are_norms_local: bool = False
    batch_size: int | None = None
    loaders: tuple[str, ...] = ()

    @property
    def is_any(self) -> bool:
        """Whether anything is changed at all."""
        return self != Experiment()

    def is_meant(self, loader: str) -> bool:
        """Whether what is changed in loaders is meant for the one made at the line."""
        return not self.loaders or loader in self.loaders

    def on_rank(self, rank: int, world_size: int = 1) -> "Experiment":
        """The same, with batches that are meant for one rank as if for all, and without those for others.

        `batch_size` is then the rank's share.
        """
        own = {key.partition("@")[0]: many for key, many in self.batches.items() if key.endswith(f"@{rank}")}
        shared = {key: many for key, many in self.batches.items() if "@" not in key}
        share = None if self.batch_size is None else share_of(self.batch_size, rank, world_size)
        return dataclasses.replace(self, batches=shared | own, batch_size=share)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self)) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Experiment":
        try:
            values: dict[str, Any] = json.loads(path.read_bytes())
            batches = {key: tuple(tuple(b) for b in many) for key, many in values.pop("batches").items()}
            loaders = tuple(values.pop("loaders", ()))
            return cls(**values, batches=batches, loaders=loaders)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise RecordError(
                f"{path} was to be read as an experiment, and is none ({error}); "
                "name a file that `Experiment.write` made."
            ) from error
