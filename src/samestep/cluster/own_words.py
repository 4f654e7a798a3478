"""Own words: what jobs themselves wrote down, in the folder that they share with whoever handed them over."""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from samestep.cluster.answer import FILES
from samestep.cluster.jobs import Progress, Sight, State
from samestep.cluster.ledger import append, rows_of
from samestep.cluster.request import Command
from samestep.record import read_json

_GIVEN_BACK = (75, 85)


def attempts_path(folder: Path, item: int) -> Path:
    """Where the attempts at one item of a request are written down."""
    return folder / f"attempts-{item}.jsonl"


def note(folder: Path, item: int, event: str, **more: object) -> None:
    """Write down what happens to an item: submitted, started, ended."""
    append(attempts_path(folder, item), {"event": event, "time": time.time(), **more})


def last_turn(rows: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The last of what was written down of an item that changed its state; empty before there is any."""
    turns = [row for row in rows if row["event"] in ("submitted", "started", "ended")]
    return turns[-1] if turns else {"event": None}


def sight_of(folder: Path, item: int, now: float | None) -> Sight | None:
    """How an item stands by its own account, or None before it began to tell.

    Without a moment, an attempt that has told of no end has no run time: it may be long gone.
    """
    rows = list(rows_of(attempts_path(folder, item)))
    if not rows:
        return None
    last, starts = last_turn(rows), [row for row in rows if row["event"] == "started"]
    ends = [row for row in rows if row["event"] == "ended"]
    waits = [row["wait_s"] for row in starts if row.get("wait_s") is not None]
    run_s = sum(row["run_s"] for row in ends)
    state: State = "pending"
    if last["event"] == "started":
        state, run_s = "running", run_s + max(0.0, (now or 0.0) - last["time"])
    elif last["event"] == "ended" and not last.get("requeued"):
        state = state_after(last["code"], is_answered=bool(last.get("answered")))
    elif now is not None:
        waits.append(max(0.0, now - last.get("time", now)))
    return Sight(
        state=state,
        wait_s=sum(waits) if waits else None,
        run_s=run_s if starts else None,
        exit_code=last.get("code"),
        num_attempts=len(starts),
        node=starts[-1].get("node", "") if starts else "",
        reason=str(rows[-1].get("reason", "")),
    )


def state_after(code: int, *, is_answered: bool) -> State:
    """What the exit code of `samestep` means for its job; 1 is the answer “no”, if there is an answer."""
    if code == 0 or (code == 1 and is_answered):
        return "finished"
    return "stopped" if code in _GIVEN_BACK else "failed"


def progress_of(out: Path, command: Command) -> Progress:
    """How far the run of a command in `out` has come."""
    result, about = read_json(out / "result.json") or {}, read_json(out / "record.json") or {}
    now = read_json(out / "progress.json") or {}
    # one that goes on has made no step of its own yet, but stands where it was saved
    step, total = result.get("steps", now.get("step", about.get("resumed_at_step"))), about.get("num_steps")
    reason, devices = result.get("reason"), about.get("devices")
    return Progress(
        step=step if isinstance(step, int) else 0,
        num_steps=total if isinstance(total, int) else None,
        has_answer=(out / FILES[command]).exists(),
        devices=tuple(map(str, devices)) if isinstance(devices, list) else (),
        reason=reason if isinstance(reason, str) else "",
    )
