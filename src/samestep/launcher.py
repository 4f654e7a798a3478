"""Launcher: who started this process, as which of how many, and where they can meet, by its variables.

Knows the variables of torchrun (and of whatever sets the same, such as Ray Train), of Kubernetes' PyTorchJob
and TrainJob, of Slurm's srun and of Open MPI's and MPICH's mpirun. Starts nothing and knows no torch. A
process that was started alone has no seat: it is for itself.
"""

import contextlib
import re
import socket
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from samestep.errors import LaunchError

_FIRST_PORT, _NUM_PORTS = 15_000, 15_000
"""Where processes meet that were told no port: below those that the system hands out by itself."""
_HERE = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Seat:
    """One of `count` processes that a launcher started, `local_count` of them on this machine.

    All can reach the first at `address`. With `has_store` the launcher keeps a torch store at `port`,
    otherwise the port is for the first process to use.
    """

    launcher: str
    index: int
    count: int
    local_index: int
    local_count: int
    address: str
    port: int
    has_store: bool = False
    num_ranks: int | None = None
    """How many ranks the launcher means its processes to start together, where it says."""

    @classmethod
    def alone(cls, port: int) -> "Seat":
        """The seat of a process that nobody started beside others."""
        return cls(launcher="none", index=0, count=1, local_index=0, local_count=1, address=_HERE, port=port)

    @property
    def is_first(self) -> bool:
        return self.index == 0

    def __str__(self) -> str:
        return f"process {self.index} of {self.count} under {self.launcher}"

    def check_meeting(self) -> None:
        """Refuse a launcher that did not say where to meet."""
        for name, is_set in (("MASTER_ADDR", bool(self.address)), ("MASTER_PORT", self.port > 0)):
            if not is_set:
                raise LaunchError(
                    f"{self} has others to meet, but {name} is not set: set it to where the first of them "
                    "is, the same for all, or start the ranks with torchrun."
                )

    def as_torchrun_says(self) -> dict[str, str]:
        """The same in the variables that torch reads."""
        return {
            "RANK": str(self.index),
            "WORLD_SIZE": str(self.count),
            "LOCAL_RANK": str(self.local_index),
            "LOCAL_WORLD_SIZE": str(self.local_count),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
        }


def seat_in(env: Mapping[str, str]) -> Seat | None:
    """The seat that the variables describe, or None for a process that was started alone."""
    for known, read in _LAUNCHERS.items():
        if known in env:
            seat = read(env)
            if not 0 <= seat.index < seat.count:
                raise LaunchError(
                    f"{seat.launcher} says that this is process {seat.index} of {seat.count}; "
                    "the number must be below the count."
                )
            return seat if seat.count > 1 else None
    return None


def ranks_of_pod(env: Mapping[str, str]) -> int | None:
    """The ranks that the only pod of a Kubernetes job is to start; None where nothing says so."""
    if "PET_NNODES" not in env or "TORCHELASTIC_RUN_ID" in env:
        return None
    seat = _by_kubeflow(env)
    return seat.num_ranks if seat.count == 1 else None


def whole(env: Mapping[str, str], name: str, default: int) -> int:
    """A variable that the launcher sets to a whole number."""
    text = env.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise LaunchError(
            f"{name} is {text!r} in the environment; the launcher must set it to a whole number."
        ) from None


def first_host(nodes: str) -> str:
    """The first machine of a Slurm list such as `gpu[003-010,12],login1`."""
    match = re.match(r"([^\[,]*)(?:\[(\w+)[^\]]*\]([^\[,]*))?", nodes)
    return "".join(part or "" for part in match.groups()) if match else nodes


def hosts_in(nodes: str) -> list[str]:
    """All machines of such a list, in order."""
    hosts: list[str] = []
    for before, numbers, after in re.findall(r"([^\[,]+)(?:\[([^\]]*)\]([^\[,]*))?", nodes):
        for part in numbers.split(","):
            first, _, last = part.partition("-")
            span = range(int(first), int(last or first) + 1) if first.isdecimal() else ()
            hosts += [f"{before}{number:0{len(first)}d}{after}" for number in span] or [before]
    return hosts


def host_of(index: int, env: Mapping[str, str]) -> str | None:
    """The machine that another process of this launcher should be on, where its variables tell.

    Slurm's do, for tasks that fill node after node, as they do unless told otherwise.
    """
    if "RANK" in env:
        return None
    hosts = hosts_in(env.get("SLURM_STEP_NODELIST", ""))
    counts = _tasks(env.get("SLURM_STEP_TASKS_PER_NODE", ""))
    places = [host for host, count in zip(hosts, counts, strict=False) for _ in range(count)]
    return places[index] if index < len(places) else None


