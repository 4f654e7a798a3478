import contextlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import tempfile
import threading
import time
import warnings
from functools import partial
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from samestep.errors import CheckpointError, ConfigError
from samestep.train import checkpoint
from samestep.train.checkpoint import CheckpointFolder, load, resolve
from samestep.train.optimizer_state import load_optimizer_state, optimizer_state
from samestep.train.state import digest

processes = multiprocessing.get_context("fork")  # the children use one thread, and start in milliseconds


def sections(step: int, size: int = 1000) -> dict:
    return {
        "model": {"w": torch.full((size,), float(step)), "n": torch.tensor(step)},
        "loop": {"epoch": (step, None)},
    }


def filled(folder: Path, steps=(1, 2, 3), **options) -> CheckpointFolder:
    checkpoints = CheckpointFolder(folder, **options)
    for step in steps:
        checkpoints.save(step, sections(step), {"loss": float("nan"), "step": step})
    checkpoints.wait()
    return checkpoints


def names(checkpoints: CheckpointFolder) -> list[str]:
    return [path.name for path in checkpoints.all()]


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def is_whole(path: Path | None) -> bool:
    loaded = load(path)
    return bool((loaded.sections["model"]["w"] == loaded.step).all()) and loaded.meta["step"] == loaded.step


# --- saving and loading ------------------------------------------------------------------------------------


def test_a_training_comes_back_whole(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer_state(optimizer, model),
        "loop": {"epoch": 3},
    }
    checkpoints = CheckpointFolder(tmp_path / "checkpoints")
    checkpoints.save(120, state, {"world_size": 2, "loss": float("inf")}, best=True)
    checkpoints.wait()
    path = checkpoints.latest()
    assert path == checkpoints.best() == tmp_path / "checkpoints" / "step-000000120"
    files = {"model.safetensors", "optimizer.safetensors", "checkpoint.json"}  # "loop" has no tensors
    assert {file.name for file in path.iterdir()} == files

    loaded = checkpoints.load(path)
    assert (loaded.step, loaded.meta, loaded.path) == (120, {"world_size": 2, "loss": float("inf")}, path)
    assert digest(loaded.sections) == digest(state)
    again = torch.optim.AdamW(model.parameters(), lr=0.3)
    load_optimizer_state(again, model, loaded.sections["optimizer"])
    assert again.param_groups[0]["lr"] == 0.1

    nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).load_state_dict(
        safetensors.torch.load_file(path / "model.safetensors"), strict=True
    )
    assert load(path, only={"loop"}).sections == {"loop": {"epoch": 3}}
    with pytest.raises(CheckpointError, match="asked for ema; it holds model, optimizer, loop"):
        load(path, only={"ema"})


def test_save_returns_at_once_with_a_copy_and_the_next_one_waits(tmp_path, monkeypatch):
    may_finish, sync = threading.Event(), os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (may_finish.wait(60), sync(handle)))
    checkpoints = CheckpointFolder(tmp_path)
    state = sections(1)
    checkpoints.save(1, state, {"step": 1})
    assert checkpoints.latest() is None  # still at its first fsync
    state["model"]["w"].zero_()
    second = threading.Thread(target=lambda: checkpoints.save(2, sections(2), {"step": 2}))
    second.start()
    time.sleep(0.05)
    assert second.is_alive() and checkpoints.latest() is None
    may_finish.set()
    second.join()
    checkpoints.wait()
    assert all(map(is_whole, checkpoints.all())) and len(checkpoints.all()) == 2


def test_copies_are_reused_where_shapes_agree(tmp_path):
    checkpoints = filled(tmp_path, steps=(1,))
    held = checkpoints._copies["model"]["w"].data_ptr()
    checkpoints.save(2, sections(2), {"step": 2})
    checkpoints.wait()
    assert checkpoints._copies["model"]["w"].data_ptr() == held
    with torch.inference_mode():
        checkpoints.save(3, sections(3, size=7), {"step": 3})
    checkpoints.save(4, sections(4, size=7), {"step": 4})
    checkpoints.wait()
    assert load(checkpoints.latest()).sections["model"]["w"].shape == (7,)


