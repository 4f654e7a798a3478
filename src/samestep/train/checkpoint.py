"""Checkpoints: folders that are whole or absent, written beside the training, checked before use.

Knows how named state trees become files and how files become trees again. Refuses to know what the trees
mean, which rank it runs on, and where tensors belong: everything is read to the CPU.

    checkpoints/
      step-000000120/            a second save of step 120 is step-000000120-2 and takes its place
        model.safetensors        the tensors of section "model", under the names of its state
        optimizer.safetensors
        checkpoint.json          step, documents of the sections, size and SHA-256 of each file, meta
      best.json                  names the best one
      .tmp-...                   a save or a removal under way, or one that was killed

A folder gets its name by one atomic rename after its last byte is on the disk, and loses it by one before
its first file is removed. Nothing under a name is ever changed.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import threading
import warnings
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from samestep.errors import CheckpointError, ConfigError
from samestep.train.state import Tree, pack, unpack
from samestep.train.tensorfile import USE_ANOTHER, Damaged, Seal, check_tensors, read_tensors, write_tensors

FOLDER_NAME = "checkpoints"
"""What the folder of checkpoints is called inside the folder of a run."""

_FORMAT = "samestep-checkpoint"
_VERSION = 1
_MANIFEST = "checkpoint.json"
_BEST = "best.json"
_TEMPORARY = ".tmp-"
_NAME = re.compile(r"step-(\d{9,})(?:-(\d+))?")
_SECTION = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What was saved at one step, on the CPU."""

    step: int
    sections: dict[str, Tree]
    meta: dict[str, Any]
    path: Path


