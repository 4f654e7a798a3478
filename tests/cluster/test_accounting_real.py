"""Real accounting of a real Slurm: waits of jobs that ended, and ends that the queue has forgotten."""

import subprocess
import time

from samestep.advise.queue import read_waits
from samestep.cluster.slurm_queue import accounting


def submit(*words, run):
    job = ["sbatch", "--parsable", "--output=/dev/null", "--time=1", *words, "--wrap", run]
    return subprocess.run(job, check=True, capture_output=True, text=True).stdout.strip()


def test_waits_and_ends_are_those_of_the_jobs(books):
    before = read_waits("slurm")
    assert before.known == {} and not any("accounting" in said for said in before.remarks)
    first = submit("--nodes=2", "--exclusive", "--gres=gpu:2", run="sleep 6")
    behind = submit("--gpus=2", run="exit 3")
    deadline = time.monotonic() + 60
    while (waits := read_waits("slurm")).num_jobs != {2: 1, 4: 1} or books.run("squeue", "-h").strip():
        assert time.monotonic() < deadline, waits
        time.sleep(0.5)
    # the second could start when the first had ended, not before; Slurm counts whole seconds
    assert waits.known[4].expected_s <= 4 and 4 <= waits.known[2].expected_s <= 20
    assert not any("accounting" in said for said in waits.remarks)
    rows = {row.id: row for row in accounting([first, behind])}
    assert rows[first].state == "finished" and rows[behind].state == "failed", rows
    assert rows[behind].exit_code == 3 and rows[behind].start >= rows[first].end
    assert read_waits("slurm:high").known == {}