def test_the_last_ones_and_the_best_are_kept(tmp_path):
    checkpoints = CheckpointFolder(tmp_path, keep_last=2)
    for step in range(1, 7):
        checkpoints.save(step, sections(step), {"step": step}, best=step in (1, 3))
    checkpoints.wait()
    assert names(checkpoints) == ["step-000000003", "step-000000005", "step-000000006"]
    assert checkpoints.best().name == "step-000000003"
    assert listing(tmp_path) == ["best.json", *names(checkpoints)]
    with pytest.raises(ConfigError, match="keep_last is 0"):
        CheckpointFolder(tmp_path, keep_last=0)


def test_a_step_saved_again_takes_the_place_of_the_first(tmp_path):
    checkpoints = filled(tmp_path, steps=(1, 2))
    for size in (5, 6):
        checkpoints.save(2, sections(2, size=size), {"step": 2}, best=size == 5)
    checkpoints.wait()
    assert load(checkpoints.latest()).sections["model"]["w"].shape == (6,)
    assert load(checkpoints.best()).sections["model"]["w"].shape == (5,)
    assert listing(tmp_path) == [
        "best.json",
        "step-000000001",
        "step-000000002-2",
        "step-000000002-3",
    ]


def test_tensors_in_meta_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"meta holds tensors or arrays at loss"):
        CheckpointFolder(tmp_path).save(1, {}, {"loss": torch.ones(1)})


# --- kills -------------------------------------------------------------------------------------------------


@pytest.fixture
def quick_folder(tmp_path):
    """A folder in memory where there is one: to a kill it is like a disk, and a shared disk is slow."""
    memory = Path("/dev/shm")  # noqa: S108
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as folder:
        yield Path(folder)


def save_for_ever(folder: Path, first: int) -> None:
    torch.set_num_threads(1)
    checkpoints = CheckpointFolder(folder)
    step = first
    while True:
        checkpoints.save(step, sections(step, size=500_000), {"step": step}, best=step % 2 == 0)
        step += 1


def overwrite_for_ever(file: Path, _: int) -> None:
    torch.set_num_threads(1)
    while True:
        torch.save(sections(1, size=500_000), file)


def has_reached(checkpoints: CheckpointFolder, step: int) -> bool:
    return names(checkpoints)[-1:] >= [f"step-{step:09d}"]


def killed_after(delay_s: float, target, path: Path, first: int, has_begun) -> None:
    process = processes.Process(target=target, args=(path, first))
    process.start()
    deadline = time.monotonic() + 60
    while not has_begun():
        assert time.monotonic() < deadline and process.is_alive()
        time.sleep(0.001)
    time.sleep(delay_s)
    process.kill()
    process.join()


def test_a_kill_at_any_instant_leaves_whole_checkpoints(quick_folder):
    chance = random.Random(0)
    first = 0  # every second step is a best one, and each process begins with one
    best_step = -1
    num_caught = 0
    for _ in range(15):
        reader = CheckpointFolder(quick_folder)
        has_begun = partial(has_reached, reader, first)
        killed_after(chance.uniform(0.0, 0.03), save_for_ever, quick_folder, first, has_begun)
        num_caught += bool(list(quick_folder.glob(".tmp-*")))
        latest = load(reader.latest())
        assert latest.step >= first and all(map(is_whole, reader.all()))
        if reader.best() is not None:
            assert is_whole(reader.best()) and load(reader.best()).step >= best_step
            best_step = load(reader.best()).step
        # a save begins when the one before is done, its mark included
        assert best_step >= first or latest.step == first
        first = latest.step + 2 - latest.step % 2
    assert num_caught > 0, "no kill hit a save under way, so nothing was shown"
    CheckpointFolder(quick_folder).open_for_writing()
    assert not list(quick_folder.glob(".tmp-*"))


