"""One step in a hand-written loop: exact weights, penalties, unused parameters, two optimizers, refusals."""

from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.utils.data import Dataset

import worlds

SIZES = (1, 2, 3, 4)
DTYPE = torch.float64


class Sentences(Dataset[Tensor]):
    """Texts of very different lengths: example i has 1 + i² mod 17 tokens."""

    def __len__(self) -> int:
        return 13

    def __getitem__(self, index: int) -> Tensor:
        generator = torch.Generator().manual_seed(index)
        return torch.randint(0, 9, (2 + index * index % 17,), generator=generator)


class Clouds(Dataset[tuple[Tensor, Tensor]]):
    """Point clouds of very different sizes, with a label at every point."""

    def __len__(self) -> int:
        return 13

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(index)
        points = torch.randn(1 + index**2 % 19, 3, generator=generator, dtype=DTYPE)
        return points, (points.sum(1) > 0).long()


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 5)
        self.out = nn.Linear(5, 9)
        self.to(DTYPE)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.tanh(self.embed(tokens)))


class PointNet(nn.Module):
    """A norm over all points of all clouds: counts differ by rank."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 6)
        self.norm = nn.BatchNorm1d(6)
        self.out = nn.Linear(6, 2)
        self.to(DTYPE)

    def forward(self, clouds: list[Tensor]) -> Tensor:
        return self.out(torch.tanh(self.norm(self.inner(torch.cat(clouds)))))


def pad(examples: list[Tensor]) -> Tensor:
    return nn.utils.rnn.pad_sequence(examples, batch_first=True, padding_value=-1)


def clouds(examples: list[tuple[Tensor, Tensor]]) -> tuple[list[Tensor], Tensor]:
    return [points for points, _ in examples], torch.cat([labels for _, labels in examples])


def token_loss(model: nn.Module, tokens: Tensor) -> tuple[Tensor, Tensor]:
    targets = tokens[:, 1:]
    logits = model(tokens[:, :-1].clamp(min=0))
    loss = nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum"
    )
    return loss, (targets >= 0).sum()


def point_loss(model: nn.Module, batch: tuple[list[Tensor], Tensor]) -> tuple[Tensor, int]:
    points, labels = batch
    return nn.functional.cross_entropy(model(points), labels, reduction="sum"), len(labels)


PROBLEMS: dict[str, Any] = {
    "tokens": (Language, Sentences, pad, token_loss),
    "points": (PointNet, Clouds, clouds, point_loss),
}


def train(world, problem: str, steps_of: str = "samestep", accumulate: int = 1) -> dict[str, Tensor]:
    """Two epochs of 13 examples in batches of 5, the last of 3; the weights at the end.

    `steps_of="mean of means"` averages the means of the ranks, as plain data parallelism does.
    """
    make, dataset, collate, loss = PROBLEMS[problem]
    torch.manual_seed(1)
    model = world.replicate(make())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    loader = world.loader(dataset(), batch_size=5, collate=collate, accumulate=accumulate)
    for _ in range(2):
        for batch in loader:
            if steps_of == "samestep":
                with world.step(optimizer) as step:
                    step.backward(*loss(model, batch))
            else:
                optimizer.zero_grad()
                loss_sum, weight = loss(model, batch)
                (loss_sum / weight).backward()
                for parameter in model.parameters():
                    world.sum_(parameter.grad).wait()
                    parameter.grad /= world.size
                optimizer.step()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def largest(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    return max(
        float(
            (a[name].double() - b[name].double()).abs().max() / b[name].double().abs().max().clamp(min=1e-30)
        )
        for name in b
    )


@pytest.mark.parametrize("problem", PROBLEMS)
def test_tokens_and_points_weigh_alike_wherever_they_are(problem: str) -> None:
    reference = worlds.run(1, train, problem=problem)[0]
    for size in SIZES[1:]:
        ranks = worlds.run(size, train, problem=problem)
        assert largest(ranks[0], reference) < 1e-12
        assert all(largest(rank, ranks[0]) == 0 for rank in ranks), "replicas drifted apart"


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_mean_of_means_is_visibly_wrong(problem: str) -> None:
    reference = worlds.run(1, train, problem=problem)[0]
    assert largest(worlds.run(2, train, problem=problem, steps_of="mean of means")[0], reference) > 1e-2


@pytest.mark.parametrize("size", SIZES)
def test_accumulation_counts_tokens_too(size: int) -> None:
    if size > 2:
        with pytest.raises(worlds.RankFailed, match="batch_size is 5 in 2 turns"):
            worlds.run(size, train, problem="tokens", accumulate=2)
        return
    whole = worlds.run(1, train, problem="tokens")[0]
    assert largest(worlds.run(size, train, problem="tokens", accumulate=2)[0], whole) < 1e-12


def gradient(world, penalty: bool, by_hand: bool = False) -> tuple[Tensor, float]:
    """The gradient that the optimizer sees on batches of 10 and then of 3, with an L2 penalty or not."""
    torch.manual_seed(1)
    model = world.replicate(nn.Linear(3, 1).to(DTYPE))
    seen: list[Tensor] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: seen.append(model.weight.grad.clone()))
    data = torch.randn(13, 3, generator=torch.Generator().manual_seed(5), dtype=DTYPE)
    for batch in world.loader(data, batch_size=10, shuffle=False):
        with world.step(optimizer) as step:
            decay = model.weight.square().sum() * 3 if penalty else None
            loss = model(batch).square().sum()
            if by_hand and penalty:
                # the fault: a penalty inside the sum of losses counts once a rank
                step.backward(loss + decay * len(batch), len(batch) if not world.is_idle else 0)
            else:
                step.backward(loss, len(batch), decay)
    return torch.stack(seen), step.totals.loss


@pytest.mark.parametrize("penalty", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_gradients_and_penalty(size: int, penalty: bool) -> None:
    torch.manual_seed(1)
    model = nn.Linear(3, 1).to(DTYPE)
    data = torch.randn(13, 3, generator=torch.Generator().manual_seed(5), dtype=DTYPE)
    expected = []
    weights = model.weight
    for batch in (data[:10], data[10:]):
        model.zero_grad()
        loss = model(batch).square().mean() + (weights.square().sum() * 3 if penalty else 0)
        loss.backward()
        expected.append(weights.grad.clone())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
    for seen, _ in worlds.run(size, gradient, penalty=penalty):
        assert torch.allclose(seen, torch.stack(expected), rtol=1e-12, atol=1e-14)


class Forked(nn.Module):
    """Uses `left` for some examples and `right` for others, and `never` for none."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.never = nn.Linear(2, 1), nn.Linear(2, 1), nn.Linear(2, 1)
        self.to(DTYPE)

    def forward(self, x: Tensor) -> Tensor:
        first = x[:, 0] > 0
        total = x.new_zeros(())
        if first.any():
            total = total + self.left(x[first]).square().sum()
        if (~first).any():
            total = total + self.right(x[~first]).square().sum()
        return total


