"""The order of turns in bitwise mode: each shard that was handed out takes part in one step, once.

In fast mode every rank has the same turns, and a loop that leaves one out does so everywhere. Here ranks have
different shards, so that whatever passes over one would change the result with the world.
"""

from samestep.errors import ConfigError
from samestep.world import Share

_RULE = "In bitwise mode each batch of the loader goes through world.step once, with one optimizer, in order."


class TurnOrder:
    """Sees every turn of every optimizer."""

    def __init__(self) -> None:
        self._next_turn = 0
        self._optimizer: object = None
        self._done: Share | None = None

    def begin(self, share: Share | None, optimizer: object) -> None:
        """Raise a ConfigError if this is not the turn that comes next."""
        if share is None:
            raise ConfigError(f"world.step was called outside of a loader. {_RULE}")
        if share is self._done and optimizer is not self._optimizer:
            raise ConfigError(f"A second optimizer takes steps on the same batches. {_RULE}")
        if share is self._done:
            raise ConfigError(f"A second step was begun on the same batch. {_RULE}")
        if share.turn != self._next_turn:
            raise ConfigError(
                f"Turn {share.turn + 1} of {share.turns} was begun where turn {self._next_turn + 1} should "
                f"be: a batch was passed over, or its step given up. {_RULE}"
            )
        if share.turn and optimizer is not self._optimizer:
            raise ConfigError(f"Another optimizer was used in the middle of a step. {_RULE}")
        self._optimizer = optimizer
        self._next_turn = 0  # a turn that is given up leaves its step unfinished

    def end(self, share: Share | None) -> None:
        """This turn is over."""
        assert share is not None
        self._done = share
        self._next_turn = (share.turn + 1) % share.turns
