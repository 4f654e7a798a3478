"""What this machine offers to ranks: GPUs, cores, a free port, a way to others; found out without torch."""

import contextlib
import fcntl
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

from samestep.errors import LaunchError
from samestep.launcher import Seat

_DRIVER = Path("/proc/driver/nvidia/gpus")
_SIOCGIFADDR = 0x8915
_ELSEWHERE = "192.0.2.1"
"""An address of no machine (RFC 5737): the way towards it is that to other machines."""


def count_gpus(env: Mapping[str, str] = os.environ) -> int:
    """The number of NVIDIA GPUs that a process started from here would see.

    As CUDA reads it, the list in CUDA_VISIBLE_DEVICES ends at the first entry that is not a device.
    """
    return len(visible_gpus(env))


def visible_gpus(env: Mapping[str, str] = os.environ) -> list[str]:
    """The same GPUs by the names that CUDA_VISIBLE_DEVICES knows them by."""
    present = present_gpus()
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is None or present == 0:
        return [str(number) for number in range(present)]
    seen: list[str] = []
    for entry in visible.split(","):
        name = entry.strip()
        is_device = (name.isdecimal() and int(name) < present) or name.startswith(("GPU-", "MIG-"))
        if not is_device or name in seen:
            break
        seen.append(name)
    return seen


def present_gpus() -> int:
    """NVIDIA GPUs of this machine, as far as its driver shows them to us, whether we may use them or not."""
    if _DRIVER.is_dir():
        return sum(1 for _ in _DRIVER.iterdir())
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0
    try:
        listing = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=20, check=True).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in listing.splitlines())


def gpus_at(seat: Seat, ranks: int, env: Mapping[str, str] = os.environ) -> list[str]:
    """The GPUs that are for the `ranks` ranks of this seat, where others on the machine see the same ones."""
    seen = visible_gpus(env)
    if len(seen) < ranks * seat.local_count:
        return seen  # the launcher gave each of its processes their own
    return seen[ranks * seat.local_index :][:ranks]


def address_at(seat: Seat) -> str:
    """The name under which the others of a run reach this machine."""
    return seat.address if seat.is_first else _source_towards(seat.address)


def interface_at(seat: Seat) -> str | None:
    """The network interface through which this machine reaches the others of a run."""
    source = _source_towards(seat.address)
    if source.startswith("127.") and seat.address != "localhost" and not seat.address.startswith("127."):
        source = _source_towards(_ELSEWHERE)  # many systems call themselves 127.0.1.1
    return next((name for name, address in addresses().items() if address == source), None)


def addresses() -> dict[str, str]:
    """The network interfaces of this machine that have an address (IPv4), and that address."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                found[name] = socket.inet_ntoa(fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24])
    return found


def _source_towards(address: str) -> str:
    """Which of its addresses this machine sends from; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError:
            return socket.gethostname()
        return str(probe.getsockname()[0])


def check_ranks(ranks: int, gpus: int) -> None:
    """Refuse a number of ranks that this machine's GPUs cannot take; without GPUs any number will do."""
    if ranks < 1:
        raise LaunchError(f"{ranks} ranks were asked for; a run needs at least 1: use --gpus 1 or more.")
    if 0 < gpus < ranks:
        raise LaunchError(
            f"{ranks} ranks were asked for on this machine, which has {gpus} GPU{'s' * (gpus > 1)} to use: "
            f"ask for at most {gpus}, or hide the GPUs (CUDA_VISIBLE_DEVICES=) to use CPU ranks."
        )


def threads_per_rank(parts: int, asked: int | None, env: Mapping[str, str] = os.environ) -> int:
    """Threads of each rank: as asked, as OMP_NUM_THREADS says, or one of `parts` equal parts of the cores."""
    if asked is not None:
        return asked
    if env.get("OMP_NUM_THREADS", "").isdecimal():
        return max(1, int(env["OMP_NUM_THREADS"]))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // parts)


def requeue_code(env: Mapping[str, str] = os.environ) -> int:
    """The exit code that means "start me again": HTCondor's own below it, elsewhere EX_TEMPFAIL."""
    return 85 if "_CONDOR_JOB_AD" in env or "_CONDOR_SCRATCH_DIR" in env else 75


def free_port(asked: int | None = None) -> int:
    """The port at which the ranks meet: the one asked for, if it is free, or any that is."""
    if asked is not None and not 0 < asked < 65536:
        raise LaunchError(f"Port {asked} was asked for; ports go from 1 to 65535: choose one of those.")
    with socket.socket() as probe:
        # The ranks' own listener sets this too: a port that only waits out its last connection is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", asked or 0))
            probe.listen()
        except OSError as error:
            raise LaunchError(
                f"The ranks were to meet at port {asked}, which cannot be used ({error.strerror}): "
                "choose another --port, or leave it out and a free one is picked."
            ) from None
        return int(probe.getsockname()[1])
