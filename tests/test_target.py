"""From a TARGET on the command line to a task, and what is said when there is none."""

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import samestep
from samestep import target
from samestep.errors import ConfigError, TargetError

HEAD = """
import torch
from torch import nn
from samestep import Task, supervised

def make(**settings):
    return Task(
        model=lambda: nn.Linear(2, 1), train_data=[0], loss=supervised(nn.MSELoss()),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1), **({"epochs": 1} | settings),
    )
"""


@pytest.fixture(autouse=True)
def _clean_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test in its own folder, and no module of one left over for the next."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(tmp_path) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


def write(name: str, body: str, head: str = HEAD) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(head + textwrap.dedent(body))
    return name


def test_file_with_one_task_with_a_name_and_with_the_name_task() -> None:
    assert target.load(write("one.py", "only = make(batch_size=3)")).batch_size == 3
    two = write("two.py", "a = make(batch_size=1)\nb = make(batch_size=2)")
    assert target.load(f"{two}:a").batch_size == 1
    assert target.load(f"{two}:b").batch_size == 2
    assert target.load(write("three.py", "a = make()\ntask = make(batch_size=9)")).batch_size == 9
    assert target.load(write("deep/four.py", "def build(width: int = 3) -> Task: return make()")).epochs == 1


def test_module_and_yaml_and_the_demo() -> None:
    write("pack/__init__.py", "", head="")
    write("pack/mod.py", "mine = make(batch_size=5)")
    assert target.load("pack.mod:mine").batch_size == 5
    assert target.load("samestep.demo:digits", ["epochs=1"]).epochs == 1
    write("nets.py", "net = nn.Linear\ndata = list\n")
    config = """
        model: {class: nets.net, in_features: 2, out_features: 1}
        data: {train: {class: nets.data}, batch_size: 6}
        loss: {class: torch.nn.MSELoss}
        optimizer: {class: torch.optim.SGD, lr: 1e-3}
        epochs: 1
    """
    for name in ("run.yaml", "run.yml"):
        task = target.load(write(name, config, head=""), ["seed=4"])
        assert (task.batch_size, task.seed) == (6, 4)
    with pytest.raises(TargetError, match="leave `:name` out"):
        target.load("run.yaml:name")


def test_the_folder_of_the_file_comes_first_and_the_module_keeps_its_name() -> None:
    write("there/helper.py", "SIZE = 11", head="")
    write("there/mine.py", "import helper\ntask = make(batch_size=helper.SIZE)")
    assert target.load("there/mine.py").batch_size == 11
    assert sys.path[0] == str(Path("there").resolve())
    assert sys.modules["mine"].task is target.load("there/mine.py"), "a second load imports the file again"


def test_two_files_of_one_name_do_not_mix_and_a_module_in_use_is_not_replaced() -> None:
    assert target.load(write("a/same.py", "task = make(batch_size=1)")).batch_size == 1
    assert target.load(write("b/same.py", "task = make(batch_size=2)")).batch_size == 2
    with pytest.raises(TargetError, match=r"torch.py has the name of the module `torch`.*rename"):
        target.load(write("torch.py", "task = make()"))
    assert sys.modules["torch"].__file__ != str(Path("torch.py").resolve())


def test_data_sets_of_a_file_reach_loader_processes_that_import_afresh() -> None:
    body = """
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 4
            def __getitem__(self, index): return index
        task = make(train_data=Data())
    """
    write("sub/spawned.py", body, head=HEAD.replace("train_data=[0], ", ""))
    write(
        "drive.py",
        """
        from torch.utils.data import DataLoader
        from samestep import target
        if __name__ == "__main__":
            data = target.load("sub/spawned.py").train_data
            loader = DataLoader(data, num_workers=1, batch_size=4, multiprocessing_context="spawn")
            print(next(iter(loader)).tolist())
        """,
        head="",
    )
    out = subprocess.run([sys.executable, "drive.py"], capture_output=True, text=True, timeout=60)
    assert out.stdout.strip() == "[0, 1, 2, 3]", out.stderr


def test_overrides_of_settings_are_checked_against_their_kinds() -> None:
    name = write("plain.py", "task = make()")
    task = target.load(
        name,
        ["batch_size=8", "clip_norm=1", "precision=bf16", "shuffle=false", "monitor=7", "ema_decay=9e-1"],
    )
    assert (task.batch_size, task.clip_norm, task.precision, task.shuffle) == (8, 1.0, "bf16", False)
    assert (task.monitor, task.ema_decay) == ("7", 0.9)
    assert target.load(name, ["epochs=2", "epochs=5"]).epochs == 5
    assert target.load(name, ["steps=3", "epochs=null"]).epochs is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("batch_sise=8", r"no setting `batch_sise`; did you mean `batch_size`\?"),
        ("zzz=8", r"no setting `zzz`\. The settings are batch_size, "),
        ("batch_size=many", "`batch_size` is 'many'; it should be a valid integer"),
        ("batch_size=1.5", "`batch_size` is 1.5; it should be"),
        ("batch_size=true", "`batch_size` is True; it should be a valid integer"),
        ("batch_size=0", "batch_size is 0; it must be a whole number, 1 or more"),
        ("precision=fp8", "it should be 'fp32', 'bf16' or 'fp16'"),
        ("optimizer=sgd", "`optimizer` of a task in Python is code.*def task"),
        ("optimizer.lr=1", "`optimizer` of a task in Python is code"),
        ("batch_size", "not of the form key=value"),
        ("batch_size=[1", "not YAML"),
    ],
)
def test_overrides_that_are_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        target.load(write("refusing.py", "task = make()"), [override])


