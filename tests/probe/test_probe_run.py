"""The program must not notice that it is watched: run both ways, in processes of their own."""

import pytest
from watching import run, seen

from samestep.errors import ConfigError
from samestep.observations import Observations, multiset_print
from samestep.observed import (
    Batch,
    Call,
    End,
    Gradient,
    Group,
    Loader,
    Model,
    PassEnd,
    Start,
    State,
    Step,
    Trouble,
)
from samestep.probe.run import parse

PLAIN = """
import hashlib, os, random, sys
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Noisy(Dataset):
    def __len__(self):
        return 20
    def __getitem__(self, index):
        return torch.full((1, 6, 6), float(index)) + torch.rand(1, 6, 6) + np.random.rand(), index % 3

def train(workers):
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(64, 3)
    )
    loader = DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=workers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for epoch in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            nn.CrossEntropyLoss()(model(x.float()), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return hashlib.sha256(b"".join(v.numpy().tobytes() for v in model.state_dict().values())).hexdigest()

if __name__ == "__main__":
    torch.manual_seed(1), random.seed(2), np.random.seed(3)
    print(train(0), train(2))
    print(random.random(), np.random.rand(), torch.rand(1).item())
    print(sys.argv, sys.path[0], __file__, __spec__, sys.modules["__main__"].train is train)
    sys.exit(7)
"""

DDP = """
import hashlib, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 10), torch.randint(0, 3, (32,)))
model = nn.Sequential(nn.Linear(10, 20), nn.BatchNorm1d(20), nn.Dropout(0.2), nn.Linear(20, 3))
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
shared_out = DataLoader(data, batch_size=8, sampler=DistributedSampler(data), num_workers=1)
duplicated = DataLoader(data, batch_size=8, shuffle=True)
for loader in (shared_out, duplicated):
    torch.manual_seed(5)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
state = b"".join(v.numpy().tobytes() for v in model.state_dict().values())
# in one piece, since both ranks write to the same pipe
sys.stdout.write(f"{dist.get_rank()} {hashlib.sha256(state).hexdigest()}\\n")
dist.destroy_process_group()
"""

