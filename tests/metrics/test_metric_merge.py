"""torchmetrics' metrics over real worlds, against one pass by the metric itself in one process."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torchmetrics import Metric, MetricCollection
from torchmetrics.aggregation import CatMetric, MaxMetric, MeanMetric, MinMetric, SumMetric
from torchmetrics.classification import (
    BinaryAUROC,
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)
from torchmetrics.image import PeakSignalNoiseRatio
from torchmetrics.regression import MeanSquaredError, PearsonCorrCoef, R2Score, SpearmanCorrCoef
from torchmetrics.retrieval import RetrievalMAP
from torchmetrics.wrappers import ClasswiseWrapper, MetricTracker, MinMaxMetric, MultioutputWrapper, Running

import worlds
from samestep import metrics
from samestep.errors import CheckpointError, ConfigError, ReplicaError
from samestep.metrics import load_state, state_of
from samestep.metrics.packing import pack, unpack

CPU = torch.device("cpu")
NUM_EXAMPLES, BATCH, NUM_CLASSES = 101, 7, 3
NUM_BATCHES = -(-NUM_EXAMPLES // BATCH)

_generator = torch.Generator().manual_seed(0)
LABEL = torch.randint(NUM_CLASSES, (NUM_EXAMPLES,), generator=_generator)
LOGITS = torch.randn(NUM_EXAMPLES, NUM_CLASSES, generator=_generator).double()
LOGITS[40:, 0] += 2.0  # so that ranks with few batches see an easier or harder problem than the others
SCORE = torch.rand(NUM_EXAMPLES, generator=_generator).double()
TRUTH = SCORE + 0.5 * torch.randn(NUM_EXAMPLES, generator=_generator).double()
WEIGHT = torch.rand(NUM_EXAMPLES, generator=_generator).double() + 0.1
QUERY = torch.arange(NUM_EXAMPLES) % 9

# A sum of at most NUM_EXAMPLES float64 terms has, in any order and grouping, a relative error of at most
# (n - 1) u against the sum of the absolute terms; 8 more roundings cover the arithmetic on such sums.
GAMMA = (NUM_EXAMPLES + 8) * 2.0**-53
# By how much the centring of x amplifies that: sum of squares / sum of centred squares.
KAPPA = max(float((x * x).sum() / ((x - x.mean()) ** 2).sum()) for x in (SCORE, TRUTH))
# Every tolerance counts the two results that are compared. Relative, a quotient of two sums of positive
# terms; its logarithm, here of values above e, has less:
QUOTIENT = 2 * 2 * GAMMA
# Absolute, correlations: three centred sums (mean, product and sum rounded), none larger than the divisor.
CORRELATION = 2 * 3 * 3 * GAMMA * KAPPA
# Absolute, 1 - rss/tss with rss < tss = Σy² - (Σy)²/n: both parts are at most Σy², with errors γ and 2γ.
DETERMINATION = 2 * (GAMMA + 3 * GAMMA * KAPPA)


@dataclass(frozen=True)
class Case:
    make: Callable[[], Any]
    inputs: tuple[torch.Tensor, ...]
    relative: float = 0.0
    absolute: float = 0.0


def classifiers():
    acc, f1 = MulticlassAccuracy(NUM_CLASSES), MulticlassF1Score(NUM_CLASSES)
    return MetricCollection({"acc": acc, "f1": f1, "confusion": MulticlassConfusionMatrix(NUM_CLASSES)})


CASES = {
    # counts are whole numbers and sorted scores have one order: no rounding, no tolerance
    "accuracy": Case(lambda: MulticlassAccuracy(NUM_CLASSES), (LOGITS, LABEL)),
    "f1": Case(lambda: MulticlassF1Score(NUM_CLASSES, average="macro"), (LOGITS, LABEL)),
    "confusion": Case(lambda: MulticlassConfusionMatrix(NUM_CLASSES), (LOGITS, LABEL)),
    "auroc": Case(BinaryAUROC, (SCORE, (LABEL > 0).long())),
    "auroc_multiclass": Case(lambda: MulticlassAUROC(NUM_CLASSES), (LOGITS.softmax(dim=1), LABEL)),
    "spearman": Case(SpearmanCorrCoef, (SCORE, TRUTH), absolute=CORRELATION),
    "retrieval": Case(RetrievalMAP, (SCORE, (LABEL > 0).long(), QUERY)),
    "max": Case(MaxMetric, (-SCORE,)),
    "min": Case(MinMetric, (SCORE,)),
    "psnr": Case(lambda: PeakSignalNoiseRatio(data_range=3.0), (SCORE, TRUTH), relative=QUOTIENT),
    "mse": Case(MeanSquaredError, (SCORE, TRUTH), relative=QUOTIENT),
    "r2": Case(R2Score, (SCORE, TRUTH), absolute=DETERMINATION),
    "pearson": Case(PearsonCorrCoef, (SCORE, TRUTH), absolute=CORRELATION),
    "weighted_mean": Case(MeanMetric, (SCORE, WEIGHT), relative=QUOTIENT),
    "collection": Case(classifiers, (LOGITS, LABEL)),
    "classwise": Case(
        lambda: ClasswiseWrapper(MulticlassAccuracy(NUM_CLASSES, average=None)), (LOGITS, LABEL)
    ),
    "composed": Case(
        lambda: MulticlassAccuracy(NUM_CLASSES) + 2 * MulticlassF1Score(NUM_CLASSES), (LOGITS, LABEL)
    ),
    "minmax": Case(lambda: MinMaxMetric(MeanSquaredError()), (SCORE, TRUTH), relative=QUOTIENT),
    "multioutput": Case(
        lambda: MultioutputWrapper(MeanSquaredError(), 2, squeeze_outputs=False),
        (torch.stack([SCORE, TRUTH], dim=1), torch.stack([TRUTH, WEIGHT], dim=1)),
        relative=QUOTIENT,
    ),
    "on_host": Case(lambda: BinaryAUROC(compute_on_cpu=True), (SCORE, (LABEL > 0).long())),
}

# the rank that sees each batch: even, very uneven, first, middle or several ranks without any
OWNERS = {
    1: [[0] * 15],
    2: [[0, 1] * 7 + [0], [0] + [1] * 14, [1] * 15],
    3: [[0, 2, 0] + [2] * 12, [1] * 15, [2, 1, 0] * 5],
    4: [[0] + [1] * 3 + [3] * 11, [2] * 15, [3, 2, 1, 0, 0] * 3],
}
PARTITIONS = [(size, owners) for size, choices in OWNERS.items() for owners in choices]


def made(case):
    metric = case.make()
    for node in metric.modules():
        if isinstance(node, Metric):
            node.set_dtype(torch.float64)
    return metric


def feed(metric, case, batches):
    for batch in batches:
        metric.update(*(values[batch * BATCH : (batch + 1) * BATCH] for values in case.inputs))


def plain(value):
    """The value as numpy arrays, which travel between processes by copy."""
    match value:
        case torch.Tensor():
            return value.numpy()
        case dict():
            return {name: plain(item) for name, item in value.items()}
    return value


def as_bits(value):
    if isinstance(value, dict):
        return {name: as_bits(item) for name, item in value.items()}
    return (value.dtype, value.shape, value.tobytes())


def assert_close(got, expected, case):
    if isinstance(expected, dict):
        assert got.keys() == expected.keys()
        for name in expected:
            assert_close(got[name], expected[name], case)
    else:
        assert got == pytest.approx(expected, rel=case.relative, abs=case.absolute)


def one_pass(case):
    metric = made(case)
    feed(metric, case, range(NUM_BATCHES))
    return plain(metric.compute())


def local_state(metric):
    nodes = [node for node in metric.modules() if isinstance(node, Metric)]
    states = [{name: getattr(node, name) for name in node._defaults} for node in nodes]
    return [node._update_count for node in nodes], bytes(pack(states, CPU).numpy())


def merged_values(world, owners):
    values = {}
    for name, case in CASES.items():
        metric = made(case)
        mine = [batch for batch, owner in enumerate(owners) if owner == world.rank]
        feed(metric, case, mine[:1])
        metrics.compute(metric, world)  # computing half-way must not disturb the accumulation
        feed(metric, case, mine[1:])
        before = local_state(metric)
        merged = metrics.compute(metric, world)
        assert local_state(metric) == before, name
        assert merged.findings == (), name
        values[name] = plain(merged.value)
    return values


@pytest.mark.parametrize(("size", "owners"), PARTITIONS)
def test_any_partition_over_ranks_gives_the_value_of_one_pass(size, owners):
    first, *others = worlds.run(size, merged_values, owners=owners)
    for name, case in CASES.items():
        expected = one_pass(case)
        if name == "minmax":  # remembers every compute, and the ranks have computed half-way
            assert_close(first[name]["raw"], expected["raw"], case)
        else:
            assert_close(first[name], expected, case)
        for other in others:
            assert as_bits(other[name]) == as_bits(first[name]), name


def cat_values(world, owners):
    metric = CatMetric().set_dtype(torch.float64)
    feed(metric, Case(CatMetric, (SCORE,)), [b for b, owner in enumerate(owners) if owner == world.rank])
    return plain(metrics.compute(metric, world).value)


@pytest.mark.parametrize(("size", "owners"), PARTITIONS[1:])
def test_lists_are_joined_in_rank_order(size, owners):
    batches = SCORE.split(BATCH)
    by_rank = [batches[b] for rank in range(size) for b, owner in enumerate(owners) if owner == rank]
    for value in worlds.run(size, cat_values, owners=owners):
        assert value.tolist() == torch.cat(by_rank).tolist()


@pytest.mark.parametrize("name", ["accuracy", "f1", "auroc", "mse", "r2", "pearson", "weighted_mean"])
def test_averaging_the_values_of_ranks_is_visibly_wrong(name):
    # negative control for the equality above: the difference is far beyond any tolerance used there
    case = CASES[name]
    values = []
    for batches in (range(2), range(2, NUM_BATCHES)):
        metric = made(case)
        feed(metric, case, batches)
        values.append(float(metric.compute()))
    assert abs(sum(values) / 2 - float(one_pass(case))) > 0.005


def minmax_history(world):
    metric = MinMaxMetric(SumMetric())
    values = []
    for step in (5.0, -9.0, 1.0):
        if world.rank == world.size - 1:
            metric.update(step)
        values.append({name: float(v) for name, v in metrics.compute(metric, world).value.items()})
    return values


def test_a_wrapper_that_remembers_its_values_remembers_the_merged_ones():
    for values in worlds.run(3, minmax_history):
        assert values[-1] == {"raw": -3.0, "max": 5.0, "min": -4.0}


def tracked(world):
    tracker = MetricTracker(SumMetric(), maximize=True)
    values = []
    for epoch in (1.0, 2.0):
        tracker.increment()
        if world.rank == 0:
            tracker.update(epoch)
        merged = metrics.compute(tracker, world)
        assert merged.findings == ()
        values.append(float(merged.value))
    return values


def test_a_tracker_gives_the_merged_value_of_its_last_metric():
    assert worlds.run(2, tracked) == [[1.0, 2.0]] * 2


def stored_halfway(world, owners):
    stored = {}
    for name, case in CASES.items():
        metric = made(case)
        feed(metric, case, [b for b, owner in enumerate(owners[:8]) if owner == world.rank])
        stored[name] = state_of(metric, world)
    return bytes(pack(stored, CPU).numpy())


def resumed(world, owners, stored):
    values, on_reset = {}, {}
    tree = unpack(torch.frombuffer(bytearray(stored), dtype=torch.uint8))
    for name, case in CASES.items():
        metric = made(case)
        feed(metric, case, [0])  # what was there before must not count
        load_state(metric, tree[name], world)
        feed(metric, case, [8 + b for b, owner in enumerate(owners[8:]) if owner == world.rank])
        again = made(case)
        load_state(again, state_of(metric, world), world)  # a checkpoint of a resumed run
        values[name] = plain(metrics.compute(again, world).value)
        again.reset()
        on_reset[name] = metrics.compute(again, world).value
    return values, on_reset


@pytest.mark.parametrize(("before", "after"), [(1, 3), (4, 2), (3, 1), (2, 4)])
def test_a_state_goes_on_in_a_world_of_another_size(before, after):
    stored = worlds.run(before, stored_halfway, owners=OWNERS[before][-1])
    assert len(set(stored)) == 1
    for values, on_reset in worlds.run(after, resumed, owners=OWNERS[after][0], stored=stored[0]):
        for name, case in CASES.items():
            assert_close(values[name], one_pass(case), case)
        assert set(on_reset.values()) == {None}


def loaded_everywhere(world):
    metric = SumMetric()
    if world.is_first:
        metric.update(3.0)
    state = state_of(metric, world)
    load_state(metric, state, world)
    right = float(metrics.compute(metric, world).value)
    metric.sum_value = state["."]["parts"][0]["states"]["sum_value"]
    return right, float(metrics.compute(metric, world).value)


def test_a_merged_state_loaded_on_every_rank_would_count_once_a_rank():
    # negative control; and a state restored without its update count is still not taken for empty
    assert worlds.run(3, loaded_everywhere) == [(3.0, 9.0)] * 3


def test_the_state_of_another_metric_is_refused():
    (message,) = worlds.run(1, foreign_state)
    assert "sum_value" in message
    assert "max_value" in message


def foreign_state(world):
    metric = SumMetric()
    metric.update(1.0)
    try:
        load_state(MaxMetric(), state_of(metric, world), world)
    except CheckpointError as error:
        return str(error)


class MeanState(Metric):
    """A metric that cannot be merged exactly: it keeps a mean without its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("level", torch.zeros(()), dist_reduce_fx="mean")

    def update(self, values: torch.Tensor) -> None:
        self.level = values.mean()

    def compute(self) -> torch.Tensor:
        return self.level


