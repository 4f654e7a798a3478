"""Ending: why a watched run failed or stood still, from what its ranks left behind.

The rank that is named is the first to fail by itself: what ranks say that lost another is a consequence. What
the program raised is told as its own, since ranks that have come to its first line were started well.
"""

import re
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from samestep.errors import SamestepError
from samestep.launch.failure import Failure, RankError, cause_of
from samestep.launch.progress import Progress
from samestep.launch.voices import is_noise, tag_of
from samestep.observed import End
from samestep.record import rank_folder, read_json

_OURS = str(Path(__file__).parent.parent)
_NOT_THE_USERS = (*(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")), _OURS, "<")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_IN_WORKER = "Original Traceback (most recent call last)"
_REFUSALS = frozenset(kind.__name__ for kind in SamestepError.__subclasses__())
_MOST_LAST = 4096
_PORT_TAKEN = re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE)


def failure_of(folder: Path, ranks: Sequence[Progress], exit_codes: Mapping[int, int]) -> Failure | None:
    """The failure that the others followed from; None if there was none.

    `exit_codes` are those of ranks that ended by themselves, in the order in which they did.
    """
    errors = [error for rank in ranks if (error := _error_of(folder, rank)) is not None]
    for error in errors:
        _keep_traceback(folder, error)
    done = frozenset(rank.rank for rank in ranks if rank.has_finished)
    failed = [rank for rank, code in exit_codes.items() if code != 0 and rank not in done]
    cause = cause_of(
        size=len(ranks),
        errors=errors,
        exit_codes=exit_codes,
        first_failed=failed[0] if failed else None,
        done=done,
    )
    if cause is None:
        return None
    by_rank = {error.rank: error for error in errors}
    told = by_rank.get(cause.rank) if cause.rank is not None else None
    if told is not None and told.is_lost_peer:
        return replace(cause, sentence=f"{cause.sentence} ({places(ranks)})")
    if told is not None and told.is_user_error:
        step = next(rank.num_steps for rank in ranks if rank.rank == told.rank) + 1
        return replace(cause, sentence=f"{cause.sentence} (raised by the program itself, in step {step})")
    return cause


def stall_of(ranks: Sequence[Progress], running: Sequence[int], seconds: float) -> Failure:
    """What to say of ranks that have waited for too long."""
    who = "The run" if len(ranks) == 1 else "All ranks" if len(running) == len(ranks) else "The ranks left"
    return Failure(
        rank=min(running),
        sentence=f"{who} stood still for {seconds:.0f} s: {places(ranks, running)}",
    )


def places(ranks: Sequence[Progress], running: Sequence[int] = ()) -> str:
    """Where each rank was, those in the same place together."""
    of: dict[str, list[int]] = {}
    for rank in ranks:
        if rank.rank in running:
            place = f"in step {rank.num_steps + 1}, waiting"
        elif rank.has_finished:
            place = f"ended well after {_steps(rank.num_steps)}"
        else:
            place = f"ended in step {rank.num_steps + 1}"
        of.setdefault(place, []).append(rank.rank)
    return "; ".join(f"{tag_of(numbers)[1:-1]} {place}" for place, numbers in of.items())


def is_port_taken(folder: Path, ranks: Sequence[Progress]) -> bool:
    """Whether ranks could not meet because another process had taken their port in the meantime."""
    if any(rank.num_steps for rank in ranks):
        return False
    errors = (_error_of(folder, rank) for rank in ranks)
    return any(error is not None and _PORT_TAKEN.search(error.message) for error in errors)


def _error_of(folder: Path, rank: Progress) -> RankError | None:
    fields = read_json(rank_folder(folder, rank.rank) / "error.json")  # a rank of a task tells more
    if fields is not None:
        return RankError.of(rank.rank, fields)
    end = rank.end
    if end is None or end.exit_code == 0:
        return None
    at = (rank.start.time if rank.start else 0.0) + end.seconds
    if end.status == "exited":
        words = end.message or _last_line(rank_folder(folder, rank.rank) / "stderr.log")
        text = f"{end.exit_code}, saying: {words}" if words else f"{end.exit_code}"
        return RankError(rank=rank.rank, kind="SystemExit", message=text, time=at)
    where, message = _users_line(end), end.message
    if _IN_WORKER in message:
        # torch wraps what a loader's worker raised, traceback and all, into the message of a new exception
        message = message.strip().splitlines()[-1].partition(": ")[2] or message
    return RankError(
        rank=rank.rank,
        kind=end.error,
        message=message,
        is_refusal=end.error in _REFUSALS,
        is_user_error=bool(where) and end.error not in _REFUSALS,
        where=where,
        traceback=end.traceback,
        time=at,
    )


def _users_line(end: End) -> str:
    """The innermost line of the user's own files in a traceback, also one from a loader's worker."""
    lines = [f"{path}:{line}" for path, line in _FRAME.findall(end.traceback)]
    own = [line for line in lines if not line.startswith(_NOT_THE_USERS)]
    return own[-1] if own else ""


def _keep_traceback(folder: Path, error: RankError) -> None:
    path = rank_folder(folder, error.rank) / "traceback.txt"
    if error.traceback and not path.exists():
        path.write_text(error.traceback, encoding="utf-8", errors="backslashreplace")


def _last_line(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _MOST_LAST))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip() and not is_noise(line)), "")


def _steps(count: int) -> str:
    return f"{count} step{'s' * (count != 1)}"
