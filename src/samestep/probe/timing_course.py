"""Course: whether a program trains or evaluates, from the batches that it asks for and the models it calls.

A model in evaluation mode, or without gradients, need not be an evaluation: a teacher may run in every step.
It is none while a batch is in hand that was asked of a loader trained on, unless the model itself is trained.
"""

from samestep.probe.timing_clock import TimingClock

EVALUATION = "evaluation"


class Course:
    """Sets the clock aside for evaluations, with the data that was asked for them; counts examples of steps.

    Loaders and models are known by their numbers. An evaluation lasts until a batch to train on is asked for,
    or until a model trains.
    """

    def __init__(self, clock: TimingClock) -> None:
        self._clock = clock
        self._loaders: set[int] = set()
        self._models: set[int] = set()
        self._handed: list[tuple[int, int | None]] = []
        self._is_in_hand = False

    def asked(self, loader: int | None) -> None:
        """A batch, or an iterator, is asked of a loader."""
        if loader in self._loaders and self._clock.aside == EVALUATION:
            self._clock.set_aside(None)
        self._clock.mark()

    def handed(self, loader: int, num_examples: int | None) -> None:
        """The program was given a batch of a loader."""
        self._handed.append((loader, num_examples))
        self._is_in_hand = self._is_in_hand or loader in self._loaders

    def trains(self, model: int) -> None:
        """A model is called in training mode, with gradients."""
        if self._clock.aside == EVALUATION:
            self._clock.set_aside(None)
        self._clock.unmark()
        self._loaders.update(loader for loader, _ in self._handed)
        self._models.add(model)
        self._is_in_hand = True

    def evaluates(self, model: int, *, is_in_training_mode: bool) -> None:
        """A model is called in evaluation mode or without gradients."""
        is_trained = model in self._models and not is_in_training_mode
        is_between = not self._is_in_hand and bool(self._loaders or not self._models)
        if is_trained or is_between:
            self._clock.set_aside_since_mark(EVALUATION)
            self._handed.clear()
            self._is_in_hand = False

    def end_step(self) -> int | None:
        """A step is over; the examples that it was taken on, None where they cannot be counted."""
        counts = [count for _, count in self._handed]
        self._handed.clear()
        self._is_in_hand = False
        self._clock.unmark()
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None
