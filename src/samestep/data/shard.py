"""Who gets what: the cutting of a global batch into contiguous shares. Pure arithmetic."""

from dataclasses import dataclass
from functools import lru_cache

from samestep.world import Share


def cut(total: int, parts: int, part: int) -> tuple[int, int]:
    """Start and stop of `part` when `total` things are cut into `parts` contiguous pieces.

    Sizes differ by at most one and the larger pieces come first, so that the first part is empty only
    when there is nothing at all.
    """
    size, larger = divmod(total, parts)
    start = part * size + min(part, larger)
    return start, start + size + (part < larger)


def turns_of(num_examples: int, batch_size: int, turns: int) -> int:
    """The turns of a batch that may be shorter than `batch_size`: fewer, rather than smaller ones."""
    return max(1, -(-num_examples * turns // batch_size))


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How the batches of a loader are cut; `shards` is None in fast mode, where a rank has one shard.

    `batch_size` is that of whole batches, or None where batches come in any size.
    """

    rank: int
    world_size: int
    turns: int
    batch_size: int | None
    shards: int | None = None
    train: bool = True

    def shares(self, num_examples: int, *, epoch: int, position: int) -> list[Share]:
        """The shares of this rank in a step on `num_examples` examples, which start at `position`."""
        turns = self.turns
        if self.batch_size is not None:
            turns = turns_of(num_examples, self.batch_size, turns)
        if self.shards is None:
            return shares(
                num_examples, rank=self.rank, world_size=self.world_size, turns=turns,
                epoch=epoch, position=position, train=self.train,
            )  # fmt: skip
        # a norm layer cannot train on a single value: a short batch has fewer shards rather than tiny ones
        least = 1 if self.batch_size is not None and self.batch_size < 2 * self.shards * self.turns else 2
        return shard_shares(
            num_examples, shards=self.shards, least=least, rank=self.rank, world_size=self.world_size,
            turns=turns, epoch=epoch, position=position, train=self.train,
        )  # fmt: skip


def shares(
    num_examples: int,
    *,
    rank: int,
    world_size: int,
    turns: int,
    epoch: int,
    position: int,
    train: bool = True,
) -> list[Share]:
    """The shares of one rank in a step on `num_examples` examples that start at `position` of the epoch.

    The batch is cut into turns first and every turn into ranks, so that the examples of a turn (over
    which batch norm takes its statistics) do not depend on the world. No turn is empty.
    """
    pieces = _pieces(num_examples, rank, world_size, max(1, min(turns, num_examples)))
    return [
        Share(
            first=first,
            count=count,
            total=total,
            batch=num_examples,
            turn=turn,
            turns=len(pieces),
            shard=rank,
            epoch=epoch,
            position=position + start,
            train=train,
        )
        for turn, (start, first, count, total) in enumerate(pieces)
    ]


@lru_cache(maxsize=16)
def _pieces(num_examples: int, rank: int, world_size: int, turns: int) -> list[tuple[int, int, int, int]]:
    """Of each turn: where it starts, a rank's first example and number in it, and how many it has.

    Nearly all batches of a loader have the same size.
    """
    found = []
    for turn in range(turns):
        turn_start, turn_stop = cut(num_examples, turns, turn)
        start, stop = cut(turn_stop - turn_start, world_size, rank)
        found.append((turn_start, start, stop - start, turn_stop - turn_start))
    return found


def shard_shares(
    num_examples: int,
    *,
    shards: int,
    least: int,
    rank: int,
    world_size: int,
    turns: int,
    epoch: int,
    position: int,
    train: bool = True,
) -> list[Share]:
    """The shares of one rank when the batch is always cut into `shards`, of which each runs by itself.

    Neither the shards nor their parts (`turns` of each) depend on the world: only who runs them does. With
    fewer than `least` examples for each, some shards are empty, spread over all. A rank that has none of
    the others gets one empty share.
    """
    num_filled = max(1, min(shards, num_examples // least))
    own_start, own_stop = cut(shards, world_size, rank)
    pieces = []
    for filled in range(num_filled):
        shard = filled * shards // num_filled
        if own_start <= shard < own_stop:
            start, stop = cut(num_examples, num_filled, filled)
            parts = max(1, min(turns, (stop - start) // least))
            for part in range(parts):
                part_start, part_stop = cut(stop - start, parts, part)
                pieces.append((shard, part, part == parts - 1, start + part_start, part_stop - part_start))
    if not pieces:
        pieces = [(own_start, 0, True, 0, 0)]
    return [
        Share(
            first=0,
            count=count,
            total=count,
            batch=num_examples,
            turn=turn,
            turns=len(pieces),
            shard=shard,
            part=part,
            ends_shard=ends_shard,
            epoch=epoch,
            position=position + start,
            train=train,
        )
        for turn, (shard, part, ends_shard, start, count) in enumerate(pieces)
    ]
