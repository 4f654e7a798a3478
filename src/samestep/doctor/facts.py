"""Facts: what one machine offers to ranks that exchange with others, found out without torch.

Knows where Linux writes such things down. Judges nothing; what cannot be found out is None.
"""

import contextlib
import os
import platform
import resource
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from samestep import __version__
from samestep.launch.cores import Cores
from samestep.launch.machine import address_at, addresses, gpus_at, interface_at, threads_per_rank
from samestep.launcher import Seat

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  only looked at
_INFINIBAND = Path("/sys/class/infiniband")
_PACKAGES = ("torch", "numpy")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """One machine, as one of the processes on it sees it; counts and bytes, None for no limit.

    `node` is equal for processes on one machine and in one network. `interfaces` are those with an address;
    `interface` is the one that leads to the others, `gloo` and `nccl` what the user chose in its place.
    """

    host: str
    node: str
    address: str
    interface: str | None
    interfaces: dict[str, str]
    gloo: str | None
    nccl: str | None
    has_infiniband: bool
    versions: dict[str, str]
    num_gpus: int
    num_cores: int
    threads_asked: int | None
    threads: int
    open_files: int | None
    locked_bytes: int | None
    processes: int | None
    shared_memory_bytes: int | None

    @property
    def chosen(self) -> str | None:
        """The interface that gloo takes."""
        return self.gloo or self.interface

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "Facts":
        """From what another machine sent, whose Samestep may know more."""
        return cls(**{name: value for name, value in fields.items() if name in cls.__dataclass_fields__})


def facts_here(seat: Seat, *, ranks: int, env: Mapping[str, str] = os.environ) -> Facts:
    """The machine that this process is on, where `ranks` ranks are to run for each process like it."""
    asked = env.get("OMP_NUM_THREADS", "")
    return Facts(
        host=platform.node(),
        node=node_here(),
        address=address_at(seat),
        interface="lo" if seat.count == 1 else interface_at(seat),
        interfaces=addresses(),
        gloo=env.get("GLOO_SOCKET_IFNAME"),
        nccl=env.get("NCCL_SOCKET_IFNAME"),
        has_infiniband=_INFINIBAND.is_dir() and any(_INFINIBAND.iterdir()),
        versions=_versions(),
        num_gpus=len(gpus_at(seat, ranks, env)),
        num_cores=Cores().num,
        threads_asked=int(asked) if asked.isdecimal() else None,
        threads=threads_per_rank(ranks * seat.local_count, None, env),
        open_files=_limit(resource.RLIMIT_NOFILE),
        locked_bytes=_limit(resource.RLIMIT_MEMLOCK),
        processes=_limit(resource.RLIMIT_NPROC),
        shared_memory_bytes=_free(_SHARED_MEMORY),
    )


def node_here() -> str:
    """Equal for all processes on one machine and in one network: containers may each have their own."""
    return " ".join((platform.node(), _text(_BOOT), _network()))


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "samestep": __version__}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _network() -> str:
    try:
        return str(_NETWORK.readlink())
    except OSError:
        return ""


def _limit(which: int) -> int | None:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def _free(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
