"""Steps to a target loss, by really training at five batch sizes, against what the noise scale says."""

import math
from functools import cache

import numpy as np
import pytest

from samestep.advise.noise import StepNorms, noise_scale, steps_factor

NUM_EXAMPLES, NUM_FEATURES, NUM_CLASSES = 1000, 40, 10
BATCHES = (4, 16, 64, 256, 1024)
MEASURED_AT = 64
RATIO = 2**0.5
"""Of neighbouring learning rates."""
NUM_SEEDS = 5


class Regression:
    """Softmax regression on classes that are drawn from such a model, with features of unlike sizes."""

    def __init__(self):
        rng = np.random.default_rng(0)
        sizes = np.geomspace(1.0, 0.1, NUM_FEATURES)
        self.x = rng.standard_normal((NUM_EXAMPLES, NUM_FEATURES)) * sizes
        truth = 0.35 * rng.standard_normal((NUM_FEATURES, NUM_CLASSES)) / sizes[:, None]
        chances = np.cumsum(self.chances(truth, self.x), axis=1)
        self.y = (rng.random((NUM_EXAMPLES, 1)) > chances).sum(axis=1).clip(max=NUM_CLASSES - 1)
        weights, everything = self.start(), np.arange(NUM_EXAMPLES)
        for _ in range(500):
            weights -= 4.0 * self.gradient(weights, everything)
        self.target = 0.6 * self.loss(weights) + 0.4 * math.log(NUM_CLASSES)

    @staticmethod
    def start():
        return np.zeros((NUM_FEATURES, NUM_CLASSES))

    @staticmethod
    def chances(weights, x):
        z = x @ weights
        e = np.exp(z - z.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    def loss(self, weights):
        chances = self.chances(weights, self.x)[np.arange(NUM_EXAMPLES), self.y]
        return float(-np.log(chances + 1e-30).mean())

    def gradient(self, weights, batch):
        """The mean over the examples of a batch."""
        x, y = self.x[batch], self.y[batch]
        off = self.chances(weights, x)
        off[np.arange(len(batch)), y] -= 1
        return x.T @ off / len(batch)

    def steps(self, batch_size, rate, most):
        """How many it takes to the target; infinity if that is more than `most`. The middle of some runs."""
        return float(np.median([self._steps(batch_size, rate, most, seed) for seed in range(NUM_SEEDS)]))

    def _steps(self, batch_size, rate, most, seed):
        rng = np.random.default_rng(seed)
        weights = self.start()
        every = 1 + int(most) // 100  # a look at the loss of all examples costs more than a step
        for step in range(1, int(most) + 1):
            weights -= rate * self.gradient(weights, rng.integers(0, NUM_EXAMPLES, batch_size))
            if step % every == 0 and self.loss(weights) <= self.target:
                return step
        return math.inf

    def norms(self, batch_size, rate, num_steps):
        """Those of the quarters of each batch, on the way to the target."""
        rng = np.random.default_rng(NUM_SEEDS)
        weights = self.start()
        for _ in range(num_steps):
            parts = np.split(rng.integers(0, NUM_EXAMPLES, batch_size), 4)
            gradients = [self.gradient(weights, part) for part in parts]
            whole = sum(gradients) / 4
            yield StepNorms(
                num_examples=(batch_size // 4,) * 4,
                square_norms=tuple(float((each**2).sum()) for each in gradients),
                whole_square_norm=float((whole**2).sum()),
            )
            weights -= rate * whole


@cache
def trained():
    """Fewest steps for each batch size, with the learning rate that takes them; and the problem."""
    problem = Regression()
    found = {}
    rate, most = 128.0, 200.0
    for batch_size in reversed(BATCHES):
        # a smaller batch wants a smaller rate: from that of the larger one downwards, while it helps
        best = (math.inf, rate)
        while True:
            steps = problem.steps(batch_size, rate, min(most, 1.5 * best[0]))
            if steps < best[0]:
                best = (steps, rate)
            elif best[0] < math.inf and rate < best[1] / RATIO**2.5:
                break
            rate /= RATIO
        found[batch_size] = best
        rate, most = best[1] * RATIO, 8 * best[0]
    return problem, found


def law(noise):
    """ln of steps of each batch size, less the mean over batch sizes: S_min does not count."""
    logs = np.log([steps_factor(batch_size, noise) for batch_size in BATCHES])
    return logs - logs.mean()


def test_steps_to_the_target_are_those_that_the_noise_scale_foretells():
    problem, found = trained()
    steps, rate = found[MEASURED_AT]
    noise = noise_scale(problem.norms(MEASURED_AT, rate, int(steps)))
    assert noise.is_known
    logs = np.log([found[batch_size][0] for batch_size in BATCHES])
    candidates = np.geomspace(1.0, 1e5, 2000)
    off = [np.square(logs - logs.mean() - law(each)).sum() for each in candidates]
    fitted = float(candidates[int(np.argmin(off))])
    assert noise.low < fitted < noise.high
    # and the law holds at all: half a step is a tenth of what the largest batches take, and a rate that is
    # off by the fourth root of 2 costs some percent
    assert math.sqrt(min(off) / len(BATCHES)) < 0.15
    # neither "twice the batch, half the steps" nor "the batch does not matter" does
    assert min(off) < 0.1 * min(off[0], off[-1])


@pytest.mark.parametrize("factor", [0.2, 5.0])
def test_another_noise_scale_foretells_other_steps(factor):
    problem, found = trained()
    steps, rate = found[MEASURED_AT]
    noise = noise_scale(problem.norms(MEASURED_AT, rate, int(steps)))
    logs = np.log([found[batch_size][0] for batch_size in BATCHES])
    ours, other = (np.square(logs - logs.mean() - law(noise.value * f)).sum() for f in (1.0, factor))
    assert other > 4 * ours
