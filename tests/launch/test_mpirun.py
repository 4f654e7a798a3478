"""A real mpirun: what it starts finds its place, with and without being told where to meet."""

import json
import os
import shutil
import subprocess
import sys

import pytest

MPIRUN = shutil.which("mpirun")
pytestmark = pytest.mark.skipif(MPIRUN is None, reason="there is no mpirun on the PATH")
# root and more processes than cores: Open MPI wants to be told so; MPICH does not read these
ENV = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


def mpirun(*words, cwd, **env):
    done = subprocess.run(
        [MPIRUN, "-n", "2", sys.executable, *map(str, words)],
        cwd=cwd, env={**os.environ, **ENV, **env}, capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_samestep_train_takes_its_part_and_says_under_whom(tmp_path):
    words = ("-m", "samestep", "train", "samestep.demo:digits", "--threads", "1", "--set", "epochs=1")
    done = mpirun(*words, "--out", "run", "--json", cwd=tmp_path)
    assert "process 0 of 2 under mpirun: 2 ranks meet at 127.0.0.1:" in done.stderr
    (line,) = done.stdout.splitlines()
    answer = json.loads(line)
    assert (answer["world_size"], answer["status"]) == (2, "finished")


def test_a_script_finds_its_place_where_it_is_told_to_meet(tmp_path, unused_port):
    script = tmp_path / "own.py"
    script.write_text(
        "import samestep, torch\n"
        "world = samestep.init()\n"
        "total = torch.tensor(world.rank + 1.0)\n"
        "world.sum_(total).wait()\n"
        "print(f'TOLD {world.rank} {world.size} {world.launcher} {total:.0f}\\n', end='')\n"
    )
    done = mpirun(script, cwd=tmp_path, MASTER_ADDR="localhost", MASTER_PORT=str(unused_port))
    told = sorted(line for line in done.stdout.splitlines() if line.startswith("TOLD"))
    assert told == ["TOLD 0 2 mpirun 3", "TOLD 1 2 mpirun 3"]


@pytest.fixture
def unused_port():
    from samestep.launch.machine import free_port

    return free_port()
