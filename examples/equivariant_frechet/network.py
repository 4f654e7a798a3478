"""An equivariant network that takes noise away, and the pictures that it makes of nothing but noise."""

import sys
import types
import warnings

import torch
from torch import Tensor, nn

# escnn uses these two for rotations in space only; lie_learn's wheels want NumPy 1, py3nj a Fortran compiler
sys.modules.setdefault("lie_learn.representations.SO3.wigner_d", types.SimpleNamespace(wigner_D_matrix=None))
warnings.filterwarnings("ignore", "`py3nj` package not found")

from escnn import gspaces  # noqa: E402
from escnn import nn as equivariant  # noqa: E402
from escnn.nn.modules.basismanager.basisexpansion_blocks import BlocksBasisExpansion  # noqa: E402

TURNS = gspaces.rot2dOnR2(N=4)


class Denoiser(nn.Module):
    """From a noisy picture and its level of noise to the clean picture; turns with the picture."""

    def __init__(self, fields: int = 4) -> None:
        super().__init__()
        scalars = [TURNS.trivial_repr]
        kinds = [TURNS.regular_repr, TURNS.quotient_repr(2), TURNS.trivial_repr]
        self.given = equivariant.FieldType(TURNS, 2 * scalars)
        hidden = equivariant.FieldType(TURNS, [kind for kind in kinds for _ in range(fields)])
        made = equivariant.FieldType(TURNS, scalars)
        self.layers = nn.Sequential(
            equivariant.R2Conv(self.given, hidden, kernel_size=5, padding=2),
            equivariant.IIDBatchNorm2d(hidden),
            equivariant.ReLU(hidden),
            equivariant.R2Conv(hidden, made, kernel_size=5, padding=2),
        )

    def forward(self, noisy: Tensor, level: Tensor) -> Tensor:
        levels = level[:, :, None, None].expand_as(noisy)
        return self.layers(self.given(torch.cat([noisy, levels], dim=1))).tensor


def in_order(model: nn.Module) -> nn.Module:
    """The model, with the parts that escnn makes in the order of a set in that of their names."""
    for module in model.modules():
        if isinstance(module, BlocksBasisExpansion | equivariant.IIDBatchNorm2d):
            for parts in (module._modules, module._parameters, module._buffers):
                for name in sorted(parts):
                    parts[name] = parts.pop(name)
    return model


@torch.no_grad()
def generate(model: nn.Module, noise: Tensor, steps: int = 4) -> Tensor:
    """Pictures out of noise, a bit less noisy in each step."""
    picture = noise
    for step in range(steps):
        level = torch.full((len(noise), 1), 1 - step / steps, device=noise.device)
        clean = model(picture, level)
        picture = torch.lerp(picture, clean, 1 / (steps - step))
    return picture


def features(pictures: Tensor) -> Tensor:
    """What the Fréchet distance compares: nine numbers a picture, its coarse look."""
    return nn.functional.adaptive_avg_pool2d(pictures, 3).flatten(1)