def mean_state(world, rows):
    metric = MeanState()
    if world.rank < len(rows):
        metric.update(torch.tensor(rows[world.rank]))
    merged = metrics.compute(metric, world)
    return float(merged.value), [(f.cause, f.evidence["updates"]) for f in merged.findings]


def test_a_mean_without_weights_is_a_finding():
    for value, findings in worlds.run(3, mean_state, rows=[[0.0], [3.0, 3.0, 3.0]]):
        assert value == 1.5  # by updates; the mean over the four examples is 2.25
        assert findings == [("metric-not-mergeable", [1, 1])]


def test_a_mean_of_equal_values_is_no_finding():
    assert worlds.run(3, mean_state, rows=[[3.0], [3.0, 3.0]]) == [(3.0, [])] * 3


def running_sum(world):
    metric = Running(SumMetric(), window=2)
    for value in range(3 if world.rank == 1 else 0):
        metric.update(float(value))
    merged = metrics.compute(metric, world)
    return float(merged.value), [f.cause for f in merged.findings]


def test_a_window_over_updates_is_a_finding():
    assert worlds.run(2, running_sum) == [(3.0, ["metric-depends-on-world"])] * 2


def never_updated(world):
    merged = metrics.compute(MulticlassAccuracy(NUM_CLASSES), world)
    pair = MetricCollection({"a": SumMetric(), "b": SumMetric()}, compute_groups=False)
    pair["a"].update(1.0)
    partly = metrics.compute(pair, world)
    return (
        merged.value,
        [f.cause for f in merged.findings],
        float(partly.value["a"]),
        [(f.cause, f.evidence["metric"]) for f in partly.findings],
    )


