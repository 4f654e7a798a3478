"""Every criterion keeps the meaning that its mean has on one device, however the batch is cut.

All in float64. Two ways of adding the same n numbers differ by at most about n·eps relative to the sum of
their sizes (Higham, Accuracy and Stability, 4.2); n is at most 7·3·4·5 here, and losses of both signs occur,
so the sum of absolute losses is the scale: TOLERANCE = 500 · 2.2e-16 ≈ 1e-13, times that scale, which is
below 100.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import samestep
from samestep.errors import ConfigError, LossError
from samestep.losses import supervised

TOLERANCE = 500 * torch.finfo(torch.float64).eps * 100
N, CLASSES = 7, 5
PIECES = ((0, 1), (1, 1), (1, 3), (3, 7))  # uneven, and one of them empty

generator = torch.Generator().manual_seed(1)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def uniform(*shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=generator) * 0.8 + 0.1


def classes(*shape: int) -> Tensor:
    return torch.randint(CLASSES, shape, generator=generator)


def signs(*shape: int) -> Tensor:
    return torch.randint(2, shape, generator=generator).double() * 2 - 1


def ignoring(target: Tensor, index: int) -> Tensor:
    target = target.clone()
    flat = target.view(-1)
    flat[0] = flat[1] = flat[5::5] = index
    return target


W = uniform(CLASSES)
VECTORS, MAPS = normal(N, CLASSES), normal(N, CLASSES, 3, 4)
PROBABILITIES, MAP_PROBABILITIES = uniform(N, CLASSES).softmax(1), uniform(N, CLASSES, 3, 4).softmax(1)
LABELS, PIXELS = classes(N), classes(N, 3, 4)


@dataclass
class Case:
    criterion: nn.Module
    outputs: Any
    target: Tensor
    call: Callable[..., Tensor] = lambda criterion, outputs, target: criterion(outputs, target)
    uneven: bool = False
    """Its weight is not proportional to the number of examples, so even equal pieces cannot be averaged."""


CASES = {
    "ce": Case(nn.CrossEntropyLoss(), VECTORS, LABELS),
    "ce weight": Case(nn.CrossEntropyLoss(weight=W), VECTORS, LABELS, uneven=True),
    "ce ignore": Case(
        nn.CrossEntropyLoss(ignore_index=2), VECTORS, torch.tensor([2, 2, 0, 1, 3, 4, 0]), uneven=True
    ),
    "ce ignore outside": Case(nn.CrossEntropyLoss(weight=W), VECTORS, ignoring(LABELS, -100), uneven=True),
    "ce smoothing": Case(nn.CrossEntropyLoss(label_smoothing=0.1), VECTORS, LABELS),
    "ce everything": Case(
        nn.CrossEntropyLoss(weight=W, ignore_index=1, label_smoothing=0.1),
        VECTORS,
        ignoring(LABELS, 1),
        uneven=True,
    ),
    "ce spatial": Case(nn.CrossEntropyLoss(weight=W), MAPS, ignoring(PIXELS, -100), uneven=True),
    "ce spatial smoothing": Case(
        nn.CrossEntropyLoss(weight=W, label_smoothing=0.2), MAPS, ignoring(PIXELS, -100), uneven=True
    ),
    "ce probabilities": Case(nn.CrossEntropyLoss(), VECTORS, PROBABILITIES),
    "ce probabilities all": Case(nn.CrossEntropyLoss(weight=W, label_smoothing=0.1), VECTORS, PROBABILITIES),
    "ce spatial probabilities": Case(nn.CrossEntropyLoss(weight=W), MAPS, MAP_PROBABILITIES),
    "nll": Case(nn.NLLLoss(), VECTORS.log_softmax(1), LABELS),
    "nll everything": Case(
        nn.NLLLoss(weight=W, ignore_index=3), MAPS.log_softmax(1), ignoring(PIXELS, 3), uneven=True
    ),
    "mse": Case(nn.MSELoss(), VECTORS, normal(N, CLASSES)),
    "mse one number": Case(nn.MSELoss(), normal(N), normal(N)),
    "l1": Case(nn.L1Loss(), MAPS, normal(N, CLASSES, 3, 4)),
    "smooth l1": Case(nn.SmoothL1Loss(beta=0.5), VECTORS, normal(N, CLASSES)),
    "huber": Case(nn.HuberLoss(delta=0.7), VECTORS, normal(N, CLASSES)),
    "bce": Case(nn.BCELoss(), uniform(N, CLASSES), uniform(N, CLASSES)),
    "bce weight": Case(nn.BCELoss(weight=W), uniform(N, CLASSES), uniform(N, CLASSES)),
    "bce logits": Case(nn.BCEWithLogitsLoss(weight=W, pos_weight=W * 3), VECTORS, uniform(N, CLASSES)),
    "poisson": Case(nn.PoissonNLLLoss(full=True), VECTORS, classes(N, CLASSES).double()),
    "gaussian": Case(
        nn.GaussianNLLLoss(full=True),
        (VECTORS, uniform(N, 1)),
        normal(N, CLASSES),
        call=lambda criterion, outputs, target: criterion(outputs[0], target, outputs[1]),
    ),
    "kl mean": Case(nn.KLDivLoss(reduction="mean"), VECTORS.log_softmax(1), PROBABILITIES),
    "kl batchmean": Case(nn.KLDivLoss(reduction="batchmean"), VECTORS.log_softmax(1), PROBABILITIES),
    "kl log": Case(
        nn.KLDivLoss(reduction="batchmean", log_target=True), VECTORS.log_softmax(1), PROBABILITIES.log()
    ),
    "soft margin": Case(nn.SoftMarginLoss(), VECTORS, signs(N, CLASSES)),
    "hinge embedding": Case(nn.HingeEmbeddingLoss(), VECTORS, signs(N, CLASSES)),
    "multi margin": Case(nn.MultiMarginLoss(weight=W), VECTORS, LABELS),
    "multi label margin": Case(nn.MultiLabelMarginLoss(), VECTORS, torch.tensor([[1, 3, -1, 0, 2]] * N)),
    "multi soft margin": Case(nn.MultiLabelSoftMarginLoss(weight=W), VECTORS, uniform(N, CLASSES).round()),
    "cosine embedding": Case(
        nn.CosineEmbeddingLoss(margin=0.1),
        (VECTORS, normal(N, CLASSES)),
        signs(N),
        call=lambda criterion, outputs, target: criterion(*outputs, target),
    ),
    "margin ranking": Case(
        nn.MarginRankingLoss(margin=0.1),
        (normal(N), normal(N)),
        signs(N),
        call=lambda criterion, outputs, target: criterion(*outputs, target),
    ),
}  # fmt: skip


class Given(nn.Module):
    """A model that returns its input."""

    def forward(self, *inputs: Any) -> Any:
        return inputs[0] if len(inputs) == 1 else inputs


def part(value: Any, first: int, last: int) -> Any:
    return tuple(v[first:last] for v in value) if isinstance(value, tuple) else value[first:last]


def pieces(case: Case, loss: Callable[..., samestep.Loss]) -> list[samestep.Loss]:
    return [loss(Given(), (part(case.outputs, *p), case.target[slice(*p)])) for p in PIECES]


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_sum_over_weight_is_the_mean_of_torch(name: str) -> None:
    case = CASES[name]
    before = dict(vars(case.criterion))
    loss = supervised(case.criterion)
    mean = case.call(case.criterion, case.outputs, case.target)

    whole = loss(Given(), (case.outputs, case.target))
    assert abs(whole.sum / whole.weight - mean) < TOLERANCE
    assert whole.outputs is case.outputs and whole.penalty is None

    cut = pieces(case, loss)
    merged = sum(piece.sum for piece in cut) / sum(piece.weight for piece in cut)
    assert abs(merged - mean) < TOLERANCE
    assert float(cut[0].sum + cut[1].sum) == float(cut[0].sum), "an empty piece adds nothing"

    means = [piece.sum / piece.weight for piece in cut if piece.weight > 0]
    assert abs(sum(means) / len(means) - mean) > 1e-4, "the mean of means would have done: a blunt case"
    assert vars(case.criterion) == before, "the user's criterion was changed"


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.uneven])
def test_equal_pieces_cannot_be_averaged_where_weights_differ(name: str) -> None:
    case = CASES[name]
    mean = case.criterion(case.outputs[:6], case.target[:6])
    halves = [case.criterion(case.outputs[i : i + 3], case.target[i : i + 3]) for i in (0, 3)]
    assert abs(sum(halves) / 2 - mean) > 1e-4


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_that_of_the_mean(name: str) -> None:
    case = CASES[name]
    first = case.outputs[0] if isinstance(case.outputs, tuple) else case.outputs
    gradients = []
    for whole in (True, False):
        leaf = first.clone().requires_grad_()
        outputs = (leaf, *case.outputs[1:]) if isinstance(case.outputs, tuple) else leaf
        fresh = Case(case.criterion, outputs, case.target)
        if whole:
            value = case.call(case.criterion, outputs, case.target)
        else:
            cut = pieces(fresh, supervised(case.criterion))
            value = sum(piece.sum for piece in cut) / sum(piece.weight for piece in cut)
        value.backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(gradients[0], gradients[1], atol=TOLERANCE, rtol=0)


@settings(max_examples=50, deadline=None)
@given(target=st.lists(st.sampled_from([-100, 0, 1, 2]), min_size=1, max_size=12), data=st.data())
def test_any_cut_of_any_weighted_batch_merges(target: list[int], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(target)))
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64))
    outputs = torch.linspace(-3, 3, len(target) * 3, dtype=torch.float64).sin().view(-1, 3)
    labels = torch.tensor(target)
    loss = supervised(criterion)
    left, right = (loss(Given(), (outputs[p], labels[p])) for p in (slice(cut), slice(cut, None)))
    merged = (left.sum + right.sum) / (left.weight + right.weight)
    torch.testing.assert_close(merged, criterion(outputs, labels), atol=TOLERANCE, rtol=0, equal_nan=True)


def test_dict_batches_and_several_inputs() -> None:
    batch = {"a": normal(4, 2), "b": normal(4, 2), "y": normal(4, 2)}

    class Add(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a + b

    for keys in (("a", "b"), ["a", "b"]):
        loss = supervised(nn.MSELoss(), inputs=keys, target="y")(Add(), batch)
        expected = nn.MSELoss()(batch["a"] + batch["b"], batch["y"])
        assert abs(loss.sum / loss.weight - expected) < TOLERANCE
    third = supervised(nn.MSELoss(), inputs=(0, 1), target=2)(Add(), tuple(batch.values()))
    assert float(third.sum) == float(loss.sum)


def test_functions_and_modules_of_losses_per_example() -> None:
    def squares(outputs: Tensor, target: Tensor) -> Tensor:
        return (outputs - target).square().sum(1)

    outputs, target = normal(4, 2), normal(4, 2)
    loss = supervised(squares)(Given(), (outputs, target))
    assert loss.weight == 4 and abs(loss.sum / 4 - squares(outputs, target).mean()) < TOLERANCE
    bare = supervised(nn.MSELoss(reduction="none"))(Given(), (outputs, target))
    assert bare.weight == 8 and abs(bare.sum - loss.sum) < TOLERANCE


def test_half_precision_losses_are_added_in_single() -> None:
    outputs = torch.full((300,), 300.0, dtype=torch.float16)
    assert not outputs.sum().isfinite() or outputs.sum() > 65000, "the control does not overflow"
    loss = supervised(lambda outputs, target: outputs)(Given(), (outputs, outputs))
    assert loss.sum.dtype == torch.float32 and float(loss.sum) == 90000


def test_a_subclass_that_changes_nothing_is_known_and_one_that_computes_is_not() -> None:
    class Same(nn.MSELoss):
        pass

    class Other(nn.MSELoss):
        def forward(self, input: Tensor, target: Tensor) -> Tensor:
            return super().forward(input, target).sqrt()

    assert supervised(Same())
    with pytest.raises(ConfigError, match=r"Other has reduction='mean'.*reduction=\"none\""):
        supervised(Other())


class Learned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))


@pytest.mark.parametrize(
    ("criterion", "message"),
    [
        (nn.MSELoss(reduction="sum"), "grows with the number of examples"),
        (nn.MSELoss, "give an instance"),
        (nn.CTCLoss(), "not known what that divides by"),
        (nn.TripletMarginLoss(), "not known what that divides by"),
        (Learned(), "has parameters"),
        ("mse", "give an instance"),
    ],
)
def test_criteria_that_are_refused(criterion: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        supervised(criterion)


@pytest.mark.filterwarnings("ignore:Using a target size:UserWarning")
@pytest.mark.parametrize(
    ("loss", "batch", "message"),
    [
        (
            supervised(nn.functional.cross_entropy),
            (VECTORS, LABELS),
            "cross_entropy returned a single number",
        ),
        (supervised(lambda outputs, target: [1.0]), (VECTORS, LABELS), "returned list"),
        (supervised(nn.MSELoss()), (normal(N), normal(N, 1)), "pairs each example with all the others"),
        (supervised(nn.BCELoss(weight=uniform(N))), (uniform(N), uniform(N)), "weighs places in the batch"),
        (
            supervised(nn.GaussianNLLLoss()),
            (VECTORS, VECTORS),
            "returned Tensor, but GaussianNLLLoss takes a tuple",
        ),
        (
            supervised(nn.MSELoss()),
            ({"logits": VECTORS}, VECTORS),
            "returned dict, but MSELoss takes a tensor",
        ),
        (supervised(nn.MSELoss(), target="y"), {"x": VECTORS}, "'y', but the batch is a dict with 'x'"),
        (supervised(nn.MSELoss(), target=2), (VECTORS, VECTORS), "at 2, but the batch is tuple of 2"),
        (
            supervised(nn.MSELoss(), inputs="x"),
            (VECTORS, VECTORS),
            "inputs of a batch were looked for at 'x'",
        ),
    ],
)
def test_batches_that_are_refused(loss: Callable[..., Any], batch: Any, message: str) -> None:
    with pytest.raises(LossError, match=message):
        loss(Given(), batch)
