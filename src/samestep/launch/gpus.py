"""GPUs: their names, clock limits, use and energy as NVIDIA's driver tells them, without torch or CUDA.

It needs the package nvidia-ml-py (`pynvml`); without it, or without a driver, there are no GPUs here. What a
device does not tell is None. Devices are numbered as CUDA does with CUDA_DEVICE_ORDER=PCI_BUS_ID; on a
machine with GPUs of different models CUDA may number them otherwise.
"""

import contextlib
import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Look(NamedTuple):
    """One device at one time; `busy` from 0 to 1, over what its driver samples."""

    busy: float | None
    power_w: float | None


class Gpu:
    """One device, from now on."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self.busy: list[float] = []
        """Of all looks so far."""
        name = self._ask("nvmlDeviceGetName")
        self.name = name.decode() if isinstance(name, bytes) else str(name or "unknown")
        self.clock_limit_mhz = self._clock_limit()
        self._energy_at_first = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        self._energy_by_power_j: float | None = None

    def look(self, seconds: float) -> Look:
        """Its state; `seconds` have passed since the last look."""
        rates, power = self._ask("nvmlDeviceGetUtilizationRates"), self._ask("nvmlDeviceGetPowerUsage")
        busy = None if rates is None else rates.gpu / 100
        power_w = None if power is None else power / 1000
        if busy is not None:
            self.busy.append(busy)
        if power_w is not None:
            self._energy_by_power_j = (self._energy_by_power_j or 0.0) + power_w * seconds
        return Look(busy, power_w)

    def energy_j(self) -> float | None:
        """Since it is watched: by its counter, or, where it has none, by its power at each look."""
        counted = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        if counted is None or self._energy_at_first is None:
            return self._energy_by_power_j
        return float(counted - self._energy_at_first) / 1000

    def close(self) -> None:
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def _clock_limit(self) -> int | None:
        """What its owner has set it to; else the fastest that it can do."""
        kind = self._nvml.NVML_CLOCK_SM
        for function in ("ApplicationsClock", "MaxCustomerBoostClock", "MaxClockInfo"):
            found = self._ask(f"nvmlDeviceGet{function}", kind)
            if found is not None:
                return int(found)
        return None

    def _ask(self, function: str, *more: object) -> Any:
        call: Callable[..., Any] | None = getattr(self._nvml, function, None)
        if call is None:
            return None
        try:
            return call(self._handle, *more)
        except self._nvml.NVMLError:
            return None


def gpus_of(visible: Sequence[str]) -> list[Gpu]:
    """The GPUs of these names, as CUDA_VISIBLE_DEVICES has them; none if any cannot be asked."""
    if not visible:
        return []
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return []
    try:
        nvml.nvmlInit()
        handles = [
            nvml.nvmlDeviceGetHandleByIndex(int(name))
            if name.isdecimal()
            else nvml.nvmlDeviceGetHandleByUUID(name)
            for name in visible
        ]
    except nvml.NVMLError:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()
        return []
    return [Gpu(nvml, handle) for handle in handles]