class CheckpointFolder:
    """The checkpoints of one run: the first rank writes, any rank reads.

    Keeps the `keep_last` newest steps and the best. `save` copies the state to memory that it holds for
    the next save, so a writing rank needs room on the host for the state once more.
    """

    def __init__(self, folder: Path, keep_last: int = 2) -> None:
        if keep_last < 1:
            raise ConfigError(f"keep_last is {keep_last}; at least 1 checkpoint must be kept.")
        self.folder = Path(folder)
        self.keep_last = keep_last
        self._is_open = False
        self._copies: dict[str, dict[str, Tensor]] = {}
        self._thread: threading.Thread | None = None
        self._failure: CheckpointError | None = None

    def open_for_writing(self) -> None:
        """Make the folder, see that it can be written to, and remove what killed saves left behind.

        `save` does this when nobody did; called before training, it fails before work could be lost.
        """
        if self._is_open:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for leftover in self.folder.glob(f"{_TEMPORARY}*"):
                _remove(leftover)
            trial = self.folder / f"{_TEMPORARY}trial"
            trial.touch()
            trial.unlink()
        except OSError as error:
            raise self._failed("Checkpoints cannot be written", error) from error
        self._is_open = True

    def save(self, step: int, sections: Mapping[str, Tree], meta: dict[str, Any], best: bool = False) -> None:
        """Copy the state and return; a thread writes it. Waits for the save before, and raises its error.

        Afterwards the caller may change the state. `meta` is any plain tree without tensors.
        """
        self.wait()
        self.open_for_writing()
        documents: dict[str, Any] = {}
        tensors: dict[str, dict[str, Tensor]] = {}
        for name, tree in sections.items():
            assert _SECTION.fullmatch(name), f"section {name!r} cannot name a file"
            documents[name], live = pack(tree)
            tensors[name] = self._copy(name, live)
        meta_document, stray = pack(meta)
        if stray:
            raise CheckpointError(
                f"The checkpoint's meta holds tensors or arrays at {', '.join(stray)}; "
                "keep numbers there (.item(), .tolist()) or give them as a section."
            )
        content = {"step": step, "sections": documents, "meta": meta_document}
        # not a daemon: a program that ends finishes its last checkpoint
        self._thread = threading.Thread(
            target=self._write, args=(step, content, tensors, best), name="samestep-checkpoint"
        )
        self._thread.start()

    def wait(self) -> None:
        """Return when no save is under way; raise the error of the last one."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def check(self) -> None:
        """Raise the error of a save that failed, once, without waiting."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def all(self) -> list[Path]:
        """The checkpoints on disk by step, the newest last; of a step saved twice, the second."""
        newest: dict[int, tuple[int, Path]] = {}
        for step, turn, path in self._named():
            newest[step] = max(newest.get(step, (0, path)), (turn, path))
        return [newest[step][1] for step in sorted(newest)]

    def latest(self) -> Path | None:
        """The newest checkpoint on disk, whole or not; `resolve` finds the newest that is whole."""
        found = self.all()
        return found[-1] if found else None

    def best(self) -> Path | None:
        """The checkpoint that was last saved as the best, or None."""
        pointer = self.folder / _BEST
        try:
            name = json.loads(pointer.read_bytes())["checkpoint"]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            name = None
        if not isinstance(name, str) or not _NAME.fullmatch(name) or not (self.folder / name).is_dir():
            raise CheckpointError(
                f"{pointer} should name the best checkpoint beside it, but names {name!r}, which is not "
                "there. Remove the file, or name one that is there: "
                f"{', '.join(path.name for path in self.all()) or 'none'}."
            )
        return self.folder / name

    def load(self, path: Path, *, only: Collection[str] | None = None) -> Checkpoint:
        """The same as the function `load`."""
        return load(path, only=only)

    def _copy(self, section: str, live: Mapping[str, Tensor]) -> dict[str, Tensor]:
        held = self._copies.pop(section, {})
        copies = {}
        # a buffer made under inference mode could not be written to outside of it
        with torch.inference_mode(False):
            for name, tensor in live.items():
                buffer = held.pop(name, None)
                if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                    buffer = torch.empty(tensor.shape, dtype=tensor.dtype)
                copies[name] = buffer.copy_(tensor)
        self._copies[section] = copies
        return copies

    def _write(
        self, step: int, content: dict[str, Any], tensors: dict[str, dict[str, Tensor]], best: bool
    ) -> None:
        temporary = self.folder / f"{_TEMPORARY}{_name(step)}-{os.getpid()}"
        pointer = temporary.with_suffix(".json")
        doing = f"The checkpoint of step {step} could not be written"
        try:
            temporary.mkdir()
            content["files"] = {
                _file_of(section): asdict(write_tensors(temporary / _file_of(section), named))
                for section, named in tensors.items()
                if named
            }
            manifest = {"format": _FORMAT, "version": _VERSION, **content}
            manifest["sha256"] = _sha256_of(manifest)
            _write_json(temporary / _MANIFEST, manifest)
            _sync(temporary)
            turn = max((turn for other, turn, _ in self._named() if other == step), default=0) + 1
            target = temporary.rename(self.folder / _name(step, turn))
            _sync(self.folder)
            if best:
                doing = f"{target.name} could not be marked as the best checkpoint"
                _write_json(pointer, {"checkpoint": target.name, "step": step})
                pointer.replace(self.folder / _BEST)
                _sync(self.folder)
            doing = "Older checkpoints could not be removed"
            self._prune()
        except Exception as error:
            # whatever happens here must reach the training; an exception of a thread would only be printed
            for leftover in (temporary, pointer):
                with contextlib.suppress(OSError):
                    _remove(leftover)
            self._failure = self._failed(doing, error)

    def _prune(self) -> None:
        keep = {*self.all()[-self.keep_last :], self.best()}
        for _, _, path in self._named():
            if path not in keep:
                doomed = path.with_name(f"{_TEMPORARY}removed-{path.name}")
                path.rename(doomed)
                _remove(doomed)

    def _named(self) -> list[tuple[int, int, Path]]:
        found = []
        if self.folder.is_dir():
            for path in self.folder.iterdir():
                match = _NAME.fullmatch(path.name)
                if match and path.is_dir():
                    found.append((int(match[1]), int(match[2] or 1), path))
        return found

    def _failed(self, doing: str, error: Exception) -> CheckpointError:
        reason = (
            error.strerror if isinstance(error, OSError) and error.strerror else str(error) or repr(error)
        )
        last = None
        with contextlib.suppress(OSError):
            last = self.latest()
        good = f"the last good checkpoint is {last.name}" if last else "there is no good checkpoint yet"
        failure = CheckpointError(
            f"{doing} in {self.folder}: {reason}; {good}. "
            "Make room, allow writing there, or choose another folder."
        )
        failure.__cause__ = error
        return failure


