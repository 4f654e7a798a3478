"""Queue: what schedulers know of waits, asked for in words of their own and read from text of a fixed form.

    slurm       sacct: jobs of the last weeks in a partition; squeue: when those that wait are to start
    htcondor    condor_history: jobs that started

Starts these programs without a shell, changes nothing, and knows nothing of advice. A scheduler that is not
there, or does not answer, is a remark and no failure: the queue then counts as empty, and that is said.
"""

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from samestep.advise.waits import Waits, count_waits
from samestep.errors import ConfigError

DAYS = 30
MOST_JOBS = 10_000
LONGEST_S = 60.0

Ask = Callable[[Sequence[str]], str]
"""Words of a program → what it says; raises `Unanswered`."""

_TRES = re.compile(r"(?:^|,)gres/gpu=(\d+)")
_TYPED_TRES = re.compile(r"(?:^|,)gres/gpu:[^=,]+=(\d+)")
_GRES = re.compile(r"(?:^|,)(?:gres[:/])?gpu(?::[^:,=()]+)?[:=](\d+)")
_PENDING = (
    "tres-per-job:80,tres-per-node:80,tres-per-task:80,numnodes:12,numtasks:12,submittime:24,starttime:24"
)
"""Fields without spaces in them, wide enough not to be cut: a job asks for GPUs in one of three ways."""


class Unanswered(Exception):
    """A program that is not there, or said no; the reason is a part of a sentence."""


def asked(words: Sequence[str]) -> str:
    """What a program says on standard output."""
    try:
        done = subprocess.run(  # noqa: S603
            list(words), capture_output=True, text=True, errors="replace", timeout=LONGEST_S, check=False,
            env={**os.environ, "SLURM_TIME_FORMAT": "standard", "LC_ALL": "C"},
        )  # fmt: skip
    except FileNotFoundError:
        raise Unanswered(f"there is no {words[0]} here") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unanswered(f"{words[0]} did not answer ({type(error).__name__})") from None
    if done.returncode:
        said = " ".join(done.stderr.split())[:200] or f"exit code {done.returncode}"
        raise Unanswered(f"{words[0]} refused: {said}")
    return done.stdout


def read_waits(source: str, ask: Ask = asked) -> Waits | None:
    """Waits from a scheduler, if `source` names one."""
    name, colon, partition = source.partition(":")
    if name == "slurm":
        if colon and not re.fullmatch(r"\w[\w.-]*(,\w[\w.-]*)*", partition):
            raise ConfigError(f"--wait names the partition {partition!r}; give its name, as in slurm:gpu.")
        return slurm_waits(partition, ask)
    if source == "htcondor":
        return htcondor_waits(ask)
    return None


def slurm_waits(partition: str = "", ask: Ask = asked) -> Waits:
    """Waits of jobs in a partition (the default one, if none is named), as accounting and the queue tell."""
    remarks: list[str] = []
    jobs: list[tuple[int, float]] = []
    if not partition:
        partition = _default_partition(ask)
    where = [f"--partition={partition}"] if partition else []
    try:
        history = ask(
            ["sacct", "--allusers", "--allocations", "--noheader", "--parsable2",
             f"--starttime=now-{DAYS}days", "--format=ReqTRES,Submit,Eligible,Start", *where]
        )  # fmt: skip
        jobs += slurm_history(history)
    except Unanswered as error:
        remarks.append(f"Slurm's accounting is not counted: {error}.")
    try:
        pending = ask(["squeue", "--states=PENDING", "--noheader", f"--Format={_PENDING}", *where])
        found, num_unknown = slurm_pending(pending)
        jobs += found
        if num_unknown:
            remarks.append(f"{num_unknown} jobs wait that Slurm names no start for; they are not counted.")
    except Unanswered as error:
        remarks.append(f"Slurm's queue is not counted: {error}.")
    source = f"known to Slurm in {partition or 'any partition'}"
    return count_waits(jobs, source=source, remarks=remarks)


def slurm_history(text: str) -> Iterator[tuple[int, float]]:
    """GPUs and wait of each job that started, from `sacct`: ReqTRES|Submit|Eligible|Start."""
    for fields in _lines(text, 4):
        submit, eligible, start = map(_moment, fields[1:])
        begin = eligible or submit
        # a job is eligible when what it depends on is done: before that it is not the queue it waits for
        if begin and start and start >= begin:
            yield _gpus_of_tres(fields[0]), start - begin


def slurm_pending(text: str) -> tuple[list[tuple[int, float]], int]:
    """GPUs and whole wait of jobs that Slurm expects to start, from `squeue` in the form of `_PENDING`.

    Then, of how many jobs with GPUs it expects nothing.
    """
    found, num_unknown = [], 0
    for fields in (line.split() for line in text.splitlines()):
        if len(fields) != _PENDING.count(",") + 1:
            continue
        per_job, per_node, per_task = map(_gpus_of_gres, fields[:3])
        nodes, tasks = (int(count) if count.isdecimal() else 0 for count in fields[3:5])
        gpus = per_job or per_node * nodes or per_task * tasks
        submit, start = map(_moment, fields[5:])
        if not gpus:
            continue
        if submit is None or start is None or start < submit:
            num_unknown += 1
        else:
            found.append((gpus, start - submit))
    return found, num_unknown


def htcondor_waits(ask: Ask = asked) -> Waits:
    """Waits of jobs in the history of this submit machine."""
    source = "known to HTCondor's history here"
    try:
        text = ask(
            ["condor_history", "-json", "-limit", str(MOST_JOBS), "-constraint", "RequestGPUs >= 1",
             "-attributes", "RequestGPUs,QDate,JobStartDate"]
        )  # fmt: skip
        return count_waits(htcondor_history(text), source=source)
    except Unanswered as error:
        return count_waits([], source=source, remarks=[f"HTCondor's history is not counted: {error}."])


def htcondor_history(text: str) -> Iterator[tuple[int, float]]:
    """GPUs and wait until the first start of each job, from `condor_history -json`."""
    try:
        ads = json.loads(text) if text.strip() else []
    except ValueError:
        raise Unanswered("condor_history did not write JSON") from None
    for ad in ads if isinstance(ads, list) else []:
        if not isinstance(ad, dict):
            continue
        # names of attributes are the same in any case
        values: dict[str, Any] = {str(name).lower(): value for name, value in ad.items()}
        gpus, queued, started = (values.get(name) for name in ("requestgpus", "qdate", "jobstartdate"))
        if isinstance(gpus, int) and isinstance(queued, int | float) and isinstance(started, int | float):
            yield gpus, float(started) - float(queued)


def _default_partition(ask: Ask) -> str:
    try:
        names = ask(["sinfo", "--noheader", "--format=%P"]).split()
    except Unanswered:
        return ""
    return next((name.removesuffix("*") for name in names if name.endswith("*")), "")


def _lines(text: str, num_fields: int) -> Iterator[list[str]]:
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) == num_fields:
            yield fields


def _gpus_of_tres(text: str) -> int:
    """GPUs of a job over all its nodes; 0 if it has none."""
    if found := _TRES.search(text):
        return int(found[1])
    return sum(int(count) for count in _TYPED_TRES.findall(text))


def _gpus_of_gres(text: str) -> int:
    return sum(int(count) for count in _GRES.findall(text))


def _moment(text: str) -> float | None:
    """Seconds since 1970 of a time as Slurm writes it; None for `Unknown`, `None` and `N/A`."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
