"""HTCondor's own bindings, in an environment of their own: what they hand over, and without a pool."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cluster_requests import request_of
from test_golden_files import parsed
from test_submit_command import DIGITS, samestep

from samestep.cluster.htcondor import DESCRIPTION, HTCondor

HANDING = Path(__file__).parent / "condor_handing.py"


@pytest.fixture
def python():
    """A Python that has the bindings."""
    found = os.environ.get("SAMESTEP_TEST_HTCONDOR")
    if not found:
        pytest.skip("SAMESTEP_TEST_HTCONDOR names no Python that has HTCondor's bindings")
    return found


@pytest.mark.parametrize("items", [1, 3])
def test_the_jobs_that_are_handed_over_are_those_of_the_description(python, tmp_path, items):
    request = replace(request_of(engine="htcondor", items=items), home=str(tmp_path))
    own = request.folder_in(tmp_path)
    own.mkdir(parents=True)
    request.write(own)
    for name, text in HTCondor().files(request).items():
        (own / name).write_text(text)
    folders = [Path(__file__).parent, Path(__file__).parents[2] / "src"]
    env = {**os.environ, "CONDOR_CONFIG": "/dev/null", "PYTHONPATH": os.pathsep.join(map(str, folders))}
    done = subprocess.run(
        [python, HANDING, own], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    answer = json.loads(done.stdout)  # and nothing else was printed
    assert answer["ids"] == [f"7.{number}" for number in range(items)]
    runs = [job["TransferOutput"] for job in answer["jobs"]]
    wanted = [f"{item.name},attempts-{number}.jsonl" for number, item in enumerate(request.items)]
    assert [run.strip('"').replace(" ", "") for run in runs] == wanted
    (plain,) = parsed([(own / DESCRIPTION).read_text()], tmp_path)
    for job in (*plain["jobs"], *answer["jobs"]):
        for name in ("QDate", "EnteredCurrentStatus", "ProcId", "ClusterId"):
            job.pop(name, None)
    assert answer["jobs"] == plain["jobs"]


def test_without_a_pool_the_reason_is_told_in_one_sentence(python, tmp_path):
    ask = "import sys, sysconfig; print(*sys.version_info[:2], sysconfig.get_path('purelib'))"
    told = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.split()
    if told[:2] != [str(part) for part in sys.version_info[:2]]:
        pytest.skip("its bindings are for another Python than this")
    env = {"PYTHONPATH": told[2], "CONDOR_CONFIG": "/dev/null", "PATH": "/usr/bin:/bin"}
    done = samestep("submit", DIGITS, "--on", "htcondor", "--out", "out", cwd=tmp_path, code=2, env=env)
    assert "HTCondor did not take the job '1-rank': Unable to locate" in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "out" / "jobs.jsonl").exists()
