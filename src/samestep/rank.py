"""One rank of a run: `python -m samestep.rank RUN_FOLDER`, started by torch's agent.

Reads job.json, does it, and leaves behind what the launcher looks for: pid, stdout.log and stderr.log, done
or error.json, the signal that it heard, and on the first rank result.json. Exit code 0, 2 for what Samestep
refused, else 1. A rank of a later round, after others were lost, goes on from the last checkpoint.
"""

import contextlib
import gc
import os
import re
import runpy
import signal
import sys
import sysconfig
import threading
import time
import traceback
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from samestep import phase
from samestep.errors import SamestepError
from samestep.findings import Finding
from samestep.launch import stack
from samestep.launch.failure import RankError
from samestep.launch.job import Job
from samestep.launch.tether import TETHERED_TO, die_with
from samestep.record import RecordWriter, rank_folder, write_json

_NOT_THE_USERS = (
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    str(Path(__file__).parent),
    "<frozen",
)


_IN_WORKER = "Original Traceback (most recent call last)"
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def main() -> int:
    """Do the job of the folder named on the command line; the exit code."""
    # it has kept files of the working folder from shadowing modules; the user's own processes may differ
    os.environ.pop("PYTHONSAFEPATH", None)
    folder = Path(sys.argv[1])
    rank = int(os.environ.get("RANK", "0"))
    own = rank_folder(folder, rank)
    own.mkdir(parents=True, exist_ok=True)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, partial(_ask_to_stop, own))
    if TETHERED_TO in os.environ:
        die_with(int(os.environ[TETHERED_TO]))
    _know_the_machine()
    _speak_to(own)
    (own / "pid").write_text(str(os.getpid()))
    phase.open(own / "phase")
    stack.offer(own / "stack.txt")
    try:
        _do(Job.read(folder), folder, rank)
    except BaseException as error:
        code = 2 if isinstance(error, SamestepError) else 1
        if _write_error(own, rank, error).is_lost_peer:
            _leave_at_once(code)
        _leave()
        return code
    sys.stdout.flush()
    (own / "done").touch()
    _leave()
    return 0


def _know_the_machine() -> None:
    """Say in the environment which ranks are on this machine; their agents call themselves a node each."""
    env = os.environ
    node, _, num_nodes = env.get("SAMESTEP_SEAT", "0/1").partition("/")
    env["LOCAL_RANK"] = env.get("SAMESTEP_LOCAL_RANK", env.get("RANK", "0"))
    env["LOCAL_WORLD_SIZE"] = env.get("SAMESTEP_LOCAL_SIZE", env.get("WORLD_SIZE", "1"))
    env |= {"GROUP_RANK": node, "GROUP_WORLD_SIZE": num_nodes}


def _do(job: Job, folder: Path, rank: int) -> None:
    record = RecordWriter(folder, rank)
    restarts = int(os.environ.get("SAMESTEP_RESTARTS", "0"))
    if restarts:
        job = replace(job, resume=True)
    began = time.monotonic()
    size = int(os.environ.get("WORLD_SIZE", "1"))
    record.describe(
        command=job.command,
        target=job.target,
        overrides=list(job.overrides),
        script=list(job.script),
        mode=job.mode,
        shards=job.shards,
        allow_drift=job.allow_drift,
        world_size=size,
        threads=int(os.environ.get("OMP_NUM_THREADS", "0")) or None,
    )
    event = "restarted" if restarts else "resumed" if job.resume else "started"
    record.event(event, world_size=size, mode=job.mode)
    try:
        result = _run_script(job, record) if job.command == "script" else _run_task(job, folder, record)
        from samestep.train import stop

        ending = {
            "status": "stopped" if stop.requested() else "finished",
            "command": job.command,
            "mode": job.mode,
            "world_size": size,
            "seconds": time.monotonic() - began,
        }
        ending |= result
        ending["restarts"] = restarts
        record.event(str(ending["status"]), reason=stop.requested())
        record.finish(ending)
    finally:
        record.close()


def _run_task(job: Job, folder: Path, record: RecordWriter) -> dict[str, Any]:
    from samestep.device import name_of
    from samestep.target import load
    from samestep.train.session import init

    task = load(job.target, list(job.overrides))
    timeout = {} if job.timeout_s is None else {"timeout_s": job.timeout_s}
    world = init(seed=task.seed, mode=job.mode, shards=job.shards, allow_drift=job.allow_drift, **timeout)
    record.describe(devices=world.gather_texts(name_of(world.device)), seed=task.seed)
    if job.command == "train":
        from samestep.train.loop import train

        return dict(train(task, world, out=folder, resume=job.resume, record=record))
    assert job.checkpoint is not None, "evaluate and predict are jobs on a checkpoint"
    if job.command == "evaluate":
        from samestep.train.evaluate import evaluate_checkpoint

        return dict(evaluate_checkpoint(task, world, folder, job.checkpoint, job.data))
    from samestep.train.predict import predict_checkpoint

    return dict(predict_checkpoint(task, world, folder, job.checkpoint, job.data))