def forked(world) -> dict[str, Tensor | None]:
    torch.manual_seed(2)
    model = world.replicate(Forked())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    data = torch.tensor([[1.0, 2], [2, 1], [3, 1], [-1, 2], [-2, 2], [-3, 1]], dtype=DTYPE)
    for _ in range(3):
        for batch in world.loader(data, batch_size=6, shuffle=False):
            with world.step(optimizer) as step:
                step.backward(model(batch), len(batch))
    return {name: p.detach().clone() for name, p in model.named_parameters()} | {
        "has gradient": torch.tensor([p.grad is not None for p in model.parameters()])
    }


@pytest.mark.parametrize("size", SIZES[1:])
def test_parameters_that_only_some_ranks_use(size: int) -> None:
    # rank 0 of 2 sees only `left`, rank 1 only `right`: buckets must not wait for each other
    reference = worlds.run(1, forked)[0]
    assert reference["has gradient"].tolist() == [True] * 4 + [False] * 2
    for rank in worlds.run(size, forked):
        assert largest(rank, reference) < 1e-12


def adversaries(world) -> dict[str, Tensor]:
    """Two models, two optimizers, each backward passing through both models."""
    torch.manual_seed(3)
    maker = world.replicate(nn.Linear(2, 3).to(DTYPE))
    judge = world.replicate(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(DTYPE))
    make_step = torch.optim.Adam(maker.parameters(), lr=0.01)
    judge_step = torch.optim.Adam(judge.parameters(), lr=0.02)
    data = torch.randn(11, 2, generator=torch.Generator().manual_seed(5), dtype=DTYPE)
    for _ in range(2):
        for batch in world.loader(data, batch_size=4):
            with world.step(judge_step) as step:
                step.backward(judge(maker(batch).detach()).square().sum(), len(batch))
            with world.step(make_step) as step:
                step.backward(-judge(maker(batch)).sum(), len(batch))
    return {
        f"{i}.{n}": p.detach().clone() for i, m in enumerate((maker, judge)) for n, p in m.named_parameters()
    }


