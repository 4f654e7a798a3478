"""The comparison with other libraries: it judges as it says, its ranks work and fail as they should."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from xml.dom.minidom import parseString

import pytest
from torch.utils.data import default_collate

sys.path.append(str(Path(__file__).parents[1]))
from benchmarks.measure import Estimate, Length
from benchmarks.peers import command, facts, libraries, right
from benchmarks.peers.crew import Crew, CrewError
from benchmarks.peers.page import page
from benchmarks.peers.picture import picture
from benchmarks.peers.results import Cell, Row, Table, measured, missing
from benchmarks.peers.rounds import Ensemble
from benchmarks.peers.workloads import NAMES, workload

ROOT = Path(__file__).parents[1]

# judgements


def test_examples_are_right_only_if_each_was_seen_once():
    order = random.Random(0).sample(range(10), 10)
    assert right.counted(order, list(range(10))) == right.Answer(is_right=True, told="all 10 once")
    assert right.counted([*order, 3], list(range(10))).told == "1 repeated"
    assert right.counted(order[1:], list(range(10))).told == "1 missed"
    wrong = right.counted([0, 0, 1, 4], [0, 2, 4])
    assert not wrong.is_right
    assert wrong.told == "1 repeated, 1 missed, 1 never drawn"


def test_rows_are_right_only_in_order_and_without_a_repeated_one():
    rows = [0.0, 1.0, 2.0]
    assert right.in_order(rows, 3).is_right
    assert right.in_order([0.0, 2.0, 1.0], 3).told == "3 rows for 3, 2 out of place"
    assert not right.in_order([*rows, 0.0], 3).is_right
    assert not right.in_order(rows[:2], 3).is_right


def test_an_error_is_right_if_it_is_rounding():
    assert right.compared(1e-7).is_right
    assert right.compared(0.13) == right.Answer(is_right=False, told="13% off")


def row(better, **cells):
    return Row(what="it", better=better, cells=cells)


def figure(value, spread=0.01):
    return measured(Estimate(value=value, low=value - spread, high=value + spread), digits=2)


@pytest.mark.parametrize(
    ("better", "ours", "theirs", "standing"),
    [
        ("more", 1.2, 1.0, "first"),
        ("more", 1.0, 1.2, "behind"),
        ("less", 1.0, 1.2, "first"),
        ("less", 1.2, 1.0, "behind"),
        ("less", 1.0, 1.015, "level"),
    ],
)
def test_standing_goes_by_intervals(better, ours, theirs, standing):
    assert row(better, samestep=figure(ours), ddp=figure(theirs)).standing() == standing


def test_standing_of_answers():
    yes, no = Cell(told="", is_right=True), Cell(told="", is_right=False)
    assert row("right", samestep=yes, ddp=no, ray=no).standing() == "first"
    assert row("right", samestep=yes, ddp=no, ray=yes).standing() == "level"
    assert row("right", samestep=no, ddp=yes).standing() == "behind"
    assert row("more", samestep=missing("it failed"), ddp=figure(1.0)).standing() == ""


# page and picture


def results(ours=1.2):
    answers = {
        "samestep": Cell(told="all 97 once", is_right=True),
        "ddp": Cell(told="1 repeated", is_right=False),
    }
    tables = [
        Table(name="right", title="Same", about="How.", rows=[row("right", **answers)]),
        Table(
            name="throughput",
            title="Speed",
            about="How.",
            rows=[row("more", samestep=figure(ours), ddp=figure(1.0), ray=missing("<it> failed"))],
        ),
    ]
    machine = {"processor": "P", "cores": 2, "memory_gb": 8, "load_before": 0.1, "python": "3.11"}
    part = {"when": "today", "machine": machine, "versions": {"torch": "2"}, "quick": False}
    return {"right": {**part, "settings": {"ddp": "tuned"}, "tables": [table.to_json() for table in tables]}}


def test_page_tells_figures_settings_and_where_samestep_is_behind():
    ahead, behind = page(results()), page(results(ours=0.5))
    assert "| it | yes: all 97 once | **no**: 1 repeated | first |" in ahead
    assert "- DDP by hand: tuned." in ahead
    assert "Not measured yet." in ahead
    assert "behind in 0" in ahead
    assert "Behind:" not in ahead
    assert "behind in 1" in behind
    assert "- Speed: it" in behind


def test_picture_is_a_drawing_of_what_was_measured():
    drawn = parseString(picture(results()))  # noqa: S318  our own drawing
    titles = [node.firstChild.data for node in drawn.getElementsByTagName("title")]
    assert "1 repeated" in titles
    assert any("1.20" in title for title in titles)
    assert parseString(picture({})).documentElement.tagName == "svg"  # noqa: S318


def test_the_page_in_docs_is_made_from_the_figures():
    figures = json.loads(command.FIGURES.read_text())
    assert not any(part["quick"] for part in figures.values())
    assert (command.DOCS / "benchmarks.md").read_text() == page(figures)
    assert (command.DOCS / "benchmarks.svg").read_text() == picture(figures)


# jobs


@pytest.mark.parametrize("name", NAMES)
def test_the_mean_of_a_workload_is_its_total_by_its_weight(name):
    job = workload(name, quick=True)
    collate = job.collate or default_collate
    batch = collate([job.dataset[i] for i in range(8)])
    model, _ = job.made()
    model.eval()
    mean, total = job.mean(model, batch).item(), job.total(model, batch).item()
    # sums of at most 8 · 32 float32 numbers, in another order
    assert mean == pytest.approx(total / float(job.weight(batch)), rel=8 * 32 * 2.0**-24)


# ranks


def fails(library, line):
    raise ValueError("asked too much\nof it")


def dies(library, line):
    os._exit(3)


@pytest.fixture(scope="module")
def python_path():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT / "tests"))  # ranks find the functions above
        yield


def test_samestep_is_right_where_ddp_is_not(python_path):
    checks = right.CHECKS[:5]
    _, ours = right.ask_all("samestep", checks)
    settings, theirs = right.ask_all("ddp", checks)
    assert [answer.told for answer in ours.values() if not answer.is_right] == []
    assert "static_graph" in settings
    wrong = {what for what, answer in theirs.items() if not answer.is_right}
    assert wrong == {checks[0].what, checks[2].what, checks[3].what}


def test_libraries_take_turns_and_a_crew_that_fails_is_told(python_path):
    ensemble = Ensemble({"samestep": ("samestep", 1), "ddp": ("ddp", 1)})
    try:
        taken = ensemble.take_turns("tiny", Length(rounds=2, block_s=0.0), quick=True)
    finally:
        ensemble.close()
    assert taken.failed == {}
    assert all(len(times) == 2 and min(times) > 0 for times in taken.wall_s.values())
    assert taken.throughput("ddp", "ddp").value == 1.0
    with Crew("ddp", 1) as crew:
        with pytest.raises(CrewError, match="ValueError: asked too much"):
            crew.ask(fails)
        assert crew.ask(facts.metric, num_examples=2) == [0.5]
        with pytest.raises(CrewError, match="ended: "):
            crew.ask(dies)


# the command


def test_quick_figures_do_not_get_into_docs(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "peers", "--quick"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "say --out FOLDER" in done.stderr


def test_unknown_libraries_are_refused():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "peers", "--libraries", "ddp,horovod"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "horovod is not there" in done.stderr


def test_every_library_is_named():
    assert set(libraries.installed()) <= set(libraries.TITLES)
    assert {"samestep", "ddp", "accelerate", "fabric", "trainer"} <= set(libraries.installed())


@pytest.mark.parametrize(("name", "is_loaded"), [("ddp", False), ("samestep", True)])
def test_a_peer_does_not_load_samestep(name, is_loaded):
    """It would take time at the start, and memory."""
    program = (
        "import sys\nfrom benchmarks.peers import facts, libraries, rank, timed\n"
        f"libraries.load({name!r})\nprint('samestep' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ended.stdout.split() == [str(is_loaded)]