@pytest.mark.parametrize("size", [1, 2])
def test_a_metric_that_nobody_updated_has_no_value_and_a_finding(size):
    cause = "metric-never-updated"
    expected = (None, [cause], float(size), [(cause, "SumMetric at 'b'")])
    assert worlds.run(size, never_updated) == [expected] * size


class Shapeless(Metric):
    """A state whose shape is that of the inputs, and one whose elements are anything."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros(()), dist_reduce_fx="sum")
        self.add_state("things", [], dist_reduce_fx=None)

    def update(self, total: torch.Tensor, thing: Any) -> None:
        self.total = self.total + total
        self.things.append(thing)

    def compute(self) -> tuple[torch.Tensor, list[Any]]:
        return self.total, self.things


def refusal(world, fault):
    metric = Shapeless()
    match fault:
        case "shape":
            metric.update(torch.ones(2 + world.rank), 1)
        case "kind":
            metric.update(torch.ones(2), object() if world.rank == 1 else 1)
        case "class" if world.rank == 1:
            metric = SumMetric()
        case "synced":
            metric.update(torch.ones(2), torch.ones(1))
            metric.sync()
    try:
        metrics.compute(metric, world)
    except (ConfigError, ReplicaError) as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("shape", ["ReplicaError", "'total' of Shapeless", "(2,)", "(3,)"]),
        ("kind", ["ConfigError", "rank 1", "object"]),
        ("class", ["ReplicaError", "Rank 1", "SumMetric", "Shapeless"]),
        ("synced", ["ConfigError", "unsync"]),
    ],
)
def test_what_cannot_be_merged_is_refused_on_every_rank(fault, words):
    messages = worlds.run(2, refusal, fault=fault)
    assert messages[0] == messages[1]
    for word in words:
        assert word in messages[0]


def things(world):
    metric = Shapeless()
    for number in range(world.rank):
        metric.update(torch.zeros(()) if world.rank == 1 else torch.ones(2), (f"rank {world.rank}", number))
    total, things = metrics.compute(metric, world).value
    return total.tolist(), things


def test_untouched_scalars_and_lists_of_plain_values_merge():
    expected = ([2.0, 2.0], [("rank 1", 0), ("rank 2", 0), ("rank 2", 1)])
    assert worlds.run(3, things) == [expected] * 3
