"""Metrics kept apart by shard: the same bits on any number of ranks, through checkpoints too."""

import pytest
import torch
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection
from torchmetrics.aggregation import CatMetric, MaxMetric, MeanMetric
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC, MulticlassAccuracy, MulticlassF1Score
from torchmetrics.regression import MeanSquaredError, PearsonCorrCoef
from torchmetrics.wrappers import MinMaxMetric

import worlds
from samestep import metrics
from samestep.data.shard import shard_shares, shares
from samestep.metrics import ByShard, FrechetDistance, load_state, state_of
from samestep.metrics.packing import pack, unpack

CPU = torch.device("cpu")
NUM_EXAMPLES, BATCH, NUM_CLASSES, HALF = 150, 21, 3, 4  # the last of 8 batches has 3 examples
WORLDS = [1, 2, 3, 4]

_generator = torch.Generator().manual_seed(0)
LABEL = torch.randint(NUM_CLASSES, (NUM_EXAMPLES,), generator=_generator)
LOGITS = torch.randn(NUM_EXAMPLES, NUM_CLASSES, generator=_generator)
SCORE = torch.rand(NUM_EXAMPLES, generator=_generator)
FEATURES = torch.randn(NUM_EXAMPLES, 3, generator=_generator)
# magnitudes over six decades, in float32: every other order of adding rounds differently
WIDE = torch.randn(NUM_EXAMPLES, generator=_generator) * 10 ** (6 * SCORE)
WHOLE = torch.randint(-9, 9, (NUM_EXAMPLES,), generator=_generator).float()


class CustomSum(Metric):
    """A sum that only the metric itself knows how to merge, so that parts of it are never folded."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros(()), dist_reduce_fx=lambda stacked: stacked.sum(dim=0))

    def update(self, values: Tensor) -> None:
        self.total = self.total + values.sum()

    def compute(self) -> Tensor:
        return self.total


class Fréchet(FrechetDistance):
    """Both streams from one update."""

    def update(self, real: Tensor, other: Tensor) -> None:
        super().update(real, real=True)
        super().update(other, real=False)


def pair():
    return MetricCollection({"acc": MulticlassAccuracy(NUM_CLASSES), "f1": MulticlassF1Score(NUM_CLASSES)})


CASES = {
    "accuracy": (lambda: MulticlassAccuracy(NUM_CLASSES), (LOGITS, LABEL)),
    "auroc": (BinaryAUROC, (SCORE, (LABEL > 0).long())),
    "mse": (MeanSquaredError, (WIDE, SCORE)),
    "mean": (MeanMetric, (WIDE, SCORE)),
    "custom": (CustomSum, (WIDE,)),
    "pearson": (PearsonCorrCoef, (SCORE, LOGITS[:, 0])),
    "frechet": (lambda: Fréchet(3), (FEATURES, FEATURES.flip(0) + LOGITS)),
    "rows": (CatMetric, (WIDE,)),
    "collection": (pair, (LOGITS, LABEL)),
    "minmax": (lambda: MinMaxMetric(MeanSquaredError()), (WIDE, SCORE)),
    "composed": (lambda: MeanMetric() + 2 * CustomSum(), (WIDE,)),
}
# all sums of these are whole numbers below 2**24, and exact in any order
EXACT_CASES = {
    "accuracy": CASES["accuracy"],
    "auroc": CASES["auroc"],
    "mse": (MeanSquaredError, (WHOLE, WHOLE.flip(0))),
    "mean": (MeanMetric, (WHOLE,)),
    "max": (MaxMetric, (WHOLE,)),
    "custom": (CustomSum, (WHOLE,)),
    "minmax": (lambda: MinMaxMetric(MeanSquaredError()), (WHOLE, WHOLE.flip(0))),
    "composed": (lambda: MeanMetric() + 2 * CustomSum(), (WHOLE,)),
}


def feed(world, metric, inputs, batches):
    """Update `metric` with this rank's shares of batches, as a loader hands them out."""
    place = {"rank": world.rank, "world_size": world.size, "turns": 1, "epoch": 0, "train": False}
    for start in [batch * BATCH for batch in batches]:
        place |= {"num_examples": min(BATCH, NUM_EXAMPLES - start), "position": start}
        own = shares(**place) if world.shards is None else shard_shares(**place, shards=world.shards, least=1)
        for share in own:
            world.share = share
            first = share.position + share.first
            if share.count:
                metric.update(*(values[first : first + share.count] for values in inputs))
    world.share = None


