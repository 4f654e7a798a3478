"""The runs of a sweep as a terminal shows them, and what is asked of those who start them."""

import io
import json
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from samestep.launch.failure import Failure
from samestep.launch.hostwatch import HostFacts
from samestep.launch.job import Job
from samestep.launch.watched import Ended, Watched
from samestep.report.scaling import LEAST_STEPS, Scaling, host_of
from samestep.scale.fairness import FEWEST_STEPS
from samestep.scale.runner import Order

ORDER = Order(name="runs/001-full-2x32", world_size=2, why="batch 32, as it is", round=1, remaining_s=42.0)


@dataclass(frozen=True, kw_only=True)
class Noted(Watched):
    """Runs nothing, and notes what it was asked for."""

    asked: list = field(default_factory=list)
    failure: Failure | None = None

    def run(self, folder, world_size, experiment=None, *, on_tick):
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "ranks").mkdir()
        on_tick([SimpleNamespace(num_steps=7)] * world_size, [SimpleNamespace(tag="[1]", text="[bold]loss")])
        self.asked.append((self, world_size, experiment))
        status = "cut" if self.failure is None else "failed"
        return Ended(status=status, exit_codes={}, seconds=1.5, failure=self.failure)


@pytest.fixture
def scaling(tmp_path):
    """(what was asked for, what was said) of orders."""

    def make(*orders, is_terminal=False, width=100, **settings):
        job = Job(command="train", target="t.py", overrides=("lr=1",))
        watched = Noted(job=job, threads=1, failure=settings.pop("failure", None))
        file = io.StringIO()
        console = Console(file=file, width=width, force_terminal=is_terminal, highlight=False)
        with Scaling(watched, tmp_path, console, seconds=0.5, warm="warm", **settings) as runner:
            made = [runner(order) for order in orders]
        return watched.asked, file.getvalue(), made

    return make


def test_a_timed_run_is_cut_when_it_is_long_enough_and_a_look_at_once(scaling):
    (timed, _, _), (look, _, _) = scaling(ORDER, replace(ORDER, is_timed=False))[0]
    assert timed.options == ("--time",) and timed.enough_s == 0.5 and timed.steps == LEAST_STEPS
    assert look.options == () and look.enough_s == 0.0 and look.steps > 0
    assert LEAST_STEPS >= 2 * FEWEST_STEPS


def test_a_batch_of_a_task_is_a_setting_after_those_of_the_user(scaling):
    asked = scaling(ORDER, replace(ORDER, batch_size=64))[0]
    assert [found.job.overrides for found, _, _ in asked] == [("lr=1",), ("lr=1", "batch_size=64")]


def test_only_cold_ranks_are_started_anew(scaling):
    asked = scaling(ORDER, replace(ORDER, is_cold=True))[0]
    assert [found.start._start == "warm" for found, _, _ in asked] == [True, False]


def test_what_was_left_of_a_run_is_cleared_and_checkpoints_are_not_kept(scaling, tmp_path):
    (tmp_path / ORDER.name / "ranks" / "00000").mkdir(parents=True)
    scaling(ORDER)
    assert not (tmp_path / ORDER.name / "ranks" / "00000").exists()
    assert not (tmp_path / ORDER.name / "checkpoints").exists()


def test_without_a_terminal_there_is_one_line_a_run(scaling):
    lines = scaling(ORDER, replace(ORDER, is_timed=False, remaining_s=None))[1].splitlines()
    assert lines == [
        "run 1, round 1: 2 ranks, batch 32, as it is (about 42 s left)",
        "look 1: 2 ranks, batch 32, as it is",
    ]


@pytest.mark.parametrize("width", [40, 100])
def test_a_terminal_tells_how_long_it_still_takes(scaling, width):
    said = scaling(ORDER, is_terminal=True, width=width)[1]
    assert "run 1" in said and "2 ranks" in said and "42 s left" in said and "…" not in said


def test_what_the_program_says_is_shown_if_asked_for_and_never_read_as_markup(scaling):
    assert "[bold]loss" in scaling(ORDER, is_verbose=True)[1]
    assert "loss" not in scaling(ORDER)[1]


def test_a_failure_is_told_at_once_and_passed_on(scaling):
    _, said, (made,) = scaling(ORDER, failure=Failure(rank=1, sentence="Rank 1 failed: no [memory]"))
    assert "2 ranks, batch 32, as it is: Rank 1 failed: no [memory]" in said
    assert (made.status, made.reason, made.seconds) == ("failed", "Rank 1 failed: no [memory]", 1.5)


def test_devices_count_only_since_they_have_work(tmp_path):
    path = tmp_path / "host.jsonl"
    rows = [
        {"at_s": 1.0, "gpu": [0.0, 0.0], "gpu_w": [30.0, 30.0]},
        {"at_s": 2.0, "gpu": [0.9, 0.7], "gpu_w": [200.0, 100.0]},
        {"at_s": 3.0, "gpu": [0.9, None], "gpu_w": [200.0, None]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    facts = HostFacts(num_cores=8, other_cores=0.5, devices=("A", "A"), clock_limits_mhz=(1000, 1000))
    found = host_of(facts, path, since_s=1.5)
    assert found.gpu_utilisation == pytest.approx((0.9 + 0.7 + 0.9) / 3) and found.power_w == 300.0
    assert (found.num_cores, found.other_cores, found.devices) == (8, 0.5, ("A", "A"))
    path.write_text(json.dumps({"at_s": 1.0, "busy_cores": 1.0, "own_cores": None}) + "\n")
    nothing = host_of(HostFacts(num_cores=8), path, since_s=None)
    assert nothing.gpu_utilisation is None and nothing.power_w is None
