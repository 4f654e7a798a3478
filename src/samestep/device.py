"""The lines that differ between kinds of device: which one a rank gets, its backend, its generator.

With `world.py` this is the only module that may ask what kind of device it runs on. Everything else
works on a `torch.device` that it was handed.
"""

from typing import Any

import torch

from samestep.errors import LaunchError


def num_accelerators() -> int:
    """The number of GPUs that this process can see."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def device_of(local_rank: int, local_size: int) -> torch.device:
    """The device of a rank: its own GPU, or the CPU on a machine that has none."""
    available = num_accelerators()
    if available == 0:
        return torch.device("cpu")
    if local_size > available:
        raise LaunchError(
            f"{local_size} ranks were asked for on this machine, which has {available} GPUs: "
            f"ask for at most {available}, or hide the GPUs (CUDA_VISIBLE_DEVICES=) to use CPU ranks."
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def backend_of(device: torch.device) -> str:
    """The communication backends for tensors on `device` and for host-side tensors beside them."""
    return "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"


def generators_of(device: torch.device) -> list[torch.Generator]:
    """The default generators that a model on `device` can draw from."""
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index or 0])
    return generators


def name_of(device: torch.device) -> str:
    """What the device calls itself, for the record."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def is_on_host(tensor: torch.Tensor) -> bool:
    """Whether the value of `tensor` can be read without waiting for a device."""
    return tensor.device.type == "cpu"


def wants_pinned_memory(device: torch.device) -> bool:
    """Whether batches get to `device` faster from memory that cannot be moved."""
    return device.type != "cpu"


class Readback:
    """A small tensor on its way to the host, to be read later without waiting for what came after it."""

    __slots__ = ("_arrived", "_host")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        self._host = tensor
        if not is_on_host(tensor):
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def read(self) -> Any:
        """The number, or the list of numbers."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host.tolist()
