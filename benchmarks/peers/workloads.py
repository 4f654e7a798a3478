"""The six trainings that are timed, small enough for two cores, each dominated by something else."""

import time
from collections.abc import Iterable
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, Optimizer
from torch.utils.data import Dataset

from benchmarks.models import cnn, mlp
from benchmarks.peers.job import Batch, Job

NAMES = {
    "cnn": "CNN with batch norm",
    "tiny": "tiny MLP",
    "heavy": "25M parameters",
    "transformer": "transformer, weight = tokens",
    "clouds": "point clouds, weight = points",
    "slow": "slow data set",
}
_VOCABULARY = 256
_NUM_PARTS = 4
_WAIT_S = 0.001


def workload(name: str, *, quick: bool) -> Job:
    """The job of that name; the quick one has the same shape and next to no work."""
    job: Job = _ALL[name](quick)
    return job


def sgd(parameters: Iterable[Tensor]) -> Optimizer:
    return SGD(parameters, lr=1e-3, momentum=0.9, fused=True)


def adam(parameters: Iterable[Tensor]) -> Optimizer:
    return Adam(parameters, lr=1e-4, fused=True)


class Rows(Dataset[Any]):
    """Random inputs and classes in a data set as people write them; `wait_s` is that of a slow disk."""

    def __init__(
        self, number: int, shape: tuple[int, ...], num_classes: int, *, distinct: int, wait_s: float = 0.0
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        self._inputs = torch.randn(distinct, *shape, generator=generator)
        self._classes = torch.randint(num_classes, (distinct,), generator=generator)
        self._number = number
        self._wait_s = wait_s

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self._wait_s:
            time.sleep(self._wait_s)
        row = index % len(self._inputs)
        return self._inputs[row], self._classes[row]


def _classification(**settings: Any) -> Job:
    return Job(
        make_optimizer=settings.pop("make_optimizer", sgd),
        total=lambda model, batch: cross_entropy(model(batch[0]), batch[1], reduction="sum"),
        mean=lambda model, batch: cross_entropy(model(batch[0]), batch[1]),
        weight=lambda batch: len(batch[1]),
        **settings,
    )


def _cnn(quick: bool) -> Job:
    batch_size = 8 if quick else 64
    return _classification(
        make_model=partial(cnn, batch_norm=True),
        dataset=Rows(batch_size * 64, (3, 32, 32), 10, distinct=batch_size * 16),
        batch_size=batch_size,
    )


def _tiny(quick: bool) -> Job:
    return _classification(
        make_model=partial(mlp, 16, 32, 4), dataset=Rows(32 * 512, (16,), 4, distinct=1024), batch_size=32
    )


def _heavy(quick: bool) -> Job:
    widths = (64, 128, 10) if quick else (1024, 4096, 4096, 1024, 10)
    return _classification(
        make_model=partial(mlp, *widths),
        make_optimizer=adam,
        dataset=Rows(32 * 64, widths[:1], 10, distinct=1024),
        batch_size=32,
    )


def _slow(quick: bool) -> Job:
    wait_s = _WAIT_S / 10 if quick else _WAIT_S
    data = Rows(32 * 256, (16,), 4, distinct=1024, wait_s=wait_s)
    return _classification(make_model=partial(mlp, 16, 32, 4), dataset=data, batch_size=32, workers=2)


class _Texts(Dataset[Any]):
    """Rows of tokens, filled up with zeros behind their end."""

    def __init__(self, number: int, length: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self._tokens = torch.randint(1, _VOCABULARY, (number, length + 1), generator=generator)
        lengths = torch.randint(length // 8, length + 1, (number, 1), generator=generator)
        self._tokens *= torch.arange(length + 1) <= lengths

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._tokens[index, :-1], self._tokens[index, 1:]


class _Transformer(nn.Module):
    """Two layers that guess the next token."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, width)
        self.position = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, _VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.layers(self.embedding(tokens) + self.position, mask=self.mask, is_causal=True)
        scores: Tensor = self.head(hidden)
        return scores


def _token_losses(model: nn.Module, batch: Batch, reduction: str) -> Tensor:
    scores = model(batch[0])
    return cross_entropy(scores.flatten(0, 1), batch[1].flatten(), ignore_index=0, reduction=reduction)


def _transformer(quick: bool) -> Job:
    width, length, batch_size = (16, 8, 8) if quick else (128, 64, 32)
    return Job(
        make_model=partial(_Transformer, width, length),
        make_optimizer=adam,
        dataset=_Texts(batch_size * 64, length),
        batch_size=batch_size,
        total=partial(_token_losses, reduction="sum"),
        mean=partial(_token_losses, reduction="mean"),
        weight=lambda batch: (batch[1] != 0).sum(),
        is_weighted=True,
    )


class _Clouds(Dataset[Any]):
    """Clouds of some points each, and for each point the part that it belongs to."""

    def __init__(self, number: int, most: int) -> None:
        generator = torch.Generator().manual_seed(0)
        sizes = torch.randint(most // 8, most + 1, (number,), generator=generator).tolist()
        points = torch.randn(sum(sizes), 3, generator=generator)
        parts = (points[:, 0] > 0).long() * 2 + (points[:, 1] > 0).long()
        self._clouds = list(zip(points.split(sizes), parts.split(sizes), strict=True))

    def __len__(self) -> int:
        return len(self._clouds)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._clouds[index]


def _joined(clouds: list[tuple[Tensor, Tensor]]) -> Batch:
    """All points one after the other, and where each cloud ends."""
    ends = torch.tensor(list(accumulate(len(points) for points, _ in clouds)))
    return torch.cat([points for points, _ in clouds]), torch.cat([parts for _, parts in clouds]), ends


class _PointNet(nn.Module):
    """Looks at each point, and at the mean of its cloud."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.points = mlp(3, width, width)
        self.head = mlp(2 * width, width, _NUM_PARTS)

    def forward(self, points: Tensor, ends: Tensor) -> Tensor:
        features = self.points(points)
        cloud_of = torch.bucketize(torch.arange(len(points)), ends, right=True)
        sizes = torch.diff(ends, prepend=ends.new_zeros(1))
        sums = features.new_zeros(len(ends), features.shape[1]).index_add(0, cloud_of, features)
        scores: Tensor = self.head(torch.cat([features, (sums / sizes[:, None])[cloud_of]], 1))
        return scores


def _point_losses(model: nn.Module, batch: Batch, reduction: str) -> Tensor:
    points, parts, ends = batch
    return cross_entropy(model(points, ends), parts, reduction=reduction)


def _clouds(quick: bool) -> Job:
    width, most, batch_size = (8, 32, 8) if quick else (64, 512, 32)
    return Job(
        make_model=partial(_PointNet, width),
        make_optimizer=sgd,
        dataset=_Clouds(batch_size * 64, most),
        batch_size=batch_size,
        total=partial(_point_losses, reduction="sum"),
        mean=partial(_point_losses, reduction="mean"),
        weight=lambda batch: len(batch[1]),
        is_weighted=True,
        collate=_joined,
    )


_ALL = {
    "cnn": _cnn,
    "tiny": _tiny,
    "heavy": _heavy,
    "transformer": _transformer,
    "clouds": _clouds,
    "slow": _slow,
}
