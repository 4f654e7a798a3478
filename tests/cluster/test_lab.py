"""The lab itself, which tests of Slurm stand on."""

import pytest
from slurm.lab import Lab


@pytest.mark.usefixtures("lab")  # which skips where there can be none
def test_a_lab_that_ends_leaves_the_next_one_at_work(tmp_path):
    with Lab(tmp_path / "first") as first:
        second = Lab(tmp_path / "second")
        second.start()
        assert first.run("srun", "-N2", "echo", "here").split() == ["here"] * 2
    try:
        assert second.run("srun", "-N2", "echo", "here").split() == ["here"] * 2
        assert first.run("sinfo", "-h") == "", "it has ended"
    finally:
        second.stop()
