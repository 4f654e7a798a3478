"""The random streams of training: what dropout and everything else in a model draws from, step by step."""

import torch

from samestep.data.generators import Snapshot, seed_all
from samestep.device import generators_of
from samestep.keys import derive
from samestep.nn.dropout import DropoutStream
from samestep.nn.tracing import keep_out_of_graphs
from samestep.world import Share, World


class Randomness:
    """Sets the generators for each batch that a loader hands out, from keys that do not know the world.

    Dropout layers take their masks from `dropout`, example by example, on any number of ranks. Whatever
    else draws from torch's generators gets a stream for (seed, epoch, position, rank): other numbers on every
    rank, the same on every repetition. In bitwise mode, where a shard is run by itself on whatever rank, all
    draw from a stream for (seed, epoch, position of the shard).

    The stream of a batch is that of the step on it. Further steps on the same batch, and those without a
    loader, get one for (seed, optimizer, step, turn, rank).
    """

    def __init__(self, world: World, seed: int) -> None:
        self.dropout = DropoutStream()
        self._world = world
        self._seed = seed
        self._generators = generators_of(world.device)
        # what makes a rank's stream its own: a key for each rank and turn would be one more to derive a step
        self._of_rank = derive(seed, "rank", world.rank)
        self._key = 0
        self._is_of_batch = False
        """Whether the stream is that of a batch on which no step was made yet."""

    def begin(self, key: int) -> None:
        """Set torch's generators; in bitwise mode those of Python and NumPy too, for models that use them."""
        self._key = key
        self._is_of_batch = False
        if self._world.shards is not None:
            seed_all(key)
        for generator in self._generators:
            generator.manual_seed(key)

    def begin_batch(self, share: Share) -> None:
        """Set all streams for what is done with a batch, its step included."""
        key = derive(self._seed, "batch", share.epoch, share.position)
        self.begin(key if self._world.shards is not None else key ^ self._of_rank)
        self.dropout.begin(key)
        self._is_of_batch = True

    def begin_between(self, optimizer: int, step: int) -> None:
        """Set torch's generators after a step, the same on all ranks: what is made then is made alike."""
        self.begin(derive(self._seed, "between", optimizer, step))

    def begin_turn(self, optimizer: int, step: int, turn: int) -> None:
        """See that there is a stream for one turn of one step of one optimizer (known by its number)."""
        keep_out_of_graphs()
        if self._world.shards is not None:
            return  # a shard has one stream, from when it was handed out
        if self._is_of_batch:
            self._is_of_batch = False
            return
        key = derive(self._seed, "turn", optimizer, step, turn)
        self.begin(key ^ self._of_rank)
        self.dropout.begin(key)

    def begin_evaluation(self, share: Share | None) -> None:
        """Set torch's generators for one batch of an evaluation, by where it starts."""
        place = (0, 0) if share is None else (share.position, share.first)
        self.dropout.begin(0)
        self.begin(derive(self._seed, "evaluation", *place))

    def now(self) -> "Streams":
        """All streams as they are, to be put back."""
        return Streams(self.dropout, self._generators)

    def was_drawn_from(self) -> bool:
        """Whether the turn took random numbers that depend on the rank.

        The tokens by which dropout layers know their calls are drawn from the same generator: they are
        drawn again here, and do not count.
        """
        return any(
            not torch.equal(generator.get_state(), self._expected_state(generator))
            for generator in self._generators
        )

    def _expected_state(self, generator: torch.Generator) -> torch.Tensor:
        untouched = torch.Generator(generator.device).manual_seed(self._key)
        if generator is torch.default_generator:
            self.dropout.draw_tokens(untouched)
        return untouched.get_state()


class Streams:
    """The state of every stream that a model draws from, at one moment."""

    def __init__(self, dropout: DropoutStream, generators: list[torch.Generator]) -> None:
        self._process = Snapshot()
        self._generators = [(generator, generator.get_state()) for generator in generators]
        self._dropout, self._calls = dropout, dropout.now()

    def restore(self) -> None:
        self._process.restore()
        for generator, state in self._generators:
            generator.set_state(state)
        self._dropout.go_back(self._calls)
