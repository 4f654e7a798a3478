"""The peers by name. Each is loaded only in a process of its own: their global states do not mix."""

from importlib import import_module
from importlib.util import find_spec

from benchmarks.peers.libraries.base import Library

_HOME = {
    "samestep": ("with_samestep", "WithSamestep"),
    "ddp": ("by_hand", "ByHand"),
    "accelerate": ("with_accelerate", "WithAccelerate"),
    "fabric": ("with_fabric", "WithFabric"),
    "trainer": ("with_trainer", "WithTrainer"),
    "ray": ("with_ray", "WithRay"),
    "deepspeed": ("with_deepspeed", "WithDeepSpeed"),
}
TITLES = {
    "samestep": "Samestep",
    "ddp": "DDP by hand",
    "accelerate": "Accelerate",
    "fabric": "Fabric",
    "trainer": "Lightning",
    "ray": "Ray Train",
    "deepspeed": "DeepSpeed",
}
"""For the heads of tables."""
PACKAGES = {"samestep": "samestep", "ddp": "torch", "fabric": "lightning", "trainer": "lightning"}
"""What has to be installed, where it has another name."""
NOT_RUN = {
    "Composer": "mosaicml 0.32.1 asks for torch < 2.7.1 and cannot be installed beside torch 2.13",
    "Horovod": "horovod 0.28.1 does not build with torch 2.13 as it is released: its CMake files have to be "
    "changed by hand",
}


def load(name: str) -> type[Library]:
    """The class of the library of that name."""
    module, class_name = _HOME[name]
    found: type[Library] = getattr(import_module(f"{__name__}.{module}"), class_name)
    return found


def package_of(name: str) -> str:
    return PACKAGES.get(name, name)


def installed() -> list[str]:
    """Those that are there, in the order of the table."""
    return [name for name in _HOME if find_spec(package_of(name)) is not None]
