"""The commands that make the same again, as far as the folder tells them."""

import shlex
from collections.abc import Mapping
from typing import Any

from samestep.record import Record
from samestep.report.material import Material
from samestep.report.section import Section
from samestep.report.surroundings import surroundings
from samestep.report.sweep import Sweep


def _values(material: Material) -> Mapping[str, Any] | None:
    commands = [
        *([_verify(material)] if material.verification is not None else []),
        *([_scale(material.sweep)] if material.sweep is not None else []),
        *([_train(material.record)] if material.record is not None else []),
        ["samestep", "report", str(material.folder)],
    ]
    return {"commands": [shlex.join(words) for words in commands if words]}


def _verify(material: Material) -> list[str]:
    verification = material.verification
    assert verification is not None
    if verification.command:
        return ["samestep", *verification.command[verification.command[0] == "samestep" :]]
    start = next((start for start, _, _ in surroundings(material)), None)
    if start is None or (start.program[:1] == ("-m",) and "samestep." in start.program[1]):
        return []  # how a task is run on a rank is not how it was asked for
    worlds = ",".join(map(str, verification.worlds))
    return ["samestep", "verify", "--gpus", worlds, "--", "python", *start.program]


def _scale(sweep: Sweep) -> list[str]:
    """Empty where the answer was made anew from runs: they do not tell what was asked for."""
    return ["samestep", *sweep.command[sweep.command[0] == "samestep" :]] if sweep.command else []


def _train(record: Record) -> list[str]:
    about = record.about
    command, script = about.get("command"), about.get("script") or []
    if command not in ("train", "script") or not (script or about.get("target")):
        return []
    words = ["samestep", "train"]
    if not script:
        words.append(str(about["target"]))
    words += ["--gpus", str(about.get("world_size", 1))]
    if about.get("mode") == "bitwise":
        words += ["--mode", "bitwise", "--shards", str(about.get("shards"))]
    if about.get("allow_drift"):
        words.append("--allow-drift")
    if about.get("threads"):
        words += ["--threads", str(about["threads"])]
    for override in about.get("overrides") or []:
        words += ["--set", str(override)]
    return [*words, "--", "python", *map(str, script)] if script else words


SECTION = Section(name="repeat", title="To repeat it", values=_values)
