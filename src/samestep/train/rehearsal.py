"""Rehearsal: one shard is run twice before training, to see whether the same comes out.

What differs, though weights, examples and random streams are the same, would differ between worlds and after
a crash too: kernels that add in any order, modules with a generator of their own, code that reads the clock.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

Print = tuple[int, ...]
"""What a module's outputs or a gradient looked like: equal bits have equal prints."""


def rehearse(model: nn.Module, run: Callable[[], Tensor], *, outputs: bool = True) -> str | None:
    """Run forward and backward twice and name what came out differently, or None.

    `run` sets the random streams and returns the loss. Gradients are thrown away; buffers are the caller's.
    With `outputs`, those of each module are looked at, so that the first one is named.
    """
    first, second = (_prints(model, run, outputs=outputs) for _ in range(2))
    if [name for name, _ in first] != [name for name, _ in second]:
        return "the modules that ran"
    return next((name for (name, a), (_, b) in zip(first, second, strict=True) if a != b), None)


def _prints(model: nn.Module, run: Callable[[], Tensor], *, outputs: bool) -> list[tuple[str, Print]]:
    prints: list[tuple[str, Print]] = []
    with _watched(model, prints) if outputs else nullcontext():
        loss = run()
    prints.append(("the loss", _print(loss)))
    loss.backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            prints.append((f"the gradient of {name}", _print(parameter.grad)))
            parameter.grad = None
    return prints


@contextmanager
def _watched(model: nn.Module, prints: list[tuple[str, Print]]) -> Iterator[None]:
    def note(name: str, kind: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            prints.append((f"the output of {name or 'the model'} ({kind})", _print(output)))

        return hook

    handles = [
        module.register_forward_hook(note(name, type(module).__name__))
        for name, module in model.named_modules()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _print(output: Any) -> Print:
    tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
    return tuple(number for tensor in tensors for number in (tensor.numel(), _sum_of_bits(tensor)))


_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _sum_of_bits(tensor: Tensor) -> int:
    """The bits of all elements, added up as whole numbers: exact in any order."""
    dense = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    dense = torch.view_as_real(dense) if dense.is_complex() else dense
    return int(dense.contiguous().view(_WHOLE[dense.element_size()]).sum(dtype=torch.int64))
