"""Warm rank: what a forked process does to be as one that was started, and to end as that does.

Knows what Python and libraries did once for all when they were loaded, and does it again for this process.
"""

import atexit
import contextlib
import gc
import importlib
import multiprocessing.process
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn

from samestep.launch.keeper import end_with
from samestep.probe.callers import begin_in
from samestep.probe.program import OURS
from samestep.probe.run import main

_NOT_THE_PROGRAMS = (OURS, __file__, str(Path(__file__).with_name("warm_server.py")))


@dataclass(frozen=True, kw_only=True)
class Request:
    """A rank to be forked; `arguments` are those of the probe, `folder` is the working folder."""

    arguments: list[str]
    env: dict[str, str]
    folder: str
    logs: str


def become(request: Request) -> None:
    """Have this process's files, environment, paths and generators be those of a rank that was started."""
    for number, name in ((1, "stdout.log"), (2, "stderr.log")):
        opened = os.open(Path(request.logs, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(opened, number)
        os.close(opened)
    own_seed = os.environ["PYTHONHASHSEED"]
    os.environ.clear()
    os.environ.update(request.env)
    os.environ["PYTHONHASHSEED"] = own_seed
    os.chdir(request.folder)
    begin_in(request.folder)
    if not sys.flags.safe_path:
        sys.path.insert(0, request.folder)
    importlib.invalidate_caches()
    sys.orig_argv = [sys.executable, "-m", "samestep.probe", *request.arguments]
    vars(multiprocessing.process)["ORIGINAL_DIR"] = request.folder
    multiprocessing.current_process().authkey = os.urandom(32)
    _draw_and_count_anew(request.env)


def _draw_and_count_anew(env: dict[str, str]) -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
        wanted = env.get("OPENBLAS_NUM_THREADS", env.get("OMP_NUM_THREADS", ""))
        num_threads = min(int(wanted), len(os.sched_getaffinity(0))) if wanted.isdecimal() else 1
        if num_threads > 1:
            pools = importlib.import_module("threadpoolctl").ThreadpoolController()
            pools.select(internal_api="openblas").limit(limits=num_threads)
    if "lightning_utilities.core.rank_zero" in sys.modules:
        sys.modules["lightning_utilities.core.rank_zero"].rank_zero_only.rank = int(env["RANK"])


def run(request: Request) -> NoReturn:
    """Do what `python -m samestep.probe` does, and end as it ends, by the same code or signal."""
    try:
        code = main(request.arguments)
    except SystemExit as end:
        code = 0 if end.code is None else end.code if isinstance(end.code, int) else 1
        if not isinstance(end.code, int | None):
            sys.stderr.write(f"{end.code}\n")
    except BaseException as error:
        error.__traceback__ = _as_started(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    _end(code)


def _as_started(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of this module, with those by which Python comes to any module."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_NOT_THE_PROGRAMS):
        trace = trace.tb_next
    for frame in _callers():
        if frame.f_code.co_filename == "<frozen runpy>":
            trace = TracebackType(trace, frame, frame.f_lasti, frame.f_lineno)
    return trace


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _end(code: int) -> NoReturn:
    """End as Python does, but for taking apart all modules, for which torch needs most of a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    del sys.modules["__main__"]
    gc.collect()  # objects of the program may have last words
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if code < 0:
        end_with(code)
    os._exit(code & 0xFF)
