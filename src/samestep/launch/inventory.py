"""Inventory: what this machine is made of, so that two can be told apart; found out without torch.

Knows where Linux and NVIDIA's driver write down models and sizes. What they do not tell is None, or missing.
"""

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from samestep.launch.machine import present_gpus, visible_gpus

_CPU = Path("/proc/cpuinfo")
_DRIVER = Path("/proc/driver/nvidia/gpus")
_CPU_MODEL = re.compile(r"^(?:model name|Hardware|cpu model)\s*:\s*(.+)$", re.MULTILINE)
_GPU_MODEL = re.compile(r"^Model:\s*(.+)$", re.MULTILINE)
_GPU_UUID = re.compile(r"^GPU UUID:\s*(\S+)$", re.MULTILINE)


def inventory() -> dict[str, Any]:
    """For a record: the processor, the memory, how many GPUs there are, and models of those we may use."""
    models = gpu_models(visible_gpus())
    return {
        "cpu_model": cpu_model(),
        "memory_bytes": memory_bytes(),
        "gpus_per_node": present_gpus(),
        "gpu_models": dict(Counter(models)),
    }


def cpu_model(cpuinfo: Path = _CPU) -> str | None:
    """As the processor calls itself."""
    try:
        found = _CPU_MODEL.search(cpuinfo.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return " ".join(found[1].split()) if found else None


def memory_bytes() -> int | None:
    """Of the whole machine."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def gpu_models(names: Sequence[str], driver: Path | None = None) -> list[str]:
    """The models of GPUs by the names that CUDA_VISIBLE_DEVICES knows them by; none if one is not known.

    Numbers are those of CUDA_DEVICE_ORDER=PCI_BUS_ID, which is the order of the driver's folders.
    """
    known: dict[str, str] = {}
    try:
        for number, folder in enumerate(sorted((driver or _DRIVER).iterdir())):
            text = (folder / "information").read_text(encoding="utf-8", errors="replace")
            if model := _GPU_MODEL.search(text):
                uuid = _GPU_UUID.search(text)
                known |= {str(number): model[1].strip()} | ({uuid[1]: model[1].strip()} if uuid else {})
    except OSError:
        return []
    found = [known.get(name, "") for name in names]
    return found if all(found) else []
