"""HTCondor's event log of a job, read: states, waits and ends, without asking anybody.

The log is written by HTCondor on the machine that the job was handed over from, and has all that there is to
know, also long after the job. Event numbers are HTCondor's own and do not change.
"""

import re
import time
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from samestep.cluster.jobs import Sight, State

_EVENT = re.compile(
    r"^(?P<number>\d{3}) \((?P<cluster>\d+)\.(?P<process>\d+)\.\d+\) "
    r"(?P<when>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d|\d\d/\d\d \d\d:\d\d:\d\d)"
    r"(?:\.\d+)?(?P<zone>Z|[+-]\d\d:?\d\d)? ",
)
SUBMIT, EXECUTE, EVICTED, TERMINATED, ABORTED, HELD, RELEASED = 0, 1, 4, 5, 9, 12, 13
_MEMORY_CODES = ("34", "26")
"""Hold reasons: over the memory that was asked for; by the policy of the machine."""
_TIME_CODES = ("46", "47")
"""Hold reasons: over allowed_job_duration and allowed_execute_duration."""


@dataclass(kw_only=True)
class _Job:
    """What is known of one job so far."""

    state: State = "pending"
    since: float | None = None
    began: float | None = None
    wait_s: float = 0.0
    run_s: float = 0.0
    num_attempts: int = 0
    reason: str = ""
    node: str = ""
    exit_code: int | None = None

    def leave(self, state: State, when: float, reason: str = "") -> None:
        """The job no longer runs."""
        if self.began is not None:
            self.run_s += max(0.0, when - self.began)
        self.began = None
        self.state, self.reason = state, reason
        self.since = when if state == "pending" else None


def read_log(path: Path) -> dict[str, Sight]:
    """How the jobs of a log stand, by their ids."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return sights_in(text, time.time())


def sights_in(text: str, now: float) -> dict[str, Sight]:
    """The same for the text of a log, at a moment."""
    jobs: dict[str, _Job] = {}
    for event in re.split(r"^\.\.\.\n?", text, flags=re.MULTILINE):
        match = _EVENT.match(event)
        if match is not None:
            job = jobs.setdefault(f"{int(match['cluster'])}.{int(match['process'])}", _Job())
            _take(job, int(match["number"]), _when(match["when"], match["zone"], now), event[match.end() :])
    return {number: _sight(job, now) for number, job in jobs.items()}


def _take(job: _Job, number: int, when: float, body: str) -> None:
    if number == SUBMIT:
        job.state, job.since = "pending", when
    elif number == EXECUTE:
        job.wait_s += max(0.0, when - job.since) if job.since is not None else 0.0
        job.state, job.began, job.since, job.reason = "running", when, None, ""
        job.num_attempts += 1
        host = re.search(r"host: <([^:?>]+)", body) or re.search(r"SlotName: \S*@(\S+)", body)
        job.node = host[1] if host else ""
    elif number == EVICTED:
        job.leave("pending", when, "evicted")
    elif number == TERMINATED:
        code = re.search(r"\(return value (\d+)\)", body)
        killed = re.search(r"\(signal (\d+)\)", body)
        job.exit_code = int(code[1]) if code else None
        state: State = "finished" if job.exit_code == 0 else "failed"
        job.leave(state, when, f"killed by signal {killed[1]}" if killed else "")
    elif number == ABORTED:
        lines = body.strip().splitlines()
        job.leave("cancelled", when, lines[1].strip() if len(lines) > 1 else "")
    elif number == HELD:
        lines = [line.strip() for line in body.strip().splitlines()]
        reason = lines[1] if len(lines) > 1 else ""
        code = re.search(r"Code (\d+)", body)
        job.leave(
            _state_of_hold(code[1] if code else "", reason), when, f"held: {reason}" if reason else "held"
        )
    elif number == RELEASED:
        job.state, job.since, job.reason = "pending", when, ""


def _state_of_hold(code: str, reason: str) -> State:
    if code in _TIME_CODES or "execute duration" in reason.lower():
        return "out of time"
    if code in _MEMORY_CODES and "memory" in reason.lower():
        return "out of memory"
    return "pending"


def _sight(job: _Job, now: float) -> Sight:
    sight = Sight(
        state=job.state,
        reason=job.reason,
        wait_s=job.wait_s,
        run_s=job.run_s if job.num_attempts else None,
        exit_code=job.exit_code,
        num_attempts=job.num_attempts,
        node=job.node,
    )
    if job.state == "running" and job.began is not None:
        return replace(sight, run_s=job.run_s + max(0.0, now - job.began))
    if job.state == "pending" and job.since is not None:
        return replace(sight, wait_s=job.wait_s + max(0.0, now - job.since))
    return sight


def _when(text: str, zone: str | None, now: float) -> float:
    """The time of an event; older logs leave out the year, which is then the last that fits."""
    if "/" in text:
        year = datetime.fromtimestamp(now).year
        moment = datetime.strptime(f"{year}/{text}", "%Y/%m/%d %H:%M:%S")
        if moment.timestamp() > now + 86400:
            moment = moment.replace(year=year - 1)
        return moment.timestamp()
    suffix = "+00:00" if zone == "Z" else zone or ""
    return datetime.fromisoformat(text + suffix).timestamp()