def bits(value):
    if isinstance(value, dict):
        return {name: bits(item) for name, item in value.items()}
    return str(value.dtype), tuple(value.shape), value.numpy().tobytes()


def values(world, shards, keep=ByShard):
    world.set_mode(shards)
    found, causes = {}, {}
    for name, (make, inputs) in CASES.items():
        metric = make() if keep is None else keep(make(), world)
        feed(world, metric, inputs, range(HALF))
        metrics.compute(metric, world)  # computing half-way must not disturb the accumulation
        feed(world, metric, inputs, range(HALF, 8))
        merged = metrics.compute(metric, world)
        found[name] = bits(merged.value)
        causes[name] = {finding.cause for finding in merged.findings}
    return found, causes


@pytest.mark.parametrize("shards", [4, 8])
def test_values_have_the_same_bits_on_any_world(shards):
    alone = worlds.run(1, values, shards=shards)[0]
    assert not any(alone[1].values())
    for size in WORLDS[1:]:
        assert worlds.run(size, values, shards=shards) == [alone] * size


@pytest.mark.parametrize(("shards", "keep"), [(None, ByShard), (8, None)])
def test_one_state_a_rank_gives_other_bits_on_other_worlds(shards, keep):
    # negative control: fast mode, and plain metrics in bitwise mode
    by_world = [worlds.run(size, values, shards=shards, keep=keep)[0] for size in WORLDS]
    for name in ("mean", "custom", "frechet", "composed"):  # signed sums, which lose most of their bits
        assert len({str(found[name]) for found, _ in by_world}) > 1, name
    for name in ("accuracy", "collection"):  # counts are exact in any order
        assert len({str(found[name]) for found, _ in by_world}) == 1, name
    doubted = {name for _, causes in by_world for name in causes if causes[name]}
    assert doubted == (set() if shards is None else {*CASES} - {"accuracy", "collection"})


def halfway(world, shards, cases="CASES"):
    world.set_mode(shards)
    stored = {}
    for name, (make, inputs) in globals()[cases].items():
        metric = ByShard(make(), world)
        feed(world, metric, inputs, range(HALF))
        metrics.compute(metric, world)
        stored[name] = state_of(metric, world)
    return bytes(pack(stored, CPU).numpy())


def resumed(world, shards, stored, cases="CASES"):
    world.set_mode(shards)
    tree = unpack(torch.frombuffer(bytearray(stored), dtype=torch.uint8))
    found = {}
    for name, (make, inputs) in globals()[cases].items():
        metric = ByShard(make(), world)
        feed(world, metric, inputs, [5])  # what was there before must not count
        load_state(metric, tree[name], world)
        feed(world, metric, inputs, [HALF])
        again = ByShard(make(), world)
        load_state(again, state_of(metric, world), world)  # a checkpoint of a resumed run
        feed(world, again, inputs, range(HALF + 1, 8))
        found[name] = bits(metrics.compute(again, world).value)
        again.reset()
        assert metrics.compute(again, world).value is None
    return found


