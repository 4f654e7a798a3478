"""Who gets what: the cutting of a global batch into contiguous shares. Pure arithmetic."""

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
    turns = max(1, min(turns, num_examples))
    result = []
    for turn in range(turns):
        turn_start, turn_stop = cut(num_examples, turns, turn)
        start, stop = cut(turn_stop - turn_start, world_size, rank)
        result.append(
            Share(
                first=start,
                count=stop - start,
                total=turn_stop - turn_start,
                turn=turn,
                turns=turns,
                epoch=epoch,
                position=position + turn_start,
                train=train,
            )
        )
    return result
