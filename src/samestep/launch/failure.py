"""Which rank failed first, and one sentence about it: pure judgement on what the ranks left behind."""

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# What ranks say when another has gone; such an error is never the cause while there is any other.
_LOST_PEER = re.compile(
    r"connection closed by peer|connection reset|connection refused|connectfullmesh|broken pipe"
    r"|gloo/transport|timed out waiting .*(recv|send)|ncclremoteerror|remote process exited"
    r"|NCCL communicator was aborted|DistNetworkError|failed to recv, got 0 bytes",
    re.IGNORECASE,
)
# What CUDA says of a device that is gone. An assertion or lack of memory on it is the program's own doing.
_LOST_DEVICE = re.compile(
    r"uncorrectable (ECC|NVLink) error|fallen off the bus|GPU is lost|devices? (is|are) busy or unavailable"
    r"|no CUDA-capable device is detected",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class RankError:
    """What a rank wrote to its error.json."""

    rank: int
    kind: str
    message: str
    is_refusal: bool = False
    """A SamestepError, whose message is for the user as it is."""
    is_user_error: bool = False
    """Raised below a line of the user's own code, which is `where`."""
    where: str = ""
    traceback: str = ""
    time: float = 0.0
    """On the clock of `time.monotonic`, which all ranks of a machine share and nobody sets."""

    @classmethod
    def of(cls, rank: int, fields: Mapping[str, Any]) -> "RankError":
        known = {name: fields[name] for name in cls.__dataclass_fields__ if name in fields}
        return cls(**{"kind": "Error", "message": "", **known, "rank": rank})

    @property
    def is_lost_peer(self) -> bool:
        return bool(_LOST_PEER.search(self.message) or _LOST_PEER.search(self.traceback))

    @property
    def is_lost_device(self) -> bool:
        return not self.is_refusal and bool(_LOST_DEVICE.search(self.message))

    @property
    def same(self) -> tuple[str, str, str]:
        return self.kind, self.message, self.where


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a run failed: the rank it began at and one sentence; None where no rank got as far as that."""

    rank: int | None
    sentence: str
    where: str = ""
    has_traceback: bool = False
    is_death: bool = False
    """Whether the rank ended without a word, as killed processes do, or for want of such a one."""


def cause_of(
    *,
    size: int,
    errors: Sequence[RankError],
    exit_codes: Mapping[int, int],
    first_failed: int | None = None,
    done: frozenset[int] = frozenset(),
) -> Failure | None:
    """The first failure that is not the consequence of another, or None if no rank failed.

    `exit_codes` are those that the agent saw (below 0: killed by that signal), `first_failed` the rank
    that it missed first. A rank that was done and then aborted is no failure: torch with gloo does that.
    """
    genuine = sorted((e for e in errors if not e.is_lost_peer), key=lambda e: e.time)
    if genuine:
        return _of_error(genuine[0], size, shared=len({e.rank for e in genuine if e.same == genuine[0].same}))
    spoke = {e.rank for e in errors}
    silent = {r: c for r, c in exit_codes.items() if c != 0 and r not in spoke and r not in done}
    # SIGTERM is how the agent sends away the ranks that were left over
    deaths = {r: c for r, c in silent.items() if c != -signal.SIGTERM} or ({} if errors else silent)
    if deaths:
        rank = first_failed if first_failed in deaths else min(deaths)
        hint = " (out of memory?)" if deaths[rank] == -signal.SIGKILL else ""
        return Failure(
            rank=rank, sentence=f"Rank {rank} {death_of(deaths[rank])}{hint}", is_death=deaths[rank] < 0
        )
    if errors:
        first = min(errors, key=lambda e: e.time)
        text = f"Rank {first.rank} lost the other ranks: {_one_line(first.message)}"
        return Failure(rank=first.rank, sentence=text, has_traceback=True, is_death=True)
    return None


def _of_error(error: RankError, size: int, *, shared: int) -> Failure:
    who = f"Rank {error.rank}" if shared < size else ("Every rank" if size > 1 else "The run")
    if error.is_refusal:
        sentence = error.message if shared == size else f"{who}: {error.message}"
        return Failure(rank=error.rank, sentence=sentence)
    text = f"{error.kind}: {_one_line(error.message)}".removesuffix(": ")
    if error.kind == "SystemExit":
        text = f"it ended itself with exit code {error.message}"
    elif not error.is_user_error:
        text += " (inside Samestep or a library, below no line of yours)"
    sentence = f"{who} failed: {text}"
    return Failure(rank=error.rank, sentence=sentence, where=error.where, has_traceback=True)


def death_of(code: int) -> str:
    """How a process ended that said nothing, by its exit code: below 0 is a signal."""
    if code >= 0:
        return f"ended with exit code {code} without a word"
    if -code == signal.SIGKILL:
        return "was killed by signal 9"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    return f"was killed by signal {-code} ({name})"


def _one_line(message: str, longest: int = 500) -> str:
    text = " ".join(message.split())
    return text if len(text) <= longest else text[: longest - 1] + "…"
