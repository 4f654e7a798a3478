"""The line of the program is told, whatever library stands between."""

import os
import subprocess
import sys
from concurrent.futures import Future

from watching import ABORTED, run, seen

from samestep.observed import Collective, Loss, Optimizer, Step
from samestep.probe.callers import where, where_and_through


def test_the_innermost_line_that_belongs_to_no_library():
    code = test_the_innermost_line_that_belongs_to_no_library.__code__
    line = f"tests/probe/test_callers.py:{code.co_firstlineno + 3}"
    assert [where(), where_and_through()] == [line, (line, [])]


def test_functions_of_a_library_between_are_told():
    found = []
    for call in (lambda _: found.append(where_and_through()), _through_exec(found)):
        future = Future()
        future.add_done_callback(call)
        future.set_result(1)
    assert all(line.startswith("tests/probe/test_callers.py:") for line, _ in found)
    # the first is a line of the program itself, if one that a library calls
    assert found[0][1] == [] and "set_result" in [frame.f_code.co_name for frame in found[1][1]]


def _through_exec(found):
    space = {"where_and_through": where_and_through, "found": found}
    exec("def call(_): found.append(where_and_through())", space)  # noqa: S102
    return space["call"]


PROGRAM = """
import os, torch, torch.distributed as dist
os.chdir("/")
dist.init_process_group("gloo", init_method="file://" + os.environ["STORE"], rank=0, world_size=1)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    model(torch.ones(2)).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for _ in range(2):
        dist.all_reduce(torch.ones(1))
    optimizer.step()
step()
dist.destroy_process_group()
"""


def test_lines_of_losses_clips_collectives_and_optimizers(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(PROGRAM)
    watched = run("code/train.py", cwd=tmp_path, probe="seen", STORE=str(tmp_path / "store"))
    assert watched.returncode == 0 or watched.stderr.strip() == ABORTED, watched.stderr
    path = os.path.join("code", "train.py")  # noqa: PTH118
    (loss,), (optimizer,), (step,) = (seen(tmp_path / "seen", kind) for kind in (Loss, Optimizer, Step))
    assert (loss.where, optimizer.where) == (f"{path}:8", f"{path}:12")
    assert [clip.where for clip in step.clips] == [f"{path}:9"]
    assert step.collectives == (
        Collective(name="all_reduce", phase="between", count=2, num_bytes=8, where=f"{path}:11"),
    )


def test_a_process_without_a_line_of_a_program(tmp_path):
    code = "from samestep.probe.callers import where; import sys; sys.exit(where() != '')"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=tmp_path).returncode == 0