def test_two_models_and_two_optimizers() -> None:
    reference = worlds.run(1, adversaries)[0]
    for size in SIZES[1:]:
        assert largest(worlds.run(size, adversaries)[0], reference) < 1e-12


def half(world, explode: bool) -> tuple[list[float], dict[str, Tensor]]:
    """fp16 with a scaler; the third batch overflows on the rank that holds example 8, and nowhere else."""
    torch.manual_seed(3)
    model = world.replicate(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    data = torch.randn(20, 2, generator=torch.Generator().manual_seed(5))
    if explode:
        data[8] = float("inf")
    scales = []
    for batch in world.loader(data, batch_size=4, shuffle=False):
        with world.step(optimizer, scaler=scaler) as step, torch.autocast("cpu", torch.float16):
            step.backward(model(batch).float().square().sum(), len(batch))
        scales.append(scaler.get_scale())
    return scales, {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("explode", [False, True])
def test_the_scaler_decides_once_for_all_ranks(explode: bool) -> None:
    scales, reference = worlds.run(1, half, explode=explode)[0]
    assert scales == ([256.0] * 2 + [128.0] * 3 if explode else [256.0] * 5)
    # autocast rounds four things of a step to half precision that depend on how the batch is cut (output,
    # its gradient, and the two partial parameter gradients); 5 steps add up
    bound = 5 * 4 * torch.finfo(torch.float16).eps
    for size in SIZES[1:]:
        for rank_scales, weights in worlds.run(size, half, explode=explode):
            assert rank_scales == scales
            assert largest(weights, reference) < bound


def misuse(world, case: str) -> None:
    model = world.replicate(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(4, 2)
    with world.step(optimizer) as step:
        if case == "vector":
            step.backward(model(x).squeeze(1), 4)
        if case == "no weight":
            step.backward(model(x).sum())
        if case == "number":
            step.backward(3.0, 4)
        if case == "negative":
            step.backward(model(x).sum(), -1)
        if case == "detached":
            step.backward(model(x).sum().detach(), 4)
        if case == "twice":
            step.backward(model(x).sum(), 4)
            step.backward(model(x).sum(), 4)


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("vector", r"tensor of shape \(4,\)"),
        ("no weight", "without the sum of weights"),
        ("number", "is 3.0, not a tensor"),
        ("negative", "must be 0 or more"),
        ("detached", "does not depend on any parameter"),
        ("twice", "called twice"),
        ("never", "without a call of step.backward"),
    ],
)
def test_a_loss_that_is_no_scalar_pair_is_refused(case: str, sentence: str) -> None:
    with pytest.raises(worlds.RankFailed, match=sentence) as failure:
        worlds.run(1, misuse, case=case)
    assert failure.value.kind == "LossError"


def checkpointed(world, use_reentrant: bool, shared: bool) -> dict[str, Tensor]:
    """Two blocks under activation checkpointing; with `shared`, both are the same module."""
    torch.manual_seed(4)
    first = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.3), nn.Tanh())
    second = first if shared else nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Tanh())
    model = world.replicate(nn.ModuleList([first, second]).to(DTYPE))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(13, 3, generator=torch.Generator().manual_seed(5), dtype=DTYPE)
    for batch in world.loader(data, batch_size=5):
        x = batch.clone().requires_grad_()
        with world.step(optimizer) as step:
            for block in model:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=use_reentrant)
            step.backward(x.square().sum(), len(batch))
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing(use_reentrant: bool) -> None:
    reference = worlds.run(1, checkpointed, use_reentrant=use_reentrant, shared=False)[0]
    for size in (2, 4):
        result = worlds.run(size, checkpointed, use_reentrant=use_reentrant, shared=False)[0]
        assert largest(result, reference) < 1e-12


def test_a_gradient_that_comes_too_late_is_refused() -> None:
    """Reentrant checkpointing of a shared module runs backward into its parameters twice."""
    whole = worlds.run(1, checkpointed, use_reentrant=False, shared=True)[0]
    assert largest(worlds.run(2, checkpointed, use_reentrant=False, shared=True)[0], whole) < 1e-12
    with pytest.raises(worlds.RankFailed, match="use_reentrant=False"):
        worlds.run(2, checkpointed, use_reentrant=True, shared=True)
