"""Evaluating: chosen modules run their forward passes in evaluation mode, and are put back after each."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle


class Evaluating:
    """Calls modules that `is_chosen` says yes to as if `eval()` had been called on them, not on their parts.

    Before and after the call they are in training mode, as they were.
    """

    def __init__(self, is_chosen: Callable[[nn.Module], bool]) -> None:
        self._is_chosen = is_chosen
        self._handles: list[RemovableHandle] = []
        self._changed: list[nn.Module] = []

    def install(self) -> None:
        self._handles = [
            register_module_forward_pre_hook(self._before),
            register_module_forward_hook(self._after, always_call=True),
        ]

    def uninstall(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if module.training and self._is_chosen(module):
            module.training = False
            self._changed.append(module)

    def _after(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if self._changed and self._changed[-1] is module:
            self._changed.pop()
            module.training = True
