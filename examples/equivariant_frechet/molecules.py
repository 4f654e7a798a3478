"""Pictures of small molecules, drawn: three atoms in a bent chain, turned at random."""

import math

import torch
from torch import Tensor
from torch.utils.data import Dataset

SIZE = 12
_GRID = torch.stack(torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")).float()


def draw(number: int) -> Tensor:
    """The picture of a molecule, of shape (1, SIZE, SIZE); the same for the same number."""
    turn, bend, *shift = torch.rand(4, generator=torch.Generator().manual_seed(number)).tolist()
    middle = torch.tensor(shift) * 2 + SIZE / 2 - 1.5
    angle = 2 * math.pi * turn
    ends = [
        middle + 3 * torch.tensor([math.sin(a), math.cos(a)]) for a in (angle, angle + math.pi / 2 + bend)
    ]
    picture = torch.zeros(1, SIZE, SIZE)
    for weight, place in zip((1.0, 0.7, 0.4), [middle, *ends], strict=True):
        picture += weight * torch.exp(-(_GRID - place[:, None, None]).square().sum(0) / 2)
    return picture


class Noisy(Dataset):
    """Molecules to learn from: (picture, the same with noise of a random level, the level)."""

    def __init__(self, num: int) -> None:
        self.pictures = [draw(number) for number in range(num)]

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        picture, level = self.pictures[index], torch.rand(1)
        return picture, torch.lerp(picture, torch.randn_like(picture), level), level


class Held(Dataset):
    """Molecules to compare with: (picture, noise to make another one of)."""

    def __init__(self, num: int) -> None:
        self.pictures = [draw(1_000_000 + index) for index in range(num)]

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = torch.randn(1, SIZE, SIZE, generator=torch.Generator().manual_seed(index))
        return self.pictures[index], noise