def test_control_a_file_written_over_itself_is_lost(quick_folder):
    chance = random.Random(0)
    file = quick_folder / "model.pt"
    for _ in range(40):
        killed_after(chance.uniform(0.0, 0.03), overwrite_for_ever, file, 0, file.exists)
        try:
            torch.load(file, weights_only=True)
        except (RuntimeError, EOFError):
            return
        file.unlink()
    pytest.fail("forty kills never damaged a file that was written over itself")


# --- failures of the disk ----------------------------------------------------------------------------------


def save_beyond_the_limit(folder: Path, answers) -> None:
    torch.set_num_threads(1)
    checkpoints = CheckpointFolder(folder)
    checkpoints.save(1, sections(1), {"step": 1}, best=True)
    checkpoints.wait()
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    checkpoints.save(2, sections(2, size=1_000_000), {"step": 2})
    try:
        checkpoints.wait()
    except CheckpointError as error:
        answers.send(str(error))
    checkpoints.check()  # said once
    checkpoints.save(3, sections(3), {"step": 3})
    checkpoints.wait()
    answers.send("done")


def test_a_full_disk_is_told_and_harms_nothing(tmp_path):
    ours, theirs = processes.Pipe()
    process = processes.Process(target=save_beyond_the_limit, args=(tmp_path, theirs))
    process.start()
    assert ours.poll(60)
    assert ours.recv() == (
        f"The checkpoint of step 2 could not be written in {tmp_path}: File too large; the last good "
        "checkpoint is step-000000001. Make room, allow writing there, or choose another folder."
    )
    assert ours.poll(60) and ours.recv() == "done"
    process.join()
    assert listing(tmp_path) == ["best.json", "step-000000001", "step-000000003"]
    assert all(map(is_whole, CheckpointFolder(tmp_path).all()))


@pytest.mark.parametrize("folder", ["file", "file/checkpoints"])
def test_a_folder_that_cannot_be_made_is_told_before_training(tmp_path, folder):
    (tmp_path / "file").touch()
    with pytest.raises(
        CheckpointError, match=r"cannot be written in .*file.*: (File exists|Not a directory); there"
    ):
        CheckpointFolder(tmp_path / folder).open_for_writing()


@pytest.mark.parametrize("ask", ["check", "wait", "save"])
def test_an_error_of_the_thread_surfaces_at_the_next_call(tmp_path, ask):
    checkpoints = filled(tmp_path / "a", steps=(1,))
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "a").touch()
    checkpoints.save(2, sections(2), {"step": 2})
    checkpoints._thread.join()
    with pytest.raises(
        CheckpointError, match=r"step 2 could not be written .*: Not a directory; there is no good"
    ):
        checkpoints.save(3, {}, {}) if ask == "save" else getattr(checkpoints, ask)()
    checkpoints.check()


def test_a_reader_changes_nothing(tmp_path):
    filled(tmp_path, steps=(1,))
    (tmp_path / ".tmp-step-000000002-1").mkdir()
    reader = CheckpointFolder(tmp_path)
    assert (names(reader), reader.best()) == (["step-000000001"], None)
    assert (tmp_path / ".tmp-step-000000002-1").exists()
    assert CheckpointFolder(tmp_path / "absent").latest() is None and not (tmp_path / "absent").exists()


def test_a_pointer_to_nothing_is_told(tmp_path):
    filled(tmp_path, steps=(1,))
    for text in ('{"checkpoint": "step-000000009"}', "{", '{"checkpoint": "../x"}', "[]"):
        (tmp_path / "best.json").write_text(text)
        with pytest.raises(
            CheckpointError, match=r"best.json should name .* one that is there: step-000000001"
        ):
            CheckpointFolder(tmp_path).best()


# --- damage ------------------------------------------------------------------------------------------------


MODEL = "model.safetensors"


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 4
    file.write_bytes(data)


