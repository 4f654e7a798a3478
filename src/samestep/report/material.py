"""Material: what a folder holds that a page can be made of, read and checked; it judges and draws nothing.

    DIR/verdict.json     what `samestep verify --out DIR` answered
    DIR/record.json …    the record of a training run, see `samestep.record`

Fields of a later Samestep are passed over; a file of another version is refused with a sentence.
"""

from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from samestep import __version__
from samestep.errors import RecordError, listed
from samestep.record import Record, read_json

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


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class FirstDifference(_Read):
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


class FindingRow(_Read):
    """One thing noticed, as `samestep.findings.Finding` writes it."""

    cause: str = ""
    message: str = ""
    evidence: dict[str, Any] = Field(default_factory=dict)
    fix: str = ""


class RunRow(_Read):
    """A run that was made for a verdict; `name` is its folder below that of the verification."""

    name: str
    world_size: int
    status: str
    seconds: float = 0.0
    why: str = ""
    failure: str = ""


class Verification(_Read):
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
    """All that is known of a folder; at least one of `verification` and `record` is there."""

    folder: Path
    verification: Verification | None = None
    record: Record | None = None
    findings: tuple[FindingRow, ...] = field(default=())
    """Those of both, each once."""

    @classmethod
    def read(cls, folder: Path) -> "Material":
        if not folder.is_dir():
            what = "it is a file" if folder.exists() else "there is no such folder"
            raise RecordError(
                f"A report on {folder} was asked for, but {what}; name a folder that --out was given."
            )
        verification = _verification(folder / "verdict.json")
        record = Record.read(folder) if (folder / "record.json").exists() else None
        if verification is None and record is None:
            raise RecordError(_nothing(folder))
        return cls(
            folder=folder, verification=verification, record=record, findings=_findings(verification, record)
        )


def _verification(path: Path) -> Verification | None:
    if not path.exists():
        return None
    raw = read_json(path)
    if raw is None:
        raise RecordError(f"{path} is not a JSON object that can be read; verify the program again.")
    if raw.get("version", VERSION) != VERSION:
        by = f" ({raw['samestep']})" if raw.get("samestep") else ""
        raise RecordError(
            f"{path} has version {raw['version']}, and Samestep {__version__} reads version {VERSION}; "
            f"make the report with the Samestep that wrote it{by}."
        )
    try:
        return Verification.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise RecordError(
            f"{path} is not a verdict that can be read ({place}: {first['msg']}); verify the program again."
        ) from None


def _findings(verification: Verification | None, record: Record | None) -> tuple[FindingRow, ...]:
    own = verification.findings if verification is not None else ()
    rows = (_finding(row) for row in record.findings()) if record is not None else ()
    return tuple({(found.cause, found.message): found for found in chain(own, rows)}.values())


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
    below = sorted(
        {path.parent.name for name in ("record", "verdict") for path in folder.glob(f"*/{name}.json")}
    )
    if below:
        return (
            f"{folder} itself holds neither a verdict nor the record of a run, but folders in it do; "
            f"name one of them: {listed(below)}."
        )
    return (
        f"{folder} holds nothing to report: neither verdict.json nor record.json is there; "
        "name a folder that `samestep verify --out` or `samestep train --out` was given."
    )