def load(path: Path, *, only: Collection[str] | None = None) -> Checkpoint:
    """Read one checkpoint, or `only` some sections of it; a file's size and digest are checked before use."""
    manifest = _read_manifest(path)
    sections = {}
    for name, document in manifest["sections"].items():
        if only is None or name in only:
            file = _file_of(name)
            seal = manifest["files"].get(file)
            sections[name] = unpack(document, read_tensors(path / file, Seal(**seal)) if seal else {})
    if only is not None and (absent := sorted(set(only) - sections.keys())):
        raise CheckpointError(
            f"{path} was asked for {', '.join(absent)}; it holds {', '.join(manifest['sections'])}."
        )
    return Checkpoint(step=manifest["step"], sections=sections, meta=unpack(manifest["meta"], {}), path=path)


def resolve(path_or_run_folder: Path) -> Path:
    """The checkpoint meant by a path: itself, or the newest whole one of a run folder or checkpoints folder.

    `RUN/best` is the best one of a run. In a folder, every file of the candidate is read and checked; damaged
    ones are passed over with a warning.
    """
    path = Path(path_or_run_folder)
    if path.name == "best" and not path.exists():
        best = CheckpointFolder(_inner(path.parent)).best()
        if best is None:
            raise CheckpointError(f"{path} was asked for, but the run there has not marked a best one yet.")
        return best
    if (path / _MANIFEST).exists() or _NAME.fullmatch(path.name):
        _read_manifest(path)
        return path
    candidates = CheckpointFolder(_inner(path)).all()
    damages = []
    for candidate in reversed(candidates):
        try:
            for file, seal in _read_manifest(candidate)["files"].items():
                check_tensors(candidate / file, Seal(**seal))
        except Damaged as damage:
            damages.append(str(damage))
            continue
        for text in damages:
            warnings.warn(f"{text} Taking {candidate.name} instead.", stacklevel=2)
        return candidate
    if damages:
        raise CheckpointError(f"None of the {len(damages)} checkpoints under {path} is whole. {damages[0]}")
    truth = "is a file" if path.is_file() else "has none of these" if path.is_dir() else "does not exist"
    raise CheckpointError(
        f"There is no checkpoint at {path}: looked for {_MANIFEST}, step-*/{_MANIFEST} and "
        f"{FOLDER_NAME}/step-*/{_MANIFEST} in it, but it {truth}. Give the folder of a run that saved one."
    )


def _inner(path: Path) -> Path:
    """The checkpoints folder of a run folder, or the path itself."""
    inner = path / FOLDER_NAME
    return inner if inner.is_dir() else path


def _name(step: int, turn: int = 1) -> str:
    return f"step-{step:09d}" + (f"-{turn}" if turn > 1 else "")


def _file_of(section: str) -> str:
    return f"{section}.safetensors"


def _sha256_of(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read_manifest(path: Path) -> dict[str, Any]:
    file = path / _MANIFEST
    try:
        manifest = json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise Damaged(
            f"{path} has no {_MANIFEST}, so it is not a Samestep checkpoint, or not a whole one. "
            f"{USE_ANOTHER}"
        ) from None
    except OSError as error:
        raise Damaged(f"{file} cannot be read ({error.strerror}). {USE_ANOTHER}") from error
    except ValueError as error:
        raise Damaged(f"{file} should be JSON, but is not ({error}). {USE_ANOTHER}") from error
    manifest = manifest if isinstance(manifest, dict) else {}
    kind, seal = manifest.get("format"), manifest.pop("sha256", None)
    # first of all: who changes it on purpose, as another version would, seals it again
    if (kind == _FORMAT or seal is not None) and seal != _sha256_of(manifest):
        raise Damaged(f"{file} does not have the SHA-256 that it states: it was changed. {USE_ANOTHER}")
    if kind != _FORMAT:
        raise CheckpointError(f"{file} has format {kind!r}; a Samestep checkpoint has {_FORMAT!r}.")
    version = manifest.get("version")
    if version != _VERSION:
        raise CheckpointError(
            f"{file} has format version {version!r}; this Samestep reads version {_VERSION}. "
            "Load it with the Samestep that wrote it, or a newer one."
        )
    return manifest


def _write_json(path: Path, value: Any) -> None:
    with path.open("x") as file:
        json.dump(value, file, indent=1, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Put the names in a folder on the disk: without it, a rename may be lost with the power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
