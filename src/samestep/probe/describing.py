"""Describing: what is written down of a model and its machine when it is first called."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from samestep.observed import Layer, Machine, Model, Wrap
from samestep.probe.naming import plain_name
from samestep.probe.summaries import tensors_in

MOST_LAYERS = 1000
MOST_TENSORS = 5000


def model_row(step: int, number: int, root: nn.Module, wraps: tuple[Wrap, ...]) -> Model:
    """A model with its norms, dropouts and tensors."""
    norms, dropouts, tensors = [], [], []
    for name, module in root.named_modules():
        kind, name = type(module).__name__, plain_name(name)
        keeps = isinstance(getattr(module, "running_mean", None), Tensor)
        if keeps or isinstance(module, _NormBase) or (kind.endswith(("Norm", "Norm1d", "Norm2d", "Norm3d"))):
            norms.append(Layer(name=name, kind=kind, keeps_statistics=keeps))
        elif isinstance(module, _DropoutNd) or "Dropout" in kind or "DropPath" in kind:
            p = getattr(module, "p", None)
            dropouts.append(Layer(name=name, kind=kind, p=float(p) if isinstance(p, int | float) else None))
    for name, tensor in (*root.named_parameters(), *root.named_buffers()):
        needs = " gradient" if tensor.requires_grad else ""
        tensors.append(f"{plain_name(name)} {str(tensor.dtype)[6:]} {tuple(tensor.shape)}{needs}")
    return Model(
        step=step,
        model=number,
        kind=type(root).__name__,
        wraps=wraps,
        norms=tuple(norms[:MOST_LAYERS]),
        dropouts=tuple(dropouts[:MOST_LAYERS]),
        tensors=tuple(tensors[:MOST_TENSORS]),
    )


def machine_row(tensor: Tensor | None) -> Machine:
    """The machine, and the device that the tensor is on."""
    return Machine(
        torch=torch.__version__,
        num_threads=torch.get_num_threads(),
        device="unknown" if tensor is None else str(tensor.device),
        is_deterministic=torch.are_deterministic_algorithms_enabled(),
        matmul_precision=torch.get_float32_matmul_precision(),
    )


def autocast_of(output: Any) -> str | None:
    """The dtype of autocast for the devices of an output; None where it is off."""
    kinds = {tensor.device.type for tensor in tensors_in(output)} or {"cpu"}
    on = [kind for kind in sorted(kinds) if torch.is_autocast_enabled(kind)]
    return str(torch.get_autocast_dtype(on[0])).removeprefix("torch.") if on else None
