"""Jobs: the states that a job can be in, whatever its engine calls them, and what its end is to be called.

Pure: engines hand over what they see, and this module says it in one way for all of them.
"""

from dataclasses import dataclass
from typing import Literal

from samestep.cluster.request import Needs, clock

State = Literal[
    "pending",
    "running",
    "finished",
    "failed",
    "stopped",
    "cancelled",
    "out of time",
    "out of memory",
    "node failed",
    "unknown",
]
OVER: frozenset[State] = frozenset(
    {"finished", "failed", "stopped", "cancelled", "out of time", "out of memory", "node failed"}
)
_MORE = 1.5
"""By what factor more is asked for where only the limit that was hit is known."""


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What an engine, or the job itself, tells of a job at one moment; times are seconds since 1970.

    `wait_s` and `run_s` are those of all attempts together, for a job that was requeued; None where they are
    not known.
    """

    state: State
    reason: str = ""
    wait_s: float | None = None
    run_s: float | None = None
    exit_code: int | None = None
    num_attempts: int = 0
    node: str = ""
    used_memory_bytes: int | None = None

    @property
    def is_over(self) -> bool:
        return self.state in OVER


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far the run of a job had come when it was last seen."""

    step: int = 0
    num_steps: int | None = None
    has_answer: bool = False
    devices: tuple[str, ...] = ()
    """The kinds of device that its ranks are on, once it has told."""
    reason: str = ""
    """What the run itself gave as the reason for its end."""


def ending_of(sight: Sight, needs: Needs, progress: Progress) -> str:
    """Why a job is over, and what to ask for next time; empty for one that finished or goes on."""
    if sight.state == "out of time":
        return _out_of_time(sight, needs, progress)
    if sight.state == "out of memory":
        return _out_of_memory(sight, needs)
    if sight.state == "node failed":
        node = f" ({sight.node})" if sight.node else ""
        return f"the node failed{node}; submit it again, it goes on from its last checkpoint"
    if sight.state == "cancelled":
        sign = "" if sight.reason.startswith("by ") else ":"
        return f"cancelled{sign} {sight.reason}" if sight.reason else "cancelled"
    if sight.state == "stopped" and not (progress.reason or sight.reason):
        return "it was asked to stop, and has saved; the same submit goes on from there"
    if sight.state in ("failed", "stopped"):
        code = f"exit code {sight.exit_code}" if sight.exit_code is not None else ""
        return progress.reason or sight.reason or code or sight.state
    if sight.state == "finished" and not progress.has_answer:
        return (
            "the job ended well, but its record never arrived: "
            "is the folder on a file system that the nodes share?"
        )
    return ""


def remark_on(needs: Needs, engine: str, progress: Progress) -> str:
    """What is to be known of a job though it goes on or ended well; most often nothing."""
    # on this machine, CPU ranks are what everybody without a GPU tries it with
    if engine == "local" or needs.device == "cpu" or not progress.devices:
        return ""
    if any(not device.startswith("cpu") for device in progress.devices):
        return ""
    return "GPUs were asked for and none was found: its ranks are on the CPU"


def _out_of_time(sight: Sight, needs: Needs, progress: Progress) -> str:
    limit = needs.time_s or sight.run_s or 0
    done, total = progress.step, progress.num_steps
    if done and total and total > done and sight.run_s:
        needed = 1.1 * sight.run_s * total / done
        why = f"{done} of {total} steps were done"
    else:
        needed, why = 2 * limit, "how far it had come is not known"
    return f"ended by the time limit of {clock(limit)}; {why}: ask for --time {clock(_rounded(needed))}"


def _out_of_memory(sight: Sight, needs: Needs) -> str:
    limit = needs.memory_per_node_bytes
    used = max(sight.used_memory_bytes or 0, limit or 0)
    per_rank = -(-int(used * _MORE) // needs.ranks_per_node)
    had = f"of {mebibytes(limit)} " if limit else ""
    if not per_rank:
        return "ended by the memory limit; say how much it needs with --memory"
    return f"ended by the memory limit {had}a node: ask for --memory {mebibytes(per_rank)} a rank"


def _rounded(seconds: float) -> int:
    """Up to the next minute, the finest that schedulers know."""
    return -(-int(seconds) // 60) * 60


def mebibytes(num_bytes: float | None) -> str:
    """An amount of memory, up to the next mebibyte, as --memory takes it."""
    return f"{-(-int(num_bytes or 0) // 2**20)}M"
