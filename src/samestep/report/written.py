"""Written: files of answers, read and checked; one of another version is refused with a sentence.

Fields of a later Samestep are passed over. Knows no folders and no pages.
"""

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from samestep import __version__
from samestep.errors import RecordError
from samestep.record import read_json


class Written(BaseModel):
    """Something that a command wrote down."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class FindingRow(Written):
    """One thing noticed, as `samestep.findings.Finding` writes it."""

    cause: str = ""
    message: str = ""
    evidence: dict[str, Any] = Field(default_factory=dict)
    fix: str = ""


Kind = TypeVar("Kind", bound=Written)


def read_written(path: Path, kind: type[Kind], *, version: int, noun: str, again: str) -> Kind | None:
    """What is in `path`, None where there is no such file; `noun` names it, `again` says how to get another.

    A file that names no version has this one.
    """
    if not path.exists():
        return None
    raw = read_json(path)
    if raw is None:
        raise RecordError(f"{path} is not a JSON object that can be read; {again}.")
    if raw.get("version", version) != version:
        by = f" ({raw['samestep']})" if raw.get("samestep") else ""
        raise RecordError(
            f"{path} has version {raw['version']}, and Samestep {__version__} reads version {version}; "
            f"make the report with the Samestep that wrote it{by}."
        )
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise RecordError(
            f"{path} is not {noun} that can be read ({place}: {first['msg']}); {again}."
        ) from None
