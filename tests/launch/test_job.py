import sys

import pytest

from samestep.errors import LaunchError
from samestep.launch.job import Job, script_of


def test_jobs_pass_through_their_file(tmp_path):
    job = Job(command="train", target="a.py:b", overrides=("lr=1", "x=[1, 2]"), timeout_s=3.5)
    job.write(tmp_path)
    assert Job.read(tmp_path) == job
    with pytest.raises(LaunchError, match=r"job\.json"):
        Job.read(tmp_path / "elsewhere")


def test_python_and_a_script_or_module_are_accepted(tmp_path):
    path = tmp_path / "s.py"
    path.touch()
    assert script_of(["python", str(path), "--lr", "3"]) == (str(path), "--lr", "3")
    assert script_of([sys.executable, "-m", "package.tool", "-x"]) == ("-m", "package.tool", "-x")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["bash", "x.sh"], "only Python"),
        (["torchrun", "x.py"], "only Python"),
        (["python", "-m"], "names no script"),
        (["python", "-c", "1"], "leave out -c"),
        (["python", "missing.py"], "missing.py, which is not a file"),
    ],
)
def test_anything_else_is_refused_with_what_was_asked(words, reason):
    with pytest.raises(LaunchError, match=reason):
        script_of(words)
