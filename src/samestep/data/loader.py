"""Loader: the examples of each step, exactly once over all ranks, on torch's DataLoader.

Knows who gets which example and in which order; knows nothing of models or gradients.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from samestep import phase
from samestep.data.draw import Computed, Draw, Drawn
from samestep.data.examples import Batch, Collate, MapExamples, Request, StepInput, StreamExamples, pass_on
from samestep.data.order import Sequential, Shuffled
from samestep.data.shard import Cut
from samestep.data.transfer import to_device
from samestep.device import is_host, wants_pinned_memory
from samestep.errors import DataError
from samestep.findings import Finding
from samestep.world import World

_COLLATE_DRAWS = Finding(
    cause="collate-depends-on-rank",
    message=(
        "The collate function draws random numbers: every rank draws others, but which example gets which "
        "depends on the number of ranks."
    ),
    evidence={},
    fix="Draw them in the data set's __getitem__, where they belong to the example.",
)


class Loader:
    """The batches of one rank, turn by turn; every iteration over it is the next epoch.

    `world.share` says which part of the global batch the yielded one is. All ranks iterate over a
    training loader at the same pace: a rank without an example in a turn gets the batch that it had
    before, whose loss and statistics will not count (on its very first turn, a borrowed example).

    With `train=False`, for evaluation, the order is that of the data set, and a rank without an example in
    a turn gets nothing.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        world: World,
        batch_size: int | None,
        seed: int = 0,
        train: bool = True,
        shuffle: bool = True,
        sampler: Any = None,
        batch_sampler: Any = None,
        collate: Collate | None = None,
        workers: int = 0,
        accumulate: int = 1,
        steps_per_epoch: int | None = None,
        channels_last: bool = False,
    ) -> None:
        if batch_size is None and batch_sampler is None:
            raise DataError(
                "Neither batch_size nor batch_sampler was given: say batch_size, the examples of a step over "
                "all ranks."
            )
        batch_size = 1 if batch_size is None else batch_size  # a batch sampler makes its own
        if train and batch_sampler is None:
            _refuse_small_batch(batch_size, accumulate, world)
        cut = Cut(
            rank=world.rank, world_size=world.size, turns=accumulate, shards=world.shards, train=train,
            batch_size=None if batch_sampler is not None else batch_size,
        )  # fmt: skip
        self._world = world
        self._train = train
        self._steps_per_epoch = steps_per_epoch
        self._channels_last = channels_last
        self._is_moved = channels_last or not is_host(world.device)
        self._epoch = 0
        self._step = 0
        self._draw_state: dict[str, Any] = {}
        self._begun = False
        self._is_resumed = False
        self._place = _Place()
        self._last: Batch = None
        options: dict[str, Any] = {
            "num_workers": workers,
            "collate_fn": pass_on,
            "pin_memory": wants_pinned_memory(world.device),
            # of its own: torch would otherwise take the seeds of workers from the model's random stream
            "generator": torch.Generator(),
        }
        if isinstance(dataset, IterableDataset):
            if sampler is not None or batch_sampler is not None:
                raise DataError(
                    f"{type(dataset).__name__} is an iterable data set and cannot be asked for an index; "
                    "leave out the sampler, or give the data set __getitem__ and __len__."
                )
            known = _stream_steps(dataset, batch_size, steps_per_epoch, train)
            self._draw: Draw | None = None
            self._stream = StreamExamples(dataset, collate=collate, seed=seed, batch_size=batch_size, cut=cut)
            self._batches: DataLoader[StepInput] = DataLoader(self._stream, batch_size=None, **options)
        else:
            self._draw = _draw_of(dataset, batch_size, sampler, batch_sampler, shuffle and train, world, seed)
            known = self._draw.num_steps()
            requests = _Requests(place=self._place, draw=self._draw, cut=cut, limit=steps_per_epoch)
            is_strict = train and world.shards is not None
            examples = MapExamples(dataset, collate=collate, seed=seed, twice=is_strict)
            self._direct = _Direct(examples, requests)
            if is_strict and isinstance(self._draw, Drawn) and (reason := self._draw.unsteady()):
                self._refuse_unsteady(reason)
            self._batches = DataLoader(
                examples,
                batch_sampler=requests,  # type: ignore[arg-type]  # torch takes any iterable
                persistent_workers=workers > 0,
                **options,
            )
        limits = [limit for limit in (known, steps_per_epoch) if limit is not None]
        self.num_steps: int | None = min(limits, default=None)
        """Steps in an epoch, where that is known beforehand."""

    @property
    def is_amid_epoch(self) -> bool:
        """Whether the last iteration was left before its end."""
        return self._begun

    @property
    def epoch(self) -> int:
        """The epoch under way, or the next one between epochs."""
        return self._epoch

    def __iter__(self) -> Iterator[Batch]:
        for batches in self.by_step():
            yield from batches

    def by_step(self) -> Iterator[Iterator[Batch]]:
        """The batches of an epoch, step by step; every rank gets every step, if only an empty one."""
        outer = self._world.share
        if self._train and outer is not None and outer.train:
            raise DataError(
                "Two training loaders are iterated over at once, and a step could not tell whose share of "
                "examples it is about. Make one data set that yields both parts of an example."
            )
        if self._begun:  # the epoch before was left in the middle
            self._epoch, self._step = self._epoch + 1, 0
        self._begun = True
        self._place.epoch, self._place.step = self._epoch, self._step
        self._place.draw_state = self._draw_state if self._is_resumed else {}
        self._is_resumed = False
        try:
            self._enter("data")
            for inputs in self._inputs():
                self._step += 1
                if self._draw is not None:
                    self._draw_state = self._draw.state(self._step)
                if inputs.collate_draws and self._world.size > 1 and self._world.shards is None:
                    self._world.notice(_COLLATE_DRAWS)
                if inputs.unsteady is not None:
                    self._refuse_unsteady(
                        f"The data set gave another example {inputs.unsteady!r} when it was asked again: it "
                        "draws from a generator of its own"
                    )
                yield self._turns(inputs)
                self._enter("data")
        finally:
            self._world.share = outer
        self._enter("other")
        # an evaluation always draws alike, so that its values can be compared from epoch to epoch
        self._epoch, self._step, self._begun = self._epoch + self._train, 0, False

    def _turns(self, inputs: StepInput) -> Iterator[Batch]:
        for share, batch in zip(inputs.shares, inputs.batches, strict=True):
            self._world.share = share
            self._enter("data")
            if batch is not None:
                self._last = batch
                if self._is_moved:
                    self._last = to_device(batch, self._world.device, channels_last=self._channels_last)
            if share.count or self._train:
                if self._train and self._world.on_share is not None:
                    self._world.on_share(share)
                self._enter("other")
                yield self._last

    def _enter(self, name: phase.Name) -> None:
        phase.enter(name, detail=None if self._train else "evaluation")

    def state(self) -> dict[str, Any]:
        """Where the training is, free of the world: to be taken between two steps."""
        return {"epoch": self._epoch, "step": self._step, "draw": self._draw_state}

    def load_state(self, state: dict[str, Any]) -> None:
        """Make the next iteration go on where `state` was taken, on whatever world."""
        self._epoch, self._step, self._draw_state = state["epoch"], state["step"], state["draw"]
        self._begun, self._is_resumed = False, True

    def _inputs(self) -> Iterable[StepInput]:
        if self._draw is None:
            return self._stream_inputs()
        is_of_use = self._batches.num_workers or self._batches.pin_memory
        return self._batches if is_of_use or _are_loaders_watched() else self._direct

    def _stream_inputs(self) -> Iterator[StepInput]:
        self._stream.epoch = self._epoch
        # a stream has no positions to jump to: what was trained on already is read again and let go
        position = 0
        for number, inputs in enumerate(islice(self._batches, self._steps_per_epoch)):
            # of all workers together: what is drawn for a batch must not be drawn for another
            moved = [
                replace(share, position=share.position - inputs.start + position) for share in inputs.shares
            ]
            position += moved[0].batch
            if number < self._step:
                continue
            if inputs.seen:
                self._refuse_different_streams(inputs.seen)
            yield inputs._replace(shares=moved)

    def _refuse_unsteady(self, reason: str) -> None:
        self._world.drift(
            f"{reason}, which no checkpoint knows.",
            DataError,
            fix="Draw from random, numpy.random or torch, which Samestep sets from the seed",
        )

    def _refuse_different_streams(self, seen: str) -> None:
        all_seen = self._world.gather_texts(seen) if self._train else [seen]
        others = [rank for rank, other in enumerate(all_seen) if other != all_seen[0]]
        if others:
            raise DataError(
                f"The iterable data set yields other examples on rank {others[0]} than on rank 0. Every rank "
                "must read the same stream, of which Samestep gives each its share: remove the splitting by "
                "rank from the data set, and draw random numbers from the process-wide generators only."
            )


