"""Slurm's queue and accounting, asked and read: rows without free text of anybody's, times since 1970.

The queue (`squeue`) knows jobs until some minutes after their end; accounting (`sacct`), where a cluster has
it, knows all, every attempt of a requeued job by itself.
"""

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from samestep.cluster.jobs import Sight, State
from samestep.cluster.request import bytes_of
from samestep.errors import LaunchError

ASK_S = 60.0
_FORGOTTEN = "Invalid job id"
"""What `squeue` says, with an exit code of its own, of ids that all ended too long ago."""

STATES: Mapping[str, State] = {
    "PENDING": "pending",
    "CONFIGURING": "pending",
    "REQUEUED": "pending",
    "REQUEUE_HOLD": "pending",
    "REQUEUE_FED": "pending",
    "RESV_DEL_HOLD": "pending",
    "SPECIAL_EXIT": "pending",
    "RUNNING": "running",
    "COMPLETING": "running",
    "SIGNALING": "running",
    "STAGE_OUT": "running",
    "STOPPED": "running",
    "SUSPENDED": "running",
    "RESIZING": "running",
    "COMPLETED": "finished",
    "FAILED": "failed",
    "PREEMPTED": "stopped",
    "REVOKED": "stopped",
    "CANCELLED": "cancelled",
    "TIMEOUT": "out of time",
    "DEADLINE": "out of time",
    "OUT_OF_MEMORY": "out of memory",
    "NODE_FAIL": "node failed",
    "BOOT_FAIL": "node failed",
}
_QUEUE = (
    "JobID", "ArrayJobID", "ArrayTaskID", "State", "Reason", "SubmitTime", "StartTime",
    "EndTime", "exit_code", "RestartCnt", "NodeList",
)  # fmt: skip
_ACCOUNTING = (
    "JobID", "State", "Submit", "Start", "End", "ExitCode", "NodeList", "MaxRSS",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Row:
    """One attempt at a job, or one that waits."""

    id: str
    raw_id: str
    state: State
    reason: str
    since: float | None
    """When it was put into the queue, for the first time or again."""
    start: float | None
    end: float | None
    exit_code: int | None
    num_restarts: int
    nodes: str
    used_memory_bytes: int | None = None
    is_leaving: bool = False
    """Whether its end is decided, by whomever, and its processes are only given the time for it."""

    def sight(self, now: float) -> Sight:
        """The same for all engines; the wait of one that is still in the queue grows."""
        is_over = self.state not in ("pending", "running")
        start = self.start if self.state != "pending" and self.nodes else None  # else it never began
        end = self.end if is_over else now
        until = start or end
        wait = until - self.since if until is not None and self.since is not None else None
        run = max(0.0, end - start) if start is not None and end is not None else None
        return Sight(
            state=self.state,
            # of one that is over, the queue gives the reason for which it last waited
            reason=""
            if is_over and self.state != "failed" and not self.reason.startswith("by ")
            else self.reason,
            wait_s=None if wait is None else max(0.0, wait),
            run_s=run,
            exit_code=self.exit_code if is_over else None,
            num_attempts=self.num_restarts + (start is not None),
            node=self.nodes,
            used_memory_bytes=self.used_memory_bytes,
        )


def queue(ids: Sequence[str], env: Mapping[str, str] = os.environ) -> list[Row]:
    """What the queue knows of jobs, by the ids that `sbatch` gave; those that it forgot are left out.

    A LaunchError says that it could not be asked, which tells nothing of the jobs.
    """
    if not ids:
        return []
    fields = ",".join(f"{name}:|" for name in _QUEUE)
    text = _ask(["squeue", "-h", "-a", "-r", "-t", "all", "-j", ",".join(ids), "-O", fields], env)
    return [row for line in text.splitlines() if (row := queue_row(line)) is not None]


def accounting(ids: Sequence[str], env: Mapping[str, str] = os.environ) -> list[Row]:
    """What accounting knows, one row an attempt, oldest first; nothing where a cluster has none."""
    if not ids:
        return []
    command = [
        "sacct",
        "-n",
        "-P",
        "-D",
        "--units=K",
        "-j",
        ",".join(ids),
        f"--format={','.join(_ACCOUNTING)}",
    ]
    with contextlib.suppress(LaunchError):
        return accounting_rows(_ask(command, env))
    return []


def queue_row(line: str) -> Row | None:
    """A line of `squeue` in our format."""
    parts = [part.strip() for part in line.split("|")]
    if len(parts) < len(_QUEUE):
        return None
    told = dict(zip(_QUEUE, parts, strict=False))
    is_array = told["ArrayTaskID"].isdecimal()
    return Row(
        id=f"{told['ArrayJobID']}_{told['ArrayTaskID']}" if is_array else told["JobID"],
        raw_id=told["JobID"],
        state=STATES.get(told["State"], "unknown"),
        reason="" if told["Reason"] in ("None", "N/A", "") else told["Reason"],
        since=_time(told["SubmitTime"]),
        start=_time(told["StartTime"]),
        end=_time(told["EndTime"]),
        exit_code=int(told["exit_code"]) if told["exit_code"].isdecimal() else None,
        num_restarts=int(told["RestartCnt"]) if told["RestartCnt"].isdecimal() else 0,
        nodes=told["NodeList"],
        is_leaving=told["State"] == "COMPLETING",
    )


def accounting_rows(text: str) -> list[Row]:
    """The attempts in what `sacct` prints; steps only add the memory that they used."""
    rows: list[Row] = []
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) < len(_ACCOUNTING):
            continue
        told = dict(zip(_ACCOUNTING, parts, strict=False))
        number, _, step = told["JobID"].partition(".")
        memory = bytes_of(told["MaxRSS"]) if told["MaxRSS"][:-1].replace(".", "").isdecimal() else None
        if step:
            if rows and rows[-1].id == number and memory:
                rows[-1] = _with_memory(rows[-1], memory)
            continue
        word, _, by = told["State"].partition(" ")
        code, _, _ = told["ExitCode"].partition(":")
        rows.append(
            Row(
                id=number,
                raw_id=number,
                # there, it is the end of an attempt; in the queue, the wait for the next
                state="stopped" if word == "REQUEUED" else STATES.get(word, "unknown"),
                reason=by,
                since=_time(told["Submit"]),
                start=_time(told["Start"]),
                end=_time(told["End"]),
                exit_code=int(code) if code.isdecimal() else None,
                num_restarts=sum(row.id == number for row in rows),
                nodes=told["NodeList"],
                used_memory_bytes=memory,
            )
        )
    return rows


def _with_memory(row: Row, memory: int) -> Row:
    return replace(row, used_memory_bytes=max(memory, row.used_memory_bytes or 0))


def _ask(command: list[str], env: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(  # noqa: S603
            command,
            env={**env, "SLURM_TIME_FORMAT": "%s"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_S,
            check=False,
        )
    except FileNotFoundError:
        raise LaunchError(f"{command[0]} is not on the PATH of this machine") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise LaunchError(f"{command[0]} could not be run: {error}") from None
    if done.returncode != 0 and _FORGOTTEN not in done.stderr:
        raise LaunchError(" ".join(done.stderr.split()) or f"{command[0]} ended with {done.returncode}")
    return done.stdout


def _time(text: str) -> float | None:
    return float(text) if text.isdecimal() and int(text) > 0 else None