def _by_torchrun(env: Mapping[str, str]) -> Seat:
    is_torchrun = "TORCHELASTIC_RUN_ID" in env
    if "PET_NNODES" in env and not is_torchrun:
        return _by_kubeflow(env)
    index, count = whole(env, "RANK", 0), whole(env, "WORLD_SIZE", 1)
    is_ray = "RAY_JOB_ID" in env
    is_kubernetes = "KUBERNETES_SERVICE_HOST" in env and not is_ray
    known = {"torchrun": is_torchrun, "Ray": is_ray, "Kubernetes": is_kubernetes}
    return Seat(
        launcher=next((name for name, is_it in known.items() if is_it), "environment"),
        index=index,
        count=count,
        local_index=whole(env, "LOCAL_RANK", 0 if is_kubernetes else index),
        local_count=whole(env, "LOCAL_WORLD_SIZE", 1 if is_kubernetes else count),
        address=env.get("MASTER_ADDR", ""),
        port=whole(env, "MASTER_PORT", 0),
        has_store=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _by_kubeflow(env: Mapping[str, str]) -> Seat:
    """A pod of a PyTorchJob or TrainJob, which means torchrun to be started in it and speaks of pods."""
    pods, per_pod = env["PET_NNODES"], env.get("PET_NPROC_PER_NODE", "")
    if not pods.isdecimal() or "PET_NODE_RANK" not in env:
        raise LaunchError(
            f"PET_NNODES is {pods}, and PET_NODE_RANK {env.get('PET_NODE_RANK', 'not set')}: this job may "
            "have more or fewer pods as it goes on, which only torchrun can follow. Start "
            "`torchrun --no-python samestep …` in its pods, or leave out its elasticPolicy."
        )
    count = int(pods)
    return Seat(
        launcher="Kubernetes",
        index=whole(env, "PET_NODE_RANK", 0),
        count=count,
        local_index=0,
        local_count=1,
        address=env.get("PET_MASTER_ADDR") or env.get("MASTER_ADDR", ""),
        port=whole(env, "PET_MASTER_PORT" if "PET_MASTER_PORT" in env else "MASTER_PORT", 0),
        num_ranks=count * int(per_pod) if per_pod.isdecimal() else None,  # else "auto", "gpu" or "cpu"
    )


def _by_srun(env: Mapping[str, str]) -> Seat:
    nodes = first_host(env.get("SLURM_STEP_NODELIST", env.get("SLURM_JOB_NODELIST", "")))
    tasks = env.get("SLURM_STEP_TASKS_PER_NODE", "1")
    number = 31 * whole(env, "SLURM_JOB_ID", 0) + whole(env, "SLURM_STEP_ID", 0)
    return Seat(
        launcher="srun",
        index=whole(env, "SLURM_PROCID", 0),
        count=whole(env, "SLURM_STEP_NUM_TASKS", 1),
        local_index=whole(env, "SLURM_LOCALID", 0),
        local_count=_tasks_on(tasks, whole(env, "SLURM_NODEID", 0)),
        address=env.get("MASTER_ADDR") or _reachable(nodes, env.get("SLURM_LAUNCH_NODE_IPADDR", _HERE)),
        port=whole(env, "MASTER_PORT", _FIRST_PORT + number % _NUM_PORTS),
    )


def _by_mpirun(names: tuple[str, str, str, str]) -> Callable[[Mapping[str, str]], Seat]:
    index, count, local_index, local_count = names

    def read(env: Mapping[str, str]) -> Seat:
        size = whole(env, count, 1)
        local_size = whole(env, local_count, size)
        if local_size < size and "MASTER_ADDR" not in env:
            raise LaunchError(
                f"mpirun started {size} processes on several machines, and MASTER_ADDR does not say where "
                "they can meet: add `-x MASTER_ADDR=FIRST` (MPICH: `-genv MASTER_ADDR FIRST`) to mpirun, "
                "where FIRST is the name of the first machine."
            )
        job = env.get("PMIX_NAMESPACE") or env.get("PMI_ID") or env.get("HYDI_CONTROL_FD", "")
        return Seat(
            launcher="mpirun",
            index=whole(env, index, 0),
            count=size,
            local_index=whole(env, local_index, whole(env, index, 0)),
            local_count=local_size,
            address=env.get("MASTER_ADDR", _HERE),
            port=whole(env, "MASTER_PORT", _FIRST_PORT + zlib.crc32(job.encode()) % _NUM_PORTS),
        )

    return read


_OPEN_MPI = (
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)
_MPICH = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")

# The variable that only a process of this launcher has, innermost launcher first. Slurm's batch script has
# SLURM_PROCID and SLURM_NTASKS as well, but no step's number of tasks: it is one process for itself.
_LAUNCHERS: Mapping[str, Callable[[Mapping[str, str]], Seat]] = {
    "RANK": _by_torchrun,
    "WORLD_SIZE": _by_torchrun,
    "PET_NNODES": _by_kubeflow,
    _OPEN_MPI[0]: _by_mpirun(_OPEN_MPI),
    "SLURM_STEP_NUM_TASKS": _by_srun,
    _MPICH[0]: _by_mpirun(_MPICH),
}


def _tasks_on(tasks: str, node: int) -> int:
    """The tasks of one node in Slurm's short form, such as `2(x3),1`."""
    counts = _tasks(tasks)
    return counts[node] if node < len(counts) else 1


def _tasks(tasks: str) -> list[int]:
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks):
        counts += [int(count)] * int(times or 1)
    return counts


def _reachable(name: str, otherwise: str) -> str:
    """The name of a machine if it leads anywhere."""
    with contextlib.suppress(OSError, UnicodeError):
        if name and socket.getaddrinfo(name, None):
            return name
    return otherwise
