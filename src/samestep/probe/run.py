"""Run: watches a program in this process, from its first line to its last.

Knows the command line, the launcher's environment, and how a program may end. It does not load torch:
`arrival` tells when the program has done so, and only then observers are put in place.
"""

import os
import platform
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from samestep import __version__
from samestep.errors import ConfigError, SamestepError
from samestep.experiment import Experiment
from samestep.observations import FORMAT, MOST_BYTES, STEPS_IN_FULL, ObservationWriter, observations_path
from samestep.observed import VERSION, End, Start
from samestep.probe.arrival import Arrival
from samestep.probe.changes.seeds import Seeds
from samestep.probe.program import OURS, prepared, show_without_us, without_us

if TYPE_CHECKING:
    from samestep.probe.installation import Installation

USAGE = (
    "python -m samestep.probe FOLDER [--steps K | --every K | --time [--blocks K]] [--most-mb M] "
    "[--experiment FILE] SCRIPT [ARGS], or -m MODULE [ARGS]"
)
_RANK_NAMES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_SIZE_NAMES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_NUMBERS = ("--steps", "--every", "--blocks", "--most-mb")
_MOST_TEXT = 3000


class Request(NamedTuple):
    """What the command line asked for; `program` is a script or "-m" and a module, and its arguments."""

    folder: Path
    program: list[str]
    steps_in_full: int = STEPS_IN_FULL
    most_bytes: int = MOST_BYTES
    experiment: Path | None = None
    every: int | None = None
    """Steps between two looks of the cheap mode, in which no step is full; None for the whole probe."""
    is_timed: bool = False
    """The timing mode, in which nothing but time is looked at."""
    block: int | None = None
    """Steps that are timed together; None for as many as are timed well."""


def main(arguments: list[str]) -> int:
    """Run and watch the program that the arguments name; 2 if they name none, else as the program ends."""
    try:
        request = parse(arguments)
        experiment = Experiment.read(request.experiment) if request.experiment else Experiment()
        execute = prepared(request.program)
        rank, size = _from_launcher(_RANK_NAMES) or 0, _from_launcher(_SIZE_NAMES)
        attempt = _from_launcher(("SAMESTEP_RESTARTS", "TORCHELASTIC_RESTART_COUNT")) or 0
        writer = _opened(observations_path(request.folder, rank, attempt), request.most_bytes)
    except SamestepError as error:
        sys.stderr.write(f"samestep.probe: {error}\n")
        return 2
    start = Start(
        format=FORMAT,
        version=VERSION,
        samestep=__version__,
        rank=rank,
        world_size=size,
        attempt=attempt,
        program=tuple(request.program),
        steps_in_full=request.steps_in_full,
        most_bytes=request.most_bytes,
        python=platform.python_version(),
        host=platform.node(),
        pid=os.getpid(),
        time=time.time(),
    )
    writer.write(start, flush=True)
    experiment = experiment.on_rank(rank, size or 1)
    seeds = None if experiment.seed is None else Seeds(experiment.seed + rank)
    if seeds is not None:
        seeds.install()
    try:
        _watch(execute, writer, request, experiment)
    finally:
        if seeds is not None:
            seeds.uninstall()
    return 0


def parse(arguments: list[str]) -> Request:
    """The request that command-line arguments make; options end where the program begins."""
    words = list(arguments)
    given: dict[str, int] = {}
    is_timed = False
    experiment: Path | None = None
    folder: Path | None = None
    while words and (words[0] != "-m") and (words[0].startswith("--") or folder is None):
        word = words.pop(0)
        if not word.startswith("--"):
            folder = Path(word)
            continue
        if word == "--time":
            is_timed = True
            continue
        option, equals, text = word.partition("=")
        text = text if equals else (words.pop(0) if words else "")
        if option == "--experiment" and text:
            experiment = Path(text).absolute()
            continue
        if option not in _NUMBERS or not text.isdecimal() or int(text) < 1:
            raise ConfigError(
                f"{option} {text} was given, but only {', '.join(_NUMBERS)}, each with a number from 1, "
                f"--time, and --experiment with a file are options of the probe; use: {USAGE}"
            )
        given[option] = int(text)
    if folder is None or not words or words == ["-m"]:
        raise ConfigError(f"A folder and a program are needed, and {arguments} names less; use: {USAGE}")
    most_bytes = given["--most-mb"] * 2**20 if "--most-mb" in given else MOST_BYTES
    every = given.get("--every")
    steps_in_full = 0 if is_timed or every is not None else given.get("--steps", STEPS_IN_FULL)
    block = given.get("--blocks")
    return Request(folder.absolute(), words, steps_in_full, most_bytes, experiment, every, is_timed, block)


def _watch(
    execute: Callable[[], None], writer: ObservationWriter, request: Request, experiment: Experiment
) -> None:
    """Run the program; what it raises passes through, with the probe's own frames taken out when printed."""
    began = time.perf_counter()
    is_cold = "torch" not in sys.modules
    installed: list[Installation] = []

    def install() -> None:
        installed.append(_installation(writer, request, experiment, is_cold))
        installed[0].install()

    arrival = Arrival("torch", install)
    arrival.install()
    end: dict[str, Any] = {"status": "finished", "exit_code": 0}
    me = os.getpid()
    try:
        execute()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        end = {"status": "finished" if code == 0 else "exited", "exit_code": code}
        end["message"] = "" if isinstance(error.code, int | None) else str(error.code)[:_MOST_TEXT]
        raise
    except BaseException as error:
        end = _failure(error)
        show_without_us()
        raise
    finally:
        arrival.uninstall()
        if os.getpid() == me:
            for each in installed:
                watch = each.watch
                each.uninstall()
                end |= {"num_steps": watch.step - 1, "num_scheduler_steps_after": watch.num_scheduler_steps}
                end["events_after"] = watch.events
                end["probe_s"] = watch.probe_s + watch.clock.take().get("probe", 0.0)
            seconds = time.perf_counter() - began
            dropped = dict(writer.dropped)
            writer.write(End(**end, saw_torch=bool(installed), seconds=seconds, dropped=dropped))
            writer.close()


def _installation(
    writer: ObservationWriter, request: Request, experiment: Experiment, is_cold: bool
) -> "Installation":
    if request.is_timed:
        from samestep.probe.timing import TimingInstallation

        return TimingInstallation(writer, request.block, experiment, is_cold=is_cold)
    if request.every is not None:
        from samestep.probe.cheap import CheapInstallation

        return CheapInstallation(writer, request.every)
    from samestep.probe.installation import Installation

    return Installation(writer, request.steps_in_full, experiment)


def _failure(error: BaseException) -> dict[str, Any]:
    error.__traceback__ = without_us(error.__traceback__)
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((OURS, "<frozen"))
    ]
    text = "".join(traceback.format_exception(error))
    return {
        "status": "failed",
        "exit_code": 130 if isinstance(error, KeyboardInterrupt) else 1,
        "error": type(error).__name__,
        "message": str(error)[:_MOST_TEXT],
        "where": f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "",
        "traceback": text[-_MOST_TEXT:],
    }


def _opened(path: Path, most_bytes: int) -> ObservationWriter:
    try:
        return ObservationWriter(path, most_bytes)
    except OSError as error:
        raise ConfigError(
            f"Observations were to be written to {path}, which cannot be opened ({error}); "
            "give the probe a folder that can be written to."
        ) from error


def _from_launcher(names: tuple[str, ...]) -> int | None:
    texts = (os.environ.get(name, "") for name in names)
    return next((int(text) for text in texts if text.isdecimal()), None)