@dataclass(kw_only=True)
class _Place:
    """Where an iteration is to begin, for the loader and its requests alike.

    An object of its own: requests that knew their loader would close a circle of references, and torch's
    workers take ten seconds to end when they are found as a part of one.
    """

    epoch: int = 0
    step: int = 0
    draw_state: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Requests:
    """What this rank wants, step by step: the batch sampler of torch's loader."""

    place: _Place
    draw: Draw
    cut: Cut
    limit: int | None

    def __iter__(self) -> Iterator[Request]:
        epoch, skip, state = self.place.epoch, self.place.step, self.place.draw_state
        position = state.get("position", 0) if skip else 0
        had_examples = False
        limit = None if self.limit is None else max(0, self.limit - skip)
        for batch in islice(self.draw.batches(epoch, skip, state), limit):
            own = self.cut.shares(len(batch), epoch=epoch, position=position)
            indices = []
            for share in own:
                turn = batch[share.position - position :]
                mine = turn[share.first : share.first + share.count]
                if not mine and not had_examples and self.cut.train:
                    mine = turn[:1]
                had_examples = had_examples or bool(mine)
                indices.append(mine)
            yield Request(own, indices)
            position += len(batch)


@dataclass(frozen=True)
class _Direct:
    """What torch's loader yields where it has no workers and nothing to pin.

    The loader itself would mark every batch for torch's profiler, which is a tenth of a tiny step.
    """

    examples: MapExamples
    requests: _Requests

    def __iter__(self) -> Iterator[StepInput]:
        return map(self.examples.__getitems__, self.requests)