CRASH = """
import torch
from torch import nn
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
class Data:
    def __len__(self):
        return 4
    def __getitem__(self, index):
        if index == 2:
            raise KeyError("no such example")
        return torch.ones(2)
def train():
    try:
        for x in torch.utils.data.DataLoader(Data()):
            model(x).sum().backward()
            optimizer.step()
    except KeyError as error:
        raise RuntimeError("two\\nlines") from error
train()
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    script = folder / "train.py"
    script.write_text(PLAIN)
    alone = run(script, "--steps", "3", cwd=folder)
    watched = run(script, "--steps", "3", cwd=folder, probe=folder / "seen")
    return folder / "seen", alone, watched


def test_a_plain_script_behaves_the_same(plain):
    _, alone, watched = plain
    assert alone.returncode == watched.returncode == 7
    assert alone.stdout == watched.stdout and len(alone.stdout) > 200
    assert alone.stderr == watched.stderr == ""


def test_a_plain_script_is_seen(plain):
    folder, _, _ = plain
    assert seen(folder, Trouble) == [] and Observations.read(folder).remarks == []
    end = Observations.read(folder).end(0)
    assert (end.status, end.exit_code, end.num_steps, end.dropped) == ("exited", 7, 12, {})
    assert [loader.num_workers for loader in seen(folder, Loader)] == [0, 2]
    # each pass hands out each example once, with workers that draw ahead too
    assert [row.multiset for row in seen(folder, PassEnd)] == [multiset_print(range(20))] * 4
    assert [len(row.indices) for row in seen(folder, Batch)] == [8, 8, 4] * 4
    steps = seen(folder, Step)
    assert [event.name for event in steps[1].events] == [
        "schedule",
        "batch",
        "forward",
        "backward",
        "clip",
        "update",
    ]
    assert steps[0].clips[0].norm > 0 and steps[0].lr == (0.05,) and steps[2].lr == pytest.approx((0.005,))
    calls = [row for row in seen(folder, Call) if row.step == 1 and row.model == 0]
    assert [row.name for row in calls] == ["0", "1", "2", "3", "4", "5", ""]
    assert {row.name for row in seen(folder, State) if row.role == "buffer"} >= {"1.running_mean"}


@pytest.fixture(scope="module")
def ddp(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ddp")
    (folder / "train.py").write_text(DDP)
    alone = run(folder / "train.py", ranks=2)
    watched = run("-m", "samestep.probe", folder / "seen", folder / "train.py", ranks=2)
    assert alone.returncode == watched.returncode == 0, alone.stderr + watched.stderr
    return folder / "seen", alone, watched


def test_two_ranks_of_ddp_behave_the_same(ddp):
    _, alone, watched = ddp
    assert sorted(alone.stdout.splitlines()) == sorted(watched.stdout.splitlines())
    assert len(alone.stdout.splitlines()) == 2


def test_examples_that_two_ranks_share_out_or_duplicate(ddp):
    folder, _, _ = ddp
    for loader, is_duplicated in ((0, False), (1, True)):
        first, second = (
            [row.indices for row in seen(folder, Batch, rank) if row.loader == loader] for rank in (0, 1)
        )
        assert (first == second) == is_duplicated
        assert set(sum(first, ())).isdisjoint(sum(second, ())) != is_duplicated
    sums = [[row.multiset for row in seen(folder, PassEnd, rank)] for rank in (0, 1)]
    shared_out, duplicated = ((a + b) % 2**64 for a, b in zip(*sums, strict=True))
    assert shared_out == multiset_print(range(32)) != duplicated


def test_gradients_before_and_after_the_exchange(ddp):
    folder, _, _ = ddp
    found = [
        {(row.step, row.name, row.stage): row.summary for row in seen(folder, Gradient, rank)}
        for rank in (0, 1)
    ]
    assert len(found[0]) == 6 * 2 * 6
    for step, name, stage in found[0]:
        if stage == "local":
            a, b = (each[step, name, "local"].sample for each in found)
            applied = found[0][step, name, "applied"]
            # two numbers are halved, which is exact, and added, which rounds once to float32: by at most half
            # an ulp, 2 ** -24 of the result, or of the least normal number
            for x, y, mean in zip(a, b, applied.sample, strict=True):
                assert abs((x + y) / 2 - mean) <= 2**-24 * max(abs(mean), 2**-126)
            assert applied == found[1][step, name, "applied"]
    assert found[0][1, "0.weight", "local"].print != found[1][1, "0.weight", "local"].print


def test_wraps_groups_and_collectives_of_two_ranks(ddp):
    folder, _, _ = ddp
    for rank in (0, 1):
        assert seen(folder, Trouble, rank) == []
        start, group = seen(folder, Start, rank)[0], seen(folder, Group, rank)[0]
        assert (start.rank, start.world_size) == (group.rank, group.world_size) == (rank, 2)
        model = seen(folder, Model, rank)[0]
        assert model.wraps[0].kind == "DistributedDataParallel"
        assert model.wraps[0].settings["find_unused_parameters"] == "False"
        assert [(norm.name, norm.kind) for norm in model.norms] == [("1", "BatchNorm1d")]
        assert [(layer.name, layer.p) for layer in model.dropouts] == [("2", 0.2)]
        steps = seen(folder, Step, rank)
        assert [(c.name, c.phase, c.count, c.num_bytes) for c in steps[2].collectives] == [
            ("all_reduce", "between", 1, 4)
        ]
        assert {"data", "forward", "backward", "exchange", "update", "probe"} <= set(steps[2].phases_s)


def test_replicas_and_statistics_that_drift(ddp):
    folder, _, _ = ddp
    prints = [
        {(row.step, row.name): row.summary.print for row in seen(folder, State, rank)} for rank in (0, 1)
    ]
    differing = {key for key in prints[0] if prints[0][key] != prints[1][key]}
    # steps 1 and 2 saw other examples on each rank, 3 to 6 the same
    assert differing == {(step, f"1.running_{name}") for step in (1, 2) for name in ("mean", "var")}


def test_a_crash_is_printed_as_ever_and_leaves_a_record(tmp_path):
    (tmp_path / "train.py").write_text(CRASH)
    alone = run("train.py", cwd=tmp_path)
    watched = run("train.py", cwd=tmp_path, probe="seen")
    assert (alone.returncode, alone.stdout, alone.stderr) == (1, watched.stdout, watched.stderr)
    assert watched.returncode == 1 and "direct cause" in alone.stderr
    end = Observations.read(tmp_path / "seen").end(0)
    assert (end.status, end.error, end.message) == ("failed", "RuntimeError", "two\nlines")
    assert end.where == f"{tmp_path}/train.py:19" and end.num_steps == 2
    assert len(seen(tmp_path / "seen", Step)) == 2


def test_a_process_that_is_killed_leaves_its_steps(tmp_path):
    text = CRASH.replace("raise KeyError", "__import__('os')._exit(9); raise KeyError")
    (tmp_path / "train.py").write_text(text)
    assert run("train.py", cwd=tmp_path, probe="seen").returncode == 9
    assert len(seen(tmp_path / "seen", Step)) == 2 and Observations.read(tmp_path / "seen").end(0) is None


def test_a_module_and_a_program_that_never_steps(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__main__.py").write_text(
        "import sys; print(sys.argv, sys.path[0], __file__, __package__, __spec__.name); 1 / 0"
    )
    alone = run("-m", "pkg", "-m", "x", cwd=tmp_path)
    watched = run("-m", "pkg", "-m", "x", cwd=tmp_path, probe="seen")
    assert (alone.returncode, alone.stdout, alone.stderr) == (1, watched.stdout, watched.stderr)
    (end,) = seen(tmp_path / "seen", End)
    assert (end.num_steps, end.saw_torch, end.error) == (0, False, "ZeroDivisionError")


@pytest.mark.parametrize(
    "code", ["import sys; sys.exit('so long')", "raise KeyboardInterrupt", "x = (", "print('é')"]
)
def test_every_way_to_end_is_kept(tmp_path, code):
    (tmp_path / "a.py").write_text(code)
    alone, watched = run("a.py", cwd=tmp_path), run("a.py", cwd=tmp_path, probe="seen")
    assert alone.returncode == watched.returncode
    assert (alone.stdout, alone.stderr) == (watched.stdout, watched.stderr)


def test_the_environment_can_be_set_before_torch_is_loaded(tmp_path):
    code = "import os, sys; print('torch' in sys.modules); os.environ['OMP_NUM_THREADS'] = '2'; import torch"
    (tmp_path / "a.py").write_text(f"{code}; print(torch.get_num_threads(), torch.__spec__.loader)")
    alone, watched = run("a.py", cwd=tmp_path), run("a.py", cwd=tmp_path, probe="seen")
    assert watched.stdout.startswith("False\n2 ") and "SourceFileLoader" in watched.stdout
    assert alone.stdout.split(" at ")[0] == watched.stdout.split(" at ")[0]


def test_the_command_line(tmp_path):
    request = parse(["--steps=3", "out", "--most-mb", "2", "train.py", "--steps", "9"])
    assert request.program == ["train.py", "--steps", "9"]
    assert (request.steps_in_full, request.most_bytes, request.folder.name) == (3, 2**21, "out")
    assert parse(["out", "-m", "pkg", "-m"]).program == ["-m", "pkg", "-m"]
    for wrong in ([], ["out"], ["out", "-m"], ["out", "--steps", "0", "a.py"], ["out", "--loud", "a.py"]):
        with pytest.raises(ConfigError, match="use: python -m"):
            parse(wrong)


def test_a_script_that_is_not_there_or_a_folder_that_cannot_be_made(tmp_path):
    watched = run("nothing.py", cwd=tmp_path, probe="seen")
    assert watched.returncode == 2 and "nothing.py was to be run" in watched.stderr
    (tmp_path / "a.py").write_text("print(1)")
    watched = run("a.py", cwd=tmp_path, probe="a.py")
    assert watched.returncode == 2 and "cannot be opened" in watched.stderr and watched.stdout == ""