@pytest.mark.parametrize(("before", "after"), [(3, 2), (1, 4), (4, 1)])
@pytest.mark.parametrize("shards", [4, 8])
def test_a_state_goes_on_with_the_same_bits_on_another_world(before, after, shards):
    undisturbed = worlds.run(1, values, shards=shards)[0][0]
    stored = worlds.run(before, halfway, shards=shards)
    assert stored == worlds.run(1, halfway, shards=shards) * before  # a checkpoint knows no world
    assert worlds.run(after, resumed, shards=shards, stored=stored[0]) == [undisturbed] * after


@pytest.mark.parametrize(("before", "after"), [(None, 8), (8, None), (4, 8), (8, 4), (None, None)])
def test_a_state_of_another_mode_goes_on_with_the_right_value(before, after):
    (stored, *_) = worlds.run(3, halfway, shards=before, cases="EXACT_CASES")
    for found in worlds.run(2, resumed, shards=after, stored=stored, cases="EXACT_CASES"):
        for name, (make, inputs) in EXACT_CASES.items():
            metric = make()
            metric.update(*(values[: HALF * BATCH] for values in inputs))
            metric.compute()  # as `halfway` did; a wrapper may remember it
            metric.update(*(values[HALF * BATCH :] for values in inputs))
            assert found[name] == bits(metric.compute()), name


def parts_of_states(world, shards):
    world.set_mode(shards)
    metric = ByShard(MeanMetric(), world)
    feed(world, metric, (WIDE,), [0, 7])
    return [(part["shard"], part["count"]) for part in state_of(metric, world)["."]["parts"]]


def test_parts_stay_apart_in_bitwise_mode_only():
    # the last batch fills three of the four shards
    assert worlds.run(3, parts_of_states, shards=4) == [[(0, 2), (1, 2), (2, 2), (3, 1)]] * 3
    assert worlds.run(3, parts_of_states, shards=None) == [[(0, 6)]] * 3


def copies(world, shards):
    world.set_mode(shards)
    metric = MeanMetric()
    kept = ByShard(metric, world)
    return [*kept.copies], [copy is metric for copy in kept.copies.values()]


def test_a_rank_has_a_copy_for_each_of_its_shards_and_none_in_fast_mode():
    assert worlds.run(2, copies, shards=None) == [([0], [True]), ([1], [True])]
    assert worlds.run(2, copies, shards=3) == [([0, 1], [True, False]), ([2], [True])]


class WithNetwork(MeanMetric):
    """A metric that looks through a network, as those of images and texts do."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))


def network_copies(world):
    world.set_mode(3)
    first, *others = ByShard(WithNetwork(), world).copies.values()
    held = [*first.network.parameters(), *first.network.buffers()]
    for other in others:
        same = [*other.network.parameters(), *other.network.buffers()]
        assert all(a is b for a, b in zip(held, same, strict=True))
        assert other.mean_value is not first.mean_value
        assert other.network is not first.network
    return len(others)


def test_copies_share_networks_and_no_states():
    assert worlds.run(1, network_copies) == [2]


def two_thresholds():
    return MetricCollection({"low": BinaryAccuracy(0.5), "high": BinaryAccuracy(0.9)})


def lucky_first(world):
    """Of all examples, only the first is above both thresholds."""
    score, label = torch.full((NUM_EXAMPLES,), 0.7), torch.ones(NUM_EXAMPLES, dtype=torch.int64)
    score[0] = 0.95
    grouped = two_thresholds()
    for examples in (slice(1), slice(1, None)):
        grouped.update(score[examples], label[examples])
    world.set_mode(25)  # one example a shard
    metric = ByShard(two_thresholds(), world)
    feed(world, metric, (score, label), range(8))
    return [{k: float(v) for k, v in found.items()} for found in (grouped.compute(), world.compute(metric))]


def test_metrics_that_agree_on_a_first_small_shard_are_not_taken_for_one():
    for size in (1, 3):
        for grouped, apart in worlds.run(size, lucky_first):
            assert grouped["low"] == grouped["high"] < 0.01  # negative control
            assert apart == {"low": 1.0, "high": pytest.approx(1 / NUM_EXAMPLES)}
