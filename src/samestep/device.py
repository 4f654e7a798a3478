"""The lines that differ between kinds of device: which one a rank gets, its backend, its generator.

With `world.py` this is the only module that may ask what kind of device it runs on. Everything else
works on a `torch.device` that it was handed.
"""

import ctypes
import os
import platform
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from samestep.errors import LaunchError

_MALLOC_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


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


def keep_freed_memory() -> None:
    """Have this process keep memory that tensors on the host free, up to a gigabyte, for those to come.

    The same tensors come and go in every step. glibc hands their memory back to the system and asks for it
    again, page by page, which can take a tenth of a step. Whoever set its limits by hand is left alone.
    """
    if any(name in os.environ for name in _MALLOC_VARIABLES):
        return
    with suppress(OSError, AttributeError):  # another C library has no such call, or a setting of its own
        set_limit = ctypes.CDLL(None).mallopt
        set_limit(_M_MMAP_THRESHOLD, 32 << 20)  # as far as glibc goes
        set_limit(_M_TRIM_THRESHOLD, 1 << 30)


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


def kind_of(device: torch.device) -> dict[str, str | None]:
    """What decides about the bits of a kernel's result: the kind of device and the libraries made for it."""
    if device.type == "cuda":
        return {
            "device": torch.cuda.get_device_name(device),
            "cuda": torch.version.cuda,
            "cudnn": str(torch.backends.cudnn.version()),
        }
    return {"device": f"cpu {_processor()}", "instructions": torch.backends.cpu.get_cpu_capability()}


def exchange_versions(device: torch.device) -> dict[str, str]:
    """The versions of what exchanges tensors on `device`, beyond torch's own."""
    if device.type == "cuda":
        return {"nccl": ".".join(map(str, torch.cuda.nccl.version())), "cuda": str(torch.version.cuda)}
    return {}


def hardware_of(device: torch.device) -> dict[str, str | int | None]:
    """What decides how fast a rank on `device` is; None is what the system does not tell."""
    of_host: dict[str, str | int | None] = {"processor": _processor(), "cores": os.cpu_count()}
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        clock_khz = getattr(about, "clock_rate", None)  # not known to every torch
        clock_mhz = clock_khz // 1000 if clock_khz else None
        own = {"device": about.name, "memory_bytes": about.total_memory, "clock_limit_mhz": clock_mhz}
        return own | of_host
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else None
    return of_host | {"memory_bytes": pages, "clock_limit_mhz": _clock_limit_mhz()}


def _clock_limit_mhz() -> int | None:
    """What the first core may run at, where the system tells."""
    try:
        return int(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq").read_text()) // 1000
    except (OSError, ValueError):
        return None


def _processor() -> str:
    """The name of the processor, where the system tells."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def is_host(device: torch.device) -> bool:
    """Whether tensors of the host are on `device` already."""
    return device.type == "cpu"


def is_on_host(tensor: torch.Tensor) -> bool:
    """Whether the value of `tensor` can be read without waiting for a device."""
    return tensor.is_cpu


def wants_pinned_memory(device: torch.device) -> bool:
    """Whether batches get to `device` faster from memory that cannot be moved."""
    return device.type != "cpu"


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def beside(device: torch.device) -> AbstractContextManager[Any]:
    """Inside, what is given to `device` does not make that wait which is given to it outside."""
    return torch.cuda.stream(_side_stream(device)) if device.type == "cuda" else nullcontext()


def catch_up(device: torch.device) -> None:
    """Have what comes wait for what was begun `beside`."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).wait_stream(_side_stream(device))


class Spares:
    """Memory for what comes and goes every step, kept between two uses.

    The allocator of a device does this by itself, in the order of its streams. That of the host gives large
    pieces back to the system, and to get one again costs more than to fill it.
    """

    def __init__(self) -> None:
        self._pieces: list[torch.Tensor] = []

    def take(self, like: torch.Tensor) -> torch.Tensor:
        """A flat tensor of bytes as long as `like`, on its device; what is in it is anything."""
        fitting = [i for i, piece in enumerate(self._pieces) if piece.numel() >= like.numel()]
        if fitting:
            return self._pieces.pop(min(fitting, key=lambda i: self._pieces[i].numel()))[: like.numel()]
        if self._pieces:
            self._pieces.pop()
        return torch.empty_like(like)

    def give_back(self, tensors: Iterable[torch.Tensor]) -> None:
        """What was taken will not be used any more, once that is done which was begun with it here."""
        for tensor in tensors:
            if is_on_host(tensor):
                self._pieces.append(tensor if tensor._base is None else tensor._base)
            elif tensor.device.type == "cuda":
                tensor.record_stream(torch.cuda.current_stream(tensor.device))


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
