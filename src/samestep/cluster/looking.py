"""Looking: how the jobs of a folder stand, from what their engine, the jobs and the ledger say together.

The engine decides about the state, the jobs' own words about the times of all attempts. What an engine has
forgotten is as it was last seen, or as the job itself last said; so is what it cannot be asked about now.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samestep.cluster.engines import engine_named
from samestep.cluster.jobs import Progress, Sight, ending_of, remark_on
from samestep.cluster.ledger import Entry, Ledger
from samestep.cluster.own_words import progress_of, sight_of
from samestep.errors import LaunchError

LOST_S = 60.0
"""How long an engine may not know a job that it has just been given."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One job, seen now."""

    entry: Entry
    sight: Sight
    progress: Progress
    world_size: int
    ending: str
    """Why it is over, and what to do; empty where all is well."""
    remark: str
    """What else is to be known of it; most often nothing."""
    out: Path

    def to_json(self) -> dict[str, Any]:
        sight = self.sight
        return {
            "id": self.entry.id,
            "name": self.entry.name,
            "engine": self.entry.engine,
            "world_size": self.world_size,
            "state": sight.state,
            "wait_s": sight.wait_s,
            "run_s": sight.run_s,
            "attempts": sight.num_attempts,
            "exit_code": sight.exit_code,
            "step": self.progress.step,
            "reason": self.ending or sight.reason,
            "remark": self.remark,
            "out": str(self.out),
        }


def look(ledger: Ledger) -> list[Seen]:
    """How all jobs stand; what is new is written to the ledger."""
    entries = ledger.entries
    before = {entry.id: ledger.last_sight(entry) for entry in entries}
    is_open = [e for e in entries if (sight := before[e.id]) is None or not sight.is_over]
    told: dict[str, Sight] = {}
    silent: dict[str, str] = {}
    for name, jobs in _by_engine(ledger, is_open).items():
        try:
            told |= engine_named(name).look(jobs)
        except LaunchError as error:
            silent[name] = f"as it was last seen; {name} could not be asked: {error}"
    seen = []
    for entry in entries:
        sight = before[entry.id]
        if (sight is None or not sight.is_over) and entry.engine in silent:
            own = sight_of(ledger.files_of(entry), entry.item, time.time())
            last = own or sight or Sight(state="pending")
            sight = last if last.is_over else replace(last, reason=silent[entry.engine])
        elif sight is None or not sight.is_over:
            sight = _merged(ledger, entry, told.get(entry.id), sight, time.time())
            ledger.seen(entry, sight)
        request = ledger.request_of(entry)
        out = ledger.folder / entry.name
        progress = progress_of(out, request.command)
        seen.append(
            Seen(
                entry=entry,
                sight=sight,
                progress=progress,
                world_size=request.needs.world_size,
                ending=ending_of(sight, request.needs, progress),
                remark=remark_on(request.needs, request.engine, progress),
                out=out,
            )
        )
    return seen


def cancel(ledger: Ledger, seen: Sequence[Seen]) -> list[str]:
    """Have all that are not over ended; their names."""
    entries = [item.entry for item in seen if not item.sight.is_over]
    for name, jobs in _by_engine(ledger, entries).items():
        engine_named(name).cancel(jobs)
    return [entry.name for entry in entries]


def _by_engine(ledger: Ledger, entries: Sequence[Entry]) -> Mapping[str, dict[str, Path]]:
    found: dict[str, dict[str, Path]] = {}
    for entry in entries:
        found.setdefault(entry.engine, {})[entry.id] = ledger.files_of(entry)
    return found


def _merged(ledger: Ledger, entry: Entry, told: Sight | None, before: Sight | None, now: float) -> Sight:
    is_at_work = told is not None and told.state == "running"
    own = sight_of(ledger.files_of(entry), entry.item, now if is_at_work else None)
    if told is None:
        if own is not None and own.is_over:
            return own
        if now - entry.submitted_at < LOST_S:
            return before or own or Sight(state="pending")
        reason = f"{entry.engine} does not know it any more, and it left no word of its end"
        return replace(own or before or Sight(state="unknown"), state="unknown", reason=reason)
    if own is None or not own.num_attempts:
        return told if told.state != "failed" else replace(told, reason=_never_began(ledger, entry, told))
    state, reason = told.state, told.reason
    if state in ("finished", "failed") and own.is_over:
        state, reason = own.state, own.reason or reason  # engines know the exit code, and no answer
    wait = own.wait_s
    if state == "pending" and told.wait_s is not None:
        wait = (wait or 0.0) + told.wait_s
    return replace(
        told,
        state=state,
        reason=reason,
        wait_s=told.wait_s if wait is None else wait,
        run_s=max((s for s in (told.run_s, own.run_s) if s is not None), default=None),
        exit_code=told.exit_code if own.exit_code is None else own.exit_code,
        num_attempts=max(told.num_attempts, own.num_attempts),
    )


def _never_began(ledger: Ledger, entry: Entry, told: Sight) -> str:
    """Why a job failed of which the engine alone has told: what it runs first writes down that it began."""
    why = told.reason or (f"exit code {told.exit_code}" if told.exit_code is not None else "failed")
    folder, request = ledger.files_of(entry).resolve(), ledger.request_of(entry)
    if request.engine == "htcondor":  # to which all is sent
        return f"{why}; it wrote nothing down: see {folder / f'condor-{entry.item}.err'}"
    return f"{why}; it wrote nothing down: does its node see {folder} and {request.python}?"
