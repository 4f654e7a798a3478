"""What the user named: a target, a script, numbers of ranks; as the rest of the program wants it."""

import os
from pathlib import Path
from typing import Literal

from samestep.errors import ConfigError, LaunchError, TargetError
from samestep.launch.job import Job, script_of
from samestep.launch.limits import Limits
from samestep.launcher import Seat, ranks_of_pod, seat_in
from samestep.report import console as show

_FILES = (".py", ".yaml", ".yml")


def check_target(target: str) -> None:
    """Refuse a file that is not there before anything is started for it."""
    file = target if Path(target).suffix in _FILES else target.rpartition(":")[0]
    if Path(file).suffix in _FILES and not Path(file).exists():
        raise TargetError(f"There is no file {file} (in {Path.cwd()}).")


def gpus_of(target: str) -> int:
    """The `n_gpus` of a YAML target, else 1."""
    path = Path(target)
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return 1
    import yaml

    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise TargetError(f"The target {target} cannot be read as YAML: {reason}") from None
    value = settings.get("n_gpus", 1) if isinstance(settings, dict) else 1
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"n_gpus is {value!r} in {target}; it must be a whole number, 1 or more.")
    return value


def seat_with(out: Path | None) -> Seat | None:
    """This process's seat among those that a launcher started, which all need to be told one folder."""
    seat = seat_in(os.environ)
    if seat is not None and out is None:
        raise LaunchError(
            f"This is {seat}: each would choose a folder of its own. Name one for all with --out."
        )
    return seat


def limits_of(gpus: Limits | None, seat: Seat | None, target: str) -> Limits:
    """On how many ranks to run: as asked, as many as a launcher started processes, or as the target says."""
    if gpus is not None:
        return gpus
    if seat is not None:
        return Limits(most=seat.num_ranks or seat.count)
    return Limits(most=ranks_of_pod(os.environ) or gpus_of(target))


def worlds_of(text: str) -> list[int]:
    """The world sizes to compare, in order, each once; 1 is always among them."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(
            f"--gpus is {text!r}; name world sizes with commas between them, as in --gpus 1,2,4."
        )
    sizes = sorted({int(part) for part in parts})
    if sizes == [1]:
        raise ConfigError(
            f"--gpus is {text!r}, which leaves nothing to compare with 1 rank: add a world, as in --gpus 1,2."
        )
    if sizes[0] != 1:
        show.talk().print(f"1 rank is added to --gpus {text}: it is what the others are compared with")
    return sorted({1, *sizes})


def job_to_watch(target: list[str], overrides: list[str] | None) -> Job:
    """The job of a TARGET, or of a script after `--`, to be run as it is."""
    if len(target) == 1:
        check_target(target[0])
        return Job(command="train", target=target[0], overrides=tuple(overrides or ()))
    if overrides:
        raise ConfigError(
            f"--set {overrides[0]} was given for a script; a script has its own arguments: put it there."
        )
    return Job(command="script", script=script_of(target))


def job_on_checkpoint(
    command: Literal["evaluate", "predict"],
    target: str,
    checkpoint: Path,
    data: str,
    overrides: list[str] | None,
    timeout: float | None,
) -> Job:
    is_best = checkpoint.name == "best" and checkpoint.parent.is_dir()
    if not checkpoint.exists() and not is_best:
        raise LaunchError(
            f"The checkpoint {checkpoint} was asked for, but nothing is there: correct the path."
        )
    return Job(
        command=command,
        target=target,
        overrides=tuple(overrides or ()),
        checkpoint=str(checkpoint.resolve()),
        data=data,
        timeout_s=timeout,
    )