def _are_loaders_watched() -> bool:
    """Whether a wrapper is around torch's loaders, as that of a probe: it is to see all that is loaded."""
    return hasattr(DataLoader.__iter__, "__wrapped__")


def _draw_of(
    dataset: Any, batch_size: int, sampler: Any, batch_sampler: Any, shuffle: bool, world: World, seed: int
) -> Draw:
    num_examples = _length(dataset)
    if batch_sampler is not None:
        return Drawn(_made(batch_sampler, dataset), batch_size=None, world=world, seed=seed)
    if sampler is not None:
        return Drawn(_made(sampler, dataset), batch_size=batch_size, world=world, seed=seed)
    if not shuffle:
        return Computed(lambda epoch: Sequential(num_examples), batch_size)
    return Computed(lambda epoch: Shuffled(num_examples, seed=seed, epoch=epoch), batch_size)


def _made(sampler: Any, dataset: Any) -> Any:
    """The sampler itself, or what a function (or class) of the data set makes."""
    is_sampler = hasattr(sampler, "__iter__") and not isinstance(sampler, type)
    return sampler if is_sampler else sampler(dataset)


def _length(dataset: Any) -> int:
    name = type(dataset).__name__
    if not hasattr(dataset, "__getitem__"):
        raise DataError(
            f"{name} has no __getitem__ and is no IterableDataset; a data set needs one of the two."
        )
    try:
        num_examples = len(dataset)
    except (TypeError, NotImplementedError):
        raise DataError(f"{name} has no length; give the data set a __len__.") from None
    if num_examples == 0:
        raise DataError(f"{name} is empty: len() is 0, so there is nothing to train on or evaluate.")
    return num_examples


def _stream_steps(dataset: Any, batch_size: int, steps_per_epoch: int | None, train: bool) -> int | None:
    try:
        return -(-len(dataset) // batch_size)
    except (TypeError, NotImplementedError):
        if train and steps_per_epoch is None:
            raise DataError(
                f"{type(dataset).__name__} is an iterable data set without a length, so it may never end; "
                "say steps_per_epoch, or give the data set a __len__."
            ) from None
        return None


def _refuse_small_batch(batch_size: int, accumulate: int, world: World) -> None:
    turns = f" in {accumulate} turns" if accumulate > 1 else ""
    if batch_size // accumulate < world.size:
        raise DataError(
            f"batch_size is {batch_size}{turns} and the world has {world.size} ranks, so that a rank would "
            "never have an example. batch_size counts the examples of all ranks together: make it at least "
            f"{world.size * accumulate}, or use fewer ranks."
        )
    if world.shards is not None and batch_size // accumulate < world.shards:
        raise DataError(
            f"batch_size is {batch_size}{turns} and a batch is cut into {world.shards} shards, so that one "
            f"would never have an example: make batch_size at least {world.shards * accumulate}, or use "
            "fewer shards."
        )