def test_functions_take_overrides_that_match_their_parameters() -> None:
    name = write(
        "made.py",
        """
        from pathlib import Path
        seen = {}
        def task(width: int, name: str = "", rate=0.1, *, folder: Path = Path(), sizes: tuple[int, ...] = ()):
            seen.update(locals())
            return make()
        def wrong(): return 3
        def unreadable(width: "OnlyForTypeCheckers" = 3): return make(batch_size=width)
        """,
    )
    task = target.load(
        name, ["width=4", "name=8", "rate=1e-2", "folder=data", "sizes=[1, 2]", "batch_size=5"]
    )
    seen = sys.modules["made"].seen
    assert seen == {"width": 4, "name": "8", "rate": 0.01, "folder": Path("data"), "sizes": (1, 2)}
    assert task.batch_size == 5
    for overrides, kind, message in [
        ([], TargetError, "missing a required argument: 'width'.*--set"),
        (["width=wide"], ConfigError, "`width` is 'wide'; it should be a valid integer"),
        (["width=1", "rate=fast"], ConfigError, "it should be a valid number"),
        (["width=1", "rat=1"], ConfigError, "did you mean `rate`"),
    ]:
        with pytest.raises(kind, match=message):
            target.load(name, overrides)
    assert target.load(f"{name}:unreadable", ["width=6"]).batch_size == 6
    with pytest.raises(TargetError, match="what wrong returned is of type int"):
        target.load(f"{name}:wrong")


@pytest.mark.parametrize(
    ("name", "body", "asked", "message"),
    [
        ("here.py", "task = make()", "hare.py", "no file hare.py .*; did you mean `here.py`"),
        ("here.py", "task = make()", "gone/x.py", "no file gone/x.py"),
        ("here.py", "task = make()", "none.yaml", "no file none.yaml"),
        ("a/b.py", "", "a", "'a' is a folder; a target is `file.py`"),
        ("dir.py/b.py", "", "dir.py", "dir.py is a folder"),
        ("notes.txt", "", "notes.txt", "'notes.txt' is a file of another kind; a target is"),
        ("here.py", "", "json", "'json' is none of these; a target is"),
        ("here.py", "digits = make()", "here.py:digit", "has no `digit`; did you mean `digits`"),
        ("here.py", "digits = make()", "here.py:zzz", "has no `zzz`; its Tasks are digits"),
        ("here.py", "a = make()\nb = make()", "here.py", "several Tasks.*here.py:a`; its Tasks are a, b"),
        ("here.py", "", "here.py", "declares no Task.*`-- python here.py`"),
        ("here.py", "task = 3", "here.py", "here.py:task is of type int; it must be a Task"),
        ("here.py", "\n1 / 0", "here.py", r"here\.py:12: ZeroDivisionError: division by zero"),
        ("here.py", "a = (", "here.py", r"here\.py:11: SyntaxError: '\(' was never closed"),
        ("here.py", "import absent_one", "here.py", r"here\.py:11: ModuleNotFoundError: .*absent_one"),
        ("here.py", "torch.zeros(2) @ torch.zeros(3)", "here.py", r"here\.py:11: RuntimeError"),
        ("here.py", "raise SystemExit(1)", "here.py", "ended the program.*__main__"),
        ("here.py", "", "nowhere.mod:task", "there is no module `nowhere.mod`: `nowhere` was not found"),
        ("here.py", "import absent_one", "here:task", r"here\.py:11: ModuleNotFoundError: .*absent_one"),
        ("my.task.py", "task = make()", "my.task.py", "rename it"),
    ],
)  # fmt: skip
def test_targets_that_are_refused(name: str, body: str, asked: str, message: str) -> None:
    write(name, body)
    with pytest.raises(TargetError, match=message) as caught:
        target.load(asked)
    if "Error: " in message:
        assert caught.value.__cause__ is not None, "the user's exception is not chained"
    assert "here" not in sys.modules or asked.startswith("here"), "a file that failed stays imported"


def test_a_refusal_inside_the_file_keeps_its_class_and_says_the_line() -> None:
    with pytest.raises(ConfigError, match=r"bad\.py:7: batch_size is 0; it must be"):
        target.load(write("bad.py", "task = make(batch_size=0)"))
    assert "bad" not in sys.modules


def test_the_loader_is_what_the_package_calls_a_task() -> None:
    assert isinstance(target.load(write("kind.py", "task = make()")), samestep.Task)


def test_a_script_with_a_loop_of_its_own_is_refused_before_it_trains() -> None:
    body = "world = samestep.init()\nopen('trained', 'w').close()"
    with pytest.raises(ConfigError, match=r"loop\.py:12: .*samestep train --gpus N -- python FILE"):
        target.load(write("loop.py", body, head=f"{HEAD}import samestep\n"))
    assert not Path("trained").exists()
    # a file may have both, as long as the loop runs as a script only
    both = f"task = make(batch_size=4)\nif __name__ == '__main__':\n    {body.splitlines()[0]}"
    assert target.load(write("both.py", both, head=f"{HEAD}import samestep\n")).batch_size == 4
