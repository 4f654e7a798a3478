"""Slurm: a request as a batch script, handed to `sbatch`, asked for and cancelled.

`script` is a pure function; what it makes can be read, changed and handed over by hand. The script does
nothing but start `samestep.cluster.attempt` in its own place. What a user said is in request.json, never in
the shell.
"""

import os
import re
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from samestep.cluster.engine import Files, missing
from samestep.cluster.jobs import Sight, mebibytes
from samestep.cluster.request import Request, clock, one_line
from samestep.cluster.slurm_queue import ASK_S, Row, accounting, queue
from samestep.errors import ConfigError, LaunchError

SCRIPT = "job.sh"
_OPTION = re.compile(r"[a-z][a-z0-9-]*")
_OURS = (
    "array", "cpus-per-task", "error", "gres", "job-name", "mem", "nodes", "no-requeue", "ntasks",
    "ntasks-per-node", "open-mode", "output", "parsable", "requeue", "signal", "time", "wrap",
)  # fmt: skip
_OVER_MEMORY = re.compile(r"slurmstepd\S*: error: StepId=\S+ exceeded memory limit \((\d+) > \d+\)")
_OOM_KILL = "oom-kill event"
_SITE = "{name}={value} was asked for as an option of sbatch, which Samestep sets itself: leave it out."


def script(request: Request) -> str:
    """The text of the batch script."""
    needs = request.needs
    lines = {"job-name": request.label, "nodes": str(needs.num_nodes), "ntasks-per-node": "1"}
    lines["cpus-per-task"] = str(needs.cpus_per_node)
    if needs.device == "gpu":
        kind = f"{needs.gpu_type}:" if needs.gpu_type else ""
        lines["gres"] = f"gpu:{kind}{needs.ranks_per_node}"
    if needs.memory_per_node_bytes:
        lines["mem"] = mebibytes(needs.memory_per_node_bytes)
    if needs.time_s:
        lines["time"] = clock(-(-needs.time_s // 60) * 60)
    is_array = len(request.items) > 1
    if is_array:
        lines["array"] = f"0-{len(request.items) - 1}"
    lines["output"] = "slurm-%A_%a.out" if is_array else "slurm-%j.out"
    lines["open-mode"] = "append"
    if request.may_go_on:
        lines |= {"requeue": "", "signal": f"USR1@{request.lead_s}"}
    else:
        lines["no-requeue"] = ""
    for name, value in request.options.items():
        if not _OPTION.fullmatch(name):
            raise ConfigError(f"{name!r} is no option of sbatch: write its long name, such as reservation.")
        if name in _OURS:
            raise ConfigError(_SITE.format(name=name, value=value))
        lines[name] = value
    directives = "".join(f"#SBATCH --{name}{_quoted(name, value)}\n" for name, value in lines.items())
    python = shlex.quote(one_line("path of Python", request.python))
    item = '"$SLURM_ARRAY_TASK_ID"' if is_array else "0"
    return f"#!/bin/sh\n{directives}\nexec {python} -P -m samestep.cluster.attempt . {item}\n"


def _quoted(name: str, value: str) -> str:
    """A value as sbatch reads it in a script: double quotes around what is not a plain word."""
    if not value:
        return ""
    one_line(f"value of --{name}", value)
    if re.fullmatch(r"[\w.,:@%/+-]+", value, re.ASCII):
        return f"={value}"
    escaped = value.replace("\\", r"\\").replace('"', r"\"")
    return f'="{escaped}"'


class Slurm:
    """The engine: `sbatch`, `squeue`, `sacct` and `scancel` on the PATH of this machine."""

    name = "slurm"

    def files(self, request: Request) -> Files:
        return {SCRIPT: script(request)}

    def check(self) -> None:
        missing("slurm", "sbatch", "squeue", "scancel")

    def submit(self, folder: Path, request: Request) -> list[str]:
        """Hand over the script in `folder`; the ids by which Slurm knows its items."""
        done = _run(["sbatch", "--parsable", SCRIPT], cwd=folder)
        if done.returncode != 0:
            reason = " ".join(done.stderr.replace("sbatch: error: ", "").split()) or "it gave no reason"
            raise LaunchError(
                f"Slurm did not take the job {request.name!r}: {reason.rstrip('.')}. "
                f"What was handed over is {folder / SCRIPT}."
            )
        number = done.stdout.strip().partition(";")[0]
        return [f"{number}_{n}" for n in range(len(request.items))] if len(request.items) > 1 else [number]

    def look(self, jobs: Mapping[str, Path]) -> dict[str, Sight]:
        now = time.time()
        found = {row.id: row.sight(now) for row in queue(list(jobs))}
        if forgotten := [number for number in jobs if number not in found or found[number].is_over]:
            found |= _told_by_accounting(accounting(forgotten), now)
        return {
            number: sight_with(sight, _tail(jobs[number] / f"slurm-{number}.out"))
            for number, sight in found.items()
            if number in jobs
        }

    def cancel(self, jobs: Mapping[str, Path]) -> None:
        done = _run(["scancel", *jobs])
        if done.returncode != 0:
            raise LaunchError(f"Slurm did not cancel {', '.join(jobs)}: {' '.join(done.stderr.split())}")


def sight_with(sight: Sight, said: str) -> Sight:
    """The same with what Slurm wrote into the output: a step over its memory fails, and the job with it."""
    over = _OVER_MEMORY.findall(said)
    if sight.state != "failed" or not (over or _OOM_KILL in said):
        return sight
    used = max((int(number) for number in over), default=sight.used_memory_bytes)
    return replace(sight, state="out of memory", reason="", used_memory_bytes=used)


def _tail(path: Path, num_bytes: int = 1 << 16) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - num_bytes))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _told_by_accounting(rows: Sequence[Row], now: float) -> dict[str, Sight]:
    """How jobs stand after all their attempts, with the waits and the run times of all."""
    found: dict[str, Sight] = {}
    for row in rows:
        sight, before = row.sight(now), found.get(row.id)
        waits = [s.wait_s for s in (before, sight) if s is not None and s.wait_s is not None]
        runs = [s.run_s for s in (before, sight) if s is not None and s.run_s is not None]
        found[row.id] = Sight(
            state=sight.state,
            reason=sight.reason,
            wait_s=sum(waits) if waits else None,
            run_s=sum(runs) if runs else None,
            exit_code=sight.exit_code,
            num_attempts=sight.num_attempts,
            node=sight.node,
            used_memory_bytes=sight.used_memory_bytes,
        )
    return found


def _run(command: list[str], cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(  # noqa: S603
            command,
            cwd=cwd,
            env=dict(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_S,
            check=False,
        )
    except FileNotFoundError:
        raise LaunchError(
            f"{command[0]} is not on the PATH of this machine: do this where Slurm's commands are."
        ) from None
    except (OSError, subprocess.SubprocessError) as error:
        raise LaunchError(f"{command[0]} could not be run: {error}") from None
