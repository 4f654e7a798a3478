"""Limits: on how many ranks a run may go on, and how often; and what a resumed run was told before."""

from dataclasses import dataclass
from pathlib import Path

from samestep.errors import ConfigError
from samestep.launch.job import Job, Mode
from samestep.record import read_json

DEFAULT_SHARDS = 8
"""As in `samestep.world`, which knows torch and cannot be asked here."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """From `least` to `most` ranks; it starts with `most`."""

    most: int
    least: int = 0
    """0 stands for `most`: no rank can be missed."""
    restarts: int | None = None
    """How often ranks may be started again; None is as often as ranks can be lost."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "least", self.least or self.most)

    @classmethod
    def parse(cls, text: str) -> "Limits":
        """The limits that `N` or `MIN:MAX` means; a ValueError says why it means nothing."""
        first, colon, last = text.partition(":")
        if not first.isdecimal() or (colon and not last.isdecimal()):
            raise ValueError(f"{text!r} is neither a number of ranks nor MIN:MAX, such as 2:4.")
        least, most = int(first), int(last or first)
        if not 1 <= least <= most:
            raise ValueError(f"{text!r}: at least 1 rank is needed, and MIN must not be above MAX.")
        return cls(least=least, most=most)

    @property
    def most_rounds(self) -> int:
        """How often ranks may be started, the first time included.

        The loss of a rank may take two, where ranks begin again before it is known to all.
        """
        return 1 + (2 * (self.most - self.least) if self.restarts is None else self.restarts)

    def __str__(self) -> str:
        return str(self.most) if self.least == self.most else f"{self.least}:{self.most}"

    def check_shards(self, shards: int | None) -> None:
        """Refuse more ranks than there are shards to own."""
        if shards is not None and self.most > shards:
            raise ConfigError(
                f"--gpus {self} was asked for with --shards {shards}: a rank would have no shard; "
                f"ask for at most {shards} ranks, or for more shards from the beginning of the run."
            )


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """What the run that is resumed was told and had come to; all as at the beginning where there is none."""

    is_there: bool = False
    overrides: tuple[str, ...] = ()
    mode: Mode = "fast"
    shards: int | None = None
    allow_drift: bool = False
    threads: int | None = None
    is_finished: bool = False
    num_steps: int | None = None

    @classmethod
    def of(cls, folder: Path | None) -> "Resumed":
        if folder is None or not (folder / "job.json").exists():
            return cls()
        job = Job.read(folder)
        threads = (read_json(folder / "record.json") or {}).get("threads")
        result = read_json(folder / "result.json") or {}
        return cls(
            is_there=True,
            overrides=job.overrides,
            mode=job.mode,
            shards=job.shards,
            allow_drift=job.allow_drift,
            threads=threads if isinstance(threads, int) else None,
            is_finished=result.get("status") == "finished",
            num_steps=result.get("steps"),
        )

    def with_overrides(self, new: list[str]) -> tuple[str, ...]:
        """The overrides of before, and the new ones in their place or after them."""
        by_key = {text.partition("=")[0]: text for text in (*self.overrides, *new)}
        return tuple(by_key.values())

    def changed_by(self, new: list[str]) -> tuple[str, ...]:
        """Overrides that the run did not have so far; how long it goes on is nobody's surprise."""
        if not self.is_there:
            return ()
        lengths = ("epochs", "steps")
        return tuple(
            text for text in new if text not in self.overrides and text.partition("=")[0] not in lengths
        )

    def shards_for(self, mode: Mode, asked: int | None) -> int | None:
        """Into how many shards a batch is cut: as asked, as before, or as by default; fast mode has none."""
        if mode == "bitwise":
            return asked or self.shards or DEFAULT_SHARDS
        if asked is not None:
            raise ConfigError(
                f"--shards {asked} was given for --mode {mode}, which has none: "
                "add --mode bitwise, or leave it out."
            )
        return None
