"""What a real Slurm says of jobs that wait is read as waits by their number of GPUs, however they asked."""

import subprocess
import time

from samestep.advise.queue import read_waits

ASKED = {
    4: ["--nodes=2", "--gres=gpu:2"],
    2: ["--gpus=2"],
    1: ["--gpus-per-node=1"],
    3: ["--ntasks=3", "--nodes=2", "--gpus-per-task=1"],
}


def submit(*words):
    job = ["sbatch", "--parsable", "--output=/dev/null", "--time=1", *words, "--wrap", "sleep 50"]
    return subprocess.run(job, check=True, capture_output=True, text=True).stdout.strip()


def test_jobs_that_wait(lab):
    assert read_waits("slurm").known == {}
    ids = [submit("--nodes=2", "--exclusive", "--gres=gpu:2")]
    ids += [submit(*words) for words in (*ASKED.values(), [])]
    try:
        deadline = time.monotonic() + 60
        while (waits := read_waits("slurm")).num_jobs != dict.fromkeys(sorted(ASKED), 1):
            assert time.monotonic() < deadline, waits
            time.sleep(1)
    finally:
        subprocess.run(["scancel", *ids], check=True)
    # they start when the first job, of at most a minute, is over, or one after another
    assert all(0 < wait.expected_s < 600 for wait in waits.known.values())
    assert waits.source == "known to Slurm in main"
    assert any("accounting is not counted: sacct refused" in said for said in waits.remarks)
    assert read_waits("slurm:high").known == {}
