"""Global batches of indices, step by step: computed where the order is a function, drawn once where not.

A user's sampler is iterated by the first rank alone and what it yields is sent to all, so that a sampler
that is unseeded, infinite, weighted or stateful is still shared out exactly. Knows nothing of examples.
"""

import copy
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from itertools import islice
from typing import Any, Protocol

import torch

from samestep.data.generators import Stream
from samestep.data.order import Order
from samestep.errors import DataError
from samestep.keys import derive
from samestep.world import World

Index = Any
_BLOCK = 4096


class Draw(Protocol):
    """Where the indices of each step come from."""

    def num_steps(self) -> int | None:
        """Steps in an epoch, where that is known beforehand."""
        ...

    def batches(self, epoch: int, skip: int, state: dict[str, Any]) -> Iterator[list[Index]]:
        """The global batches of an epoch after the first `skip`, whose `state` was taken there."""
        ...

    def state(self, step: int) -> dict[str, Any]:
        """What `batches` needs, beside the number, to go on after the first `step` batches.

        `position` is among it: the number of examples in those batches.
        """
        ...


class Computed:
    """Batches of a known order; every rank computes them alike and nothing is sent."""

    def __init__(self, order_of: Callable[[int], Order], batch_size: int) -> None:
        self._order_of = order_of
        self._batch_size = batch_size

    def num_steps(self) -> int:
        return -(-len(self._order_of(0)) // self._batch_size)

    def batches(self, epoch: int, skip: int = 0, state: dict[str, Any] | None = None) -> Iterator[list[int]]:
        order = self._order_of(epoch)
        size = self._batch_size
        # whole blocks: the fixed cost of a vectorised look-up is spread over several batches
        block = max(1, _BLOCK // size) * size
        for start in range(skip * size, len(order), block):
            indices = order.slice(start, start + block).tolist()
            for first in range(0, len(indices), size):
                yield indices[first : first + size]

    def state(self, step: int) -> dict[str, Any]:
        return {"position": step * self._batch_size}


class Drawn:
    """Batches from a user's sampler or batch sampler, drawn by the first rank and sent to all.

    The sampler draws from random streams of its own, set from (seed, epoch). To go on in the middle of an
    epoch, a sampler with `state_dict`/`load_state_dict` is asked to; any other is drawn again from the
    start of the epoch, and what comes is checked against the digest of what was drawn the first time.
    """

    def __init__(self, sampler: Any, *, batch_size: int | None, world: World, seed: int) -> None:
        if (replicas := getattr(_innermost(sampler), "num_replicas", 1)) > 1:
            raise DataError(
                f"The sampler {type(_innermost(sampler)).__name__} already shares its examples out to "
                f"{replicas} ranks; give the plain sampler instead: Samestep shares out what it yields."
            )
        self._sampler = sampler
        self._batch_size = batch_size
        self._world = world
        self._seed = seed
        self._remembers = hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict")
        generator = getattr(_innermost(sampler), "generator", None)
        self._generator = generator if isinstance(generator, torch.Generator) else None
        self._generator_seed = 0 if self._generator is None else self._generator.initial_seed()
        # loaders draw ahead of training: one entry for every batch that may not have been trained on yet
        self._states: deque[tuple[int, dict[str, Any]]] = deque()

    def unsteady(self) -> str | None:
        """Why a checkpoint could not bring this sampler back to where it was, if so; asked of a copy.

        A sampler that is a function of the random streams draws the same first batch twice.
        """
        if self._remembers:
            return None
        try:
            trial = copy.deepcopy(self._sampler)
        except Exception:  # whatever keeps it from being copied, there is nothing to be seen then
            return None
        drawn = []
        for _ in range(2):
            other = Drawn(trial, batch_size=self._batch_size, world=self._world, seed=self._seed)
            drawn.append(next(other._draw(0, {}), None))
        name = type(_innermost(self._sampler)).__name__
        return None if drawn[0] == drawn[1] else f"The sampler {name} drew other examples the second time"

    def num_steps(self) -> int | None:
        try:
            length = len(self._sampler)
        except TypeError:
            return None
        return length if self._batch_size is None else -(-length // self._batch_size)

    def batches(self, epoch: int, skip: int, state: dict[str, Any]) -> Iterator[list[Index]]:
        self._states.clear()
        batches = self._draw(epoch, state) if self._world.is_first else None
        digest = blake2b(digest_size=16)
        number = skip if self._remembers else 0
        position = state.get("position", 0) if number else 0
        room = self._batch_size or 0
        while True:
            batch = _send(self._world, next(batches, None) if batches is not None else None, room)
            if batch is None:
                if number < skip:
                    raise DataError(
                        _NOT_REPEATABLE.format(skip=skip, epoch=epoch, what=f"ended after {number}")
                    )
                return
            number += 1
            position += len(batch)
            room = max(room, len(batch))
            digest.update(json.dumps(batch, default=repr).encode())
            if number == skip and digest.hexdigest() != state.get("digest", digest.hexdigest()):
                raise DataError(_NOT_REPEATABLE.format(skip=skip, epoch=epoch, what="drew other examples"))
            if number > skip:
                known = {"position": position, "digest": digest.hexdigest(), **self._sampler_state()}
                self._states.append((number, known))
                yield batch

    def state(self, step: int) -> dict[str, Any]:
        while self._states and self._states[0][0] < step:
            self._states.popleft()
        return self._states[0][1] if self._states and self._states[0][0] == step else {}

    def _sampler_state(self) -> dict[str, Any]:
        return {"sampler": self._sampler.state_dict()} if self._remembers and self._world.is_first else {}

    def _draw(self, epoch: int, state: dict[str, Any]) -> Iterator[list[Index]]:
        stream = Stream(derive(self._seed, "sampler", epoch))
        with stream.active():
            for part in (self._sampler, _innermost(self._sampler)):
                if callable(set_epoch := getattr(part, "set_epoch", None)):
                    set_epoch(epoch)
            if self._generator is not None:
                # its state would otherwise depend on how many epochs this very process has seen
                self._generator.manual_seed(derive(self._generator_seed, "sampler", epoch))
            if self._remembers and "sampler" in state:
                self._sampler.load_state_dict(state["sampler"])
            drawn: Iterable[Any] = iter(self._sampler)
        while True:
            with stream.active():
                if self._batch_size is None:
                    batch = next(drawn, None)  # type: ignore[call-overload]
                    batch = None if batch is None else [_plain(index) for index in batch]
                else:
                    batch = [_plain(index) for index in islice(drawn, self._batch_size)] or None
            if batch is None:
                return
            if not batch:
                raise DataError("The batch sampler yielded a batch without an index; leave such batches out.")
            yield batch


_NOT_REPEATABLE = (
    "The run was to go on after step {skip} of epoch {epoch}, but the sampler {what} this time. "
    "Give it a seed, or the methods state_dict and load_state_dict, or resume from the end of an epoch."
)


def _innermost(sampler: Any) -> Any:
    return getattr(sampler, "sampler", sampler)


def _plain(index: Any) -> Any:
    """An index as Python value: samplers also yield tensors and NumPy numbers."""
    return index.item() if hasattr(index, "item") else index


def _send(world: World, batch: list[Index] | None, room: int) -> list[Index] | None:
    """The batch of the first rank, on every rank; None when its sampler has ended.

    Up to `room` whole numbers, of which all ranks know alike, are sent as one message.
    """
    plain = batch is not None and all(type(index) is int for index in batch)
    if world.size == 1 and (batch is None or plain):
        return batch
    numbers = torch.tensor(batch if plain else [], dtype=torch.int64)
    message = torch.zeros(2 + room, dtype=torch.int64)
    message[0] = -1 if batch is None else len(batch)
    message[1] = plain
    if len(numbers) <= room:
        message[2 : 2 + len(numbers)] = numbers
    world.broadcast_(message)
    length, plain, *sent = message.tolist()
    if length < 0:
        return None
    if plain and length <= room:
        return sent[:length]
    if plain:
        numbers = numbers if batch is not None else torch.zeros(length, dtype=torch.int64)
        world.broadcast_(numbers)
        return numbers.tolist()
    try:
        text = json.dumps(batch) if batch is not None else ""
    except TypeError:
        raise DataError(
            f"The sampler yields indices such as {batch[0]!r}, which cannot be sent to the other ranks; "  # type: ignore[index]
            "indices are whole numbers, texts, or lists of these."
        ) from None
    return [_hashable(index) for index in json.loads(world.broadcast_text(text))]


def _hashable(index: Any) -> Any:
    # JSON has no tuples, and a list cannot be the key of a dict; samplers that yield compound keys use tuples
    return tuple(_hashable(part) for part in index) if isinstance(index, list) else index