def _run_script(job: Job, record: RecordWriter) -> dict[str, Any]:
    """Run a user's script in this process as `python` would; what it leaves in its globals is freed."""
    try:
        if job.script[0] == "-m":
            sys.argv = [job.script[1], *job.script[2:]]
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(job.script[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(job.script)
            sys.path.insert(0, str(Path(job.script[0]).resolve().parent))
            runpy.run_path(job.script[0], run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    if not _was_joined(job):
        finding = _not_joined(int(os.environ.get("WORLD_SIZE", "1")))
        record.finding(finding)
        return {"findings": [finding.to_json()]}
    # a script that has left its world does not say how many steps it made
    num_steps = getattr(_world(), "num_steps", 0)
    return {"steps": num_steps} if num_steps else {}


def _was_joined(job: Job) -> bool:
    """Whether a script of several ranks called `init`, or has a process group of its own.

    One that it has left again leaves no trace in torch: then the script's own words tell.
    """
    world_module, dist = sys.modules.get("samestep.world"), sys.modules.get("torch.distributed")
    if os.environ.get("WORLD_SIZE", "1") == "1" or (world_module is not None and world_module.was_entered()):
        return True
    if dist is None or not dist.is_available():
        return False
    path = Path(job.script[0])
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    return dist.is_initialized() or "init_process_group" in text


def _not_joined(size: int) -> Finding:
    return Finding(
        cause="world-not-joined",
        message=f"The script never called samestep.init(). Unless it joined its ranks by itself, each of the "
        f"{size} trained alone, on all examples.",
        evidence={"world_size": size},
        fix="call samestep.init() and train with what it returns; `samestep verify` tells what ranks have in "
        "common in a script that uses torch.distributed itself",
    )


def _world() -> Any:
    """The world that was joined, if one was; a script that needs none must not wait for torch."""
    world_module = sys.modules.get("samestep.world")
    return world_module.current() if world_module else None


def _leave() -> None:
    """Leave the world in good order: torch aborts the process if replicas outlive their group."""
    world = _world()
    # what fails on the way out, such as loader workers that are gone already, would only hide the cause
    with contextlib.suppress(Exception):
        gc.collect()
        if world is not None:
            world.close()


def _leave_at_once(code: int) -> NoReturn:
    """End this process with its last checkpoint written, but without a word to ranks that are gone."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _speak_to(own: Path) -> None:
    """Send this process's output, that of native code and of children included, to the rank's own files."""
    for name, stream, number in (("stdout", sys.stdout, 1), ("stderr", sys.stderr, 2)):
        stream.flush()
        file = os.open(own / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, number)
        os.close(file)
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]


def _ask_to_stop(own: Path, number: int, frame: FrameType | None) -> None:
    from samestep.train import stop

    with contextlib.suppress(OSError):
        (own / "signal").write_text(str(int(number)))
    stop.request("Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name)


def _write_error(own: Path, rank: int, error: BaseException) -> RankError:
    text = "".join(traceback.format_exception(error))
    (own / "traceback.txt").write_text(text, encoding="utf-8", errors="backslashreplace")
    message = str(error.code if isinstance(error, SystemExit) else error)
    where = _users_line(error)
    if _IN_WORKER in message:
        # torch wraps what a loader worker raised, traceback and all, into the message of a new exception
        frames = [f"{path}:{line}" for path, line in _FRAME.findall(message)]
        where = next((f for f in reversed(frames) if not f.startswith(_NOT_THE_USERS)), where)
        message = message.strip().splitlines()[-1].partition(": ")[2] or message
    is_exit = isinstance(error, SystemExit)
    told = RankError(
        rank=rank,
        kind=type(error).__name__,
        message=message,
        is_refusal=isinstance(error, SamestepError),
        is_user_error=bool(where) and not is_exit and not isinstance(error, SamestepError),
        where=where,
        traceback=text,
        time=time.monotonic(),
    )
    write_json(own / "error.json", asdict(told))
    return told


def _users_line(error: BaseException) -> str:
    """`path:line` of the innermost line of the user's own files that the exception passed through."""
    if isinstance(error, SyntaxError) and error.filename and not error.filename.startswith(_NOT_THE_USERS):
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


if __name__ == "__main__":
    sys.exit(main())