DAMAGES = {
    "flipped weights": (lambda p: flip(p / MODEL, -3), f"{MODEL} has SHA-256"),
    "flipped header": (lambda p: flip(p / MODEL, 20), f"{MODEL} has SHA-256"),
    "truncated": (lambda p: os.truncate(p / MODEL, 99), rf"{MODEL} has 99 bytes; \d+ were written"),
    "missing file": (lambda p: (p / MODEL).unlink(), f"{MODEL} cannot be read .No such file"),
    "missing json": (lambda p: (p / "checkpoint.json").unlink(), "has no checkpoint.json"),
    "truncated json": (lambda p: os.truncate(p / "checkpoint.json", 150), "checkpoint.json should be JSON"),
    "changed json": (lambda p: change(p, lambda m: m["meta"].update(step=8)), "json does not have the SHA"),
}


def change(path: Path, edit) -> None:
    manifest = json.loads((path / "checkpoint.json").read_text())
    edit(manifest)
    (path / "checkpoint.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_told_and_passed_over(tmp_path, name):
    damage, message = DAMAGES[name]
    checkpoints = filled(tmp_path / "checkpoints", steps=(1, 2))
    newest = checkpoints.latest()
    damage(newest)
    with pytest.raises(CheckpointError, match=message):
        load(newest)
    with pytest.warns(UserWarning, match=f"{message}.*Taking step-000000001 instead"):
        assert resolve(tmp_path) == checkpoints.all()[0]
    shutil.rmtree(checkpoints.all()[0])
    with pytest.raises(CheckpointError, match=f"None of the 1 checkpoints under .* is whole.*{message}"):
        resolve(tmp_path)


def sealed(manifest, **changes):
    """Change a manifest as another program that writes its own would."""
    manifest.update(changes)
    del manifest["sha256"]
    manifest["sha256"] = checkpoint._sha256_of(manifest)


@pytest.mark.parametrize("text", [b'"samestep-checkpoint"', b'"version"', b'"sha256"', b'"format"'])
def test_a_bit_flipped_in_what_a_checkpoint_says_it_is_is_passed_over(tmp_path, text):
    checkpoints = filled(tmp_path, steps=(1, 2))
    manifest = checkpoints.latest() / "checkpoint.json"
    flip(manifest, manifest.read_bytes().index(text) + 2)
    with pytest.warns(UserWarning, match="Taking step-000000001 instead"):
        assert resolve(tmp_path) == checkpoints.all()[0]


def test_any_flipped_bit_of_the_manifest_is_noticed_or_harmless(tmp_path):
    path = filled(tmp_path, steps=(1,)).latest()
    good, whole = (path / "checkpoint.json").read_bytes(), digest(load(path).sections)
    for at in range(0, len(good), 7):
        flip(path / "checkpoint.json", at)
        with contextlib.suppress(CheckpointError):
            assert digest(load(path).sections) == whole
        (path / "checkpoint.json").write_bytes(good)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda m: sealed(m, format="other"),
            "has format 'other'; a Samestep checkpoint has 'samestep-checkpoint'",
        ),
        (lambda m: sealed(m, version=2), "has format version 2; this Samestep reads version 1"),
        (lambda m: m.clear(), "has format None"),
    ],
)
def test_foreign_and_newer_formats_are_refused_not_passed_over(tmp_path, edit, message):
    path = filled(tmp_path, steps=(1, 2)).latest()
    change(path, edit)
    for ask in (lambda: load(path), lambda: resolve(path), lambda: resolve(tmp_path)):
        with pytest.raises(CheckpointError, match=message):
            ask()


def test_resolve_accepts_the_run_its_folder_and_one_checkpoint(tmp_path):
    checkpoints = filled(tmp_path / "run" / checkpoint.FOLDER_NAME, steps=(1, 2))
    oldest, newest = checkpoints.all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (
            resolve(tmp_path / "run")
            == resolve(tmp_path / "run" / "checkpoints")
            == resolve(newest)
            == newest
        )
        assert resolve(oldest) == oldest


def test_resolve_says_what_it_looked_for(tmp_path):
    (tmp_path / "file").touch()
    for path, truth in (
        (tmp_path, "has none"),
        (tmp_path / "x", "does not exist"),
        (tmp_path / "file", "is a file"),
    ):
        with pytest.raises(
            CheckpointError, match=rf"looked for checkpoint.json, step-\*/checkpoint.json .*{truth}"
        ):
            resolve(path)
