"""Material: what a folder holds that a page can be made of, read and checked; it judges and draws nothing.

    DIR/verdict.json     what `samestep verify --out DIR` answered
    DIR/scale.json …     what `samestep scale --out DIR` measured, see `samestep.report.sweep`
    DIR/record.json …    the record of a training run, see `samestep.record`

Fields of a later Samestep are passed over; a file of another version is refused with a sentence.
"""

from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from samestep.errors import RecordError, listed
from samestep.record import Record
from samestep.report.sweep import Sweep, read_sweep
from samestep.report.written import FindingRow, Written, read_written

VERSION = 1
"""Of verdict.json; a file that names none has this one."""

Mark = Literal["same", "equal", "different"]


_WORDS = {
    "steps": "the number of steps",
    "examples": "the examples of the global batch",
    "inputs": "the inputs of the model",
    "forward": "the output of {}",
    "gradient": "the gradient of {}",
    "learning rate": "the setting {} of the optimizer",
    "buffer": "the buffer {}",
    "weight": "the weight {}",
    "metric": "the number in the line “{}”",
}


class FirstDifference(Written):
    """Where two runs first differ by more than rounding explains; sizes are in the quantity's own unit."""

    step: int
    quantity: str
    name: str
    ranks: tuple[int, ...] = ()
    size: float
    tolerance: float
    reference: float | str = ""
    candidate: float | str = ""

    @property
    def words(self) -> str:
        """What differs, as part of a sentence."""
        if self.quantity == "forward" and self.name == "output":
            return "the output of the model"
        return _WORDS.get(self.quantity, f"{self.quantity}, {{}}").replace("{}", self.name)


class RunRow(Written):
    """A run that was made for a verdict; `name` is its folder below that of the verification."""

    name: str
    world_size: int
    status: str
    seconds: float = 0.0
    why: str = ""
    failure: str = ""


class Verification(Written):
    """What verdict.json says; `command` is the words that `samestep` was called with, if they are known."""

    verdict: Literal["same", "equal", "different", "inconclusive"]
    worlds: tuple[int, ...]
    first_difference: FirstDifference | None = None
    findings: tuple[FindingRow, ...] = ()
    remarks: tuple[str, ...] = ()
    table: tuple[tuple[str, int, Mark], ...] = ()
    runs: tuple[RunRow, ...] = ()
    command: tuple[str, ...] = ()

    @property
    def num_steps(self) -> int:
        """The steps in which anything was compared."""
        return len({step for _, step, _ in self.table})


@dataclass(frozen=True, kw_only=True)
class Material:
    """All that is known of a folder; at least one of `verification`, `sweep` and `record` is there."""

    folder: Path
    verification: Verification | None = None
    sweep: Sweep | None = None
    record: Record | None = None
    findings: tuple[FindingRow, ...] = field(default=())
    """Those of all, each once."""

    @classmethod
    def read(cls, folder: Path) -> "Material":
        if not folder.is_dir():
            what = "it is a file" if folder.exists() else "there is no such folder"
            raise RecordError(
                f"A report on {folder} was asked for, but {what}; name a folder that --out was given."
            )
        verification = read_written(
            folder / "verdict.json",
            Verification,
            version=VERSION,
            noun="a verdict",
            again="verify the program again",
        )
        sweep = read_sweep(folder)
        record = Record.read(folder) if (folder / "record.json").exists() else None
        if verification is None and sweep is None and record is None:
            raise RecordError(_nothing(folder))
        rows = map(_finding, record.findings()) if record is not None else ()
        own = (answer.findings for answer in (verification, sweep) if answer is not None)
        findings = {(found.cause, found.message): found for found in chain(*own, rows)}
        return cls(
            folder=folder,
            verification=verification,
            sweep=sweep,
            record=record,
            findings=tuple(findings.values()),
        )


def _finding(row: dict[str, Any]) -> FindingRow:
    """A line of findings.jsonl, of whatever kind its values are."""
    evidence = row.get("evidence")
    return FindingRow(
        cause=str(row.get("cause", "")),
        message=str(row.get("message", "")),
        evidence=evidence if isinstance(evidence, dict) else {"evidence": evidence},
        fix=str(row.get("fix", "")),
    )


def _nothing(folder: Path) -> str:
    names = ("verdict.json", "scale.json", "record.json")
    below = sorted({path.parent.name for name in names for path in folder.glob(f"*/{name}")})
    if below:
        return (
            f"{folder} itself holds neither a verdict nor a sweep nor the record of a run, but folders in it "
            f"do; name one of them: {listed(below)}."
        )
    return (
        f"{folder} holds nothing to report: none of {listed(list(names))} is there; name a folder that "
        "--out of `samestep verify`, `samestep scale` or `samestep train` was given."
    )
