"""The run folder before a run: chosen, checked, locked and cleared of what an earlier attempt left."""

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from samestep.errors import LaunchError
from samestep.record import rank_folder, read_json

_OF_ONE_ATTEMPT = ("result.json", "progress.json", "agent.log")


def default_folder(target: str, now: datetime) -> Path:
    """runs/<target's name>-<date>-<time>, one that does not exist yet."""
    path, _, name = target.rpartition(":")
    stem = name if path else Path(target).stem
    stem = re.sub(r"[^\w.-]+", "-", stem).strip("-.") or "run"
    first = Path("runs") / f"{stem}-{now:%Y%m%d-%H%M%S}"
    folder, count = first, 1
    while folder.exists():
        count += 1
        folder = first.with_name(f"{first.name}-{count}")
    return folder


@contextlib.contextmanager
def prepared(folder: Path, *, resume: bool) -> Iterator[Path]:
    """Make `folder` ready for a run and keep it from other runs meanwhile; yields its full path.

    What earlier attempts recorded stays when the run resumes, and is never overwritten otherwise.
    """
    folder = folder.resolve()
    _check(folder, resume=resume)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise LaunchError(
            f"The run was to be written to {folder}, which cannot be written ({error.strerror}): "
            "choose another folder with --out."
        ) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LaunchError(
                f"The run was to be written to {folder}, where another run is still going on: "
                "wait for it, or choose another folder with --out."
            ) from None
        except OSError:
            pass  # a file system without locks
        _clear(folder)
        yield folder
    finally:
        os.close(lock)


def _check(folder: Path, *, resume: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise LaunchError(
            f"The run was to be written to {folder}, which is a file: choose a folder with --out."
        )
    is_run = (folder / "job.json").exists()
    if resume:
        if not is_run:
            raise LaunchError(f"--resume was given, but {folder} holds no run: name its folder with --out.")
        return
    if is_run:
        status = (read_json(folder / "result.json") or {}).get("status", "unfinished")
        has_steps = (folder / "steps.jsonl").exists()
        if status == "finished" or has_steps:
            raise LaunchError(
                f"The run was to be written to {folder}, which holds a run already (status: {status}): "
                "choose another folder with --out; a training goes on in its own with --resume."
            )
    elif folder.is_dir() and any(entry.name != ".lock" for entry in folder.iterdir()):
        raise LaunchError(
            f"The run was to be written to {folder}, which is not empty and holds no such run: "
            "choose a new or empty folder with --out."
        )


def _clear(folder: Path) -> None:
    for name in _OF_ONE_ATTEMPT:
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "agent", ignore_errors=True)
    for own in folder.glob("ranks/*"):
        _clear_rank(own)


def clear_rank(folder: Path, rank: int) -> None:
    """Remove what tells of a rank that is no more, so that its successor is not taken for it."""
    _clear_rank(rank_folder(folder, rank))


def _clear_rank(own: Path) -> None:
    for name in ("pid", "done", "error.json", "traceback.txt", "signal"):
        (own / name).unlink(missing_ok=True)
