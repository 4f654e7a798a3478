"""The page on a sweep as a file: what it says, leaves out and refuses. How it looks: test_page_in_browser."""

import json
import shutil
import subprocess
import sys

import pytest
from sweeps import COMMAND, JOB, SLOW, hostile_sweep, sweep_json, write_lines, write_sweep
from test_page import HOSTILE, Elements, text_of
from verdicts import write_verdict

from samestep.errors import RecordError
from samestep.report.page import page_of
from samestep.report.sections.utilisation import joined_up
from samestep.report.sweep import read_sweep
from samestep.report.sweep_runs import full_runs

ALL = (
    "speed", "gap", "epoch_gap", "findings", "trust", "timeline", "utilisation", "learning", "noise",
    "repeat", "environment",
)  # fmt: skip


def write_answer(folder, value):
    folder.mkdir(exist_ok=True)
    (folder / "scale.json").write_text(json.dumps(value))
    return folder


def test_a_sweep_says_what_was_measured_word_for_word(tmp_path):
    value = sweep_json()
    page = page_of(write_sweep(tmp_path, value))
    assert page.sections == ALL
    text = text_of(page.html)
    assert value["findings"]
    for finding in value["findings"]:
        assert finding["message"] in text and finding["fix"] in text and finding["cause"] in text
    for sentence in (value["outlook"], value["stopped_because"], f"samestep {' '.join(COMMAND)}"):
        assert sentence in text
    for part in value["gaps"][0]["parts"]:
        assert part["name"] in text
    assert "node7" in text and "cpu × 2" in text
    assert "The gradient noise scale is about 214 examples." in text and "150 to 331" in text
    assert "loss after 3,840 examples after 120 steps" in text
    assert "Nothing was seen that makes the comparison unfair." in text


def test_the_numbers_are_those_of_the_file(tmp_path):
    value = sweep_json()
    text = text_of(page_of(write_sweep(tmp_path, value)).html)
    for cell in value["cells"][1:]:
        around = f"{cell['speedup']:.2f} ({cell['speedup_low']:.2f}–{cell['speedup_high']:.2f})"
        assert f"{around} {cell['gpus']} {cell['efficiency']:.0%}" in text
        step = [f"{cell[name] * 1e3:.1f}" for name in ("step_s", "step_low_s", "step_high_s")]
        assert "{} ms ({}–{})".format(*step) in text
    for gap in value["gaps"]:
        assert f"ideal step {gap['ideal_s'] * 1e3:.2f} ms" in text
        assert f"measured step {gap['measured_s'] * 1e3:.2f} ms" in text


def test_noise_is_called_noise_and_nothing_else_is(tmp_path):
    value = sweep_json()
    html = page_of(write_answer(tmp_path, value)).html
    parts = [part for gap in value["gaps"] for part in (*gap["parts"], *gap["epoch"]["parts"])]
    drawn = [part for part in parts if part["low"] or part["high"]]
    noise = [part for part in drawn if part["is_noise"]]
    assert 0 < len(noise) < len(drawn)
    assert html.count('<tspan class="soft"> · noise</tspan>') == len(noise)


def test_the_answer_alone_is_enough(tmp_path):
    """Rows of runs are large, and not always copied."""
    page = page_of(write_answer(tmp_path, sweep_json()))
    assert page.sections == tuple(name for name in ALL if name not in ("timeline", "utilisation"))
    bare = {name: value for name, value in sweep_json().items() if name in ("cells", "gaps")}
    assert page_of(write_answer(tmp_path, bare)).sections == ("speed", "gap", "epoch_gap", "trust", "repeat")


def test_a_copied_folder_makes_the_same_page(tmp_path):
    first = page_of(write_sweep(tmp_path / "measured-here")).html
    shutil.copytree(tmp_path / "measured-here", tmp_path / "shown-there")
    shutil.rmtree(tmp_path / "measured-here")
    second = page_of(tmp_path / "shown-there").html
    cut = second.index("<footer>")
    assert first[: first.index("<footer>")].replace("measured-here", "shown-there") == second[:cut]


def test_a_sweep_that_was_killed_is_judged_from_its_runs(tmp_path):
    page = page_of(write_lines(tmp_path / "strong"))
    text = text_of(page.html)
    assert {"speed", "gap", "trust"} <= set(page.sections)
    assert "2 GPUs are 1.4" in text and "it goes on, or it was killed" in text
    weak = read_sweep(write_lines(tmp_path / "weak", is_weak=True))
    assert weak.is_weak and [cell.batch_size for cell in weak.cells] == [32, 64, 128]
    several = read_sweep(write_lines(tmp_path / "several", batches=(16, 32)))
    assert not several.is_weak and len(several.families()) == 2


def test_what_was_asked_for_decides_which_cells_a_killed_sweep_has(tmp_path):
    write_lines(tmp_path, worlds=(1, 2))
    assert [cell.gpus for cell in read_sweep(tmp_path).cells] == [1, 2]
    settings = {"--gpus": [1, 2, 8], "--batch": [32], "--weak": False, "--seed": 0, "host": "node7"}
    (tmp_path / "sweep.json").write_text(json.dumps({"version": 1, "settings": settings}))
    page = page_of(tmp_path)
    assert "not measured" in text_of(page.html) and "node7" in page.html
    settings |= {"--batch": None, "--gpus": [1, 2]}
    (tmp_path / "sweep.json").write_text(json.dumps({"version": 1, "settings": settings}))
    assert [(cell.gpus, cell.batch_size) for cell in read_sweep(tmp_path).cells] == [(1, 32), (2, 32)]
    for text, sentence in (('{"settings": ["x"]}', "(settings: "), ('{"version": 2}', "has version 2")):
        (tmp_path / "sweep.json").write_text(text)
        with pytest.raises(RecordError) as caught:
            page_of(tmp_path)
        assert sentence in str(caught.value)


def test_a_sweep_that_was_interrupted_tells_what_is_not_measured(tmp_path):
    value = sweep_json(rounds=1)
    value["cells"][2] |= {"status": "not measured", "step_s": None, "speedup": None, "marks": []}
    value |= {"stopped_because": "it was interrupted", "gaps": value["gaps"][:1], "curves": []}
    page = page_of(write_answer(tmp_path, value))
    text = text_of(page.html)
    assert "learning" not in page.sections and "not measured" in text and "it was interrupted" in text
    assert "4 GPUs" not in text.partition("How fast")[0]


def test_a_cell_that_failed_or_was_refused_says_why(tmp_path):
    value = sweep_json()
    value["cells"][1] |= {
        "status": "failed",
        "reason": "out of memory on rank 1",
        "step_s": None,
        "speedup": None,
    }
    value["fairness"] = [
        {"mark": "other-device", "reason": "Two kinds.", "gpus": n, "batch_size": 32, "is_refusal": True}
        for n in (2, 4)
    ]
    text = text_of(page_of(write_answer(tmp_path, value)).html)
    assert "failed: out of memory on rank 1" in text
    assert "Refused: other-device 2 GPUs at batch 32, 4 GPUs at batch 32 Two kinds." in text


def test_weak_scaling_is_said_to_be_other_training(tmp_path):
    assert "other training than on one" in text_of(page_of(write_sweep(tmp_path, is_weak=True)).html)
    assert "other training" not in text_of(page_of(write_sweep(tmp_path)).html).partition("Findings")[0]


def test_what_others_write_is_never_markup(tmp_path):
    folder = write_sweep(tmp_path / "<b>bold & \"x'", hostile_sweep(HOSTILE))
    html = page_of(folder).html
    found = Elements(html)
    assert len(found.named("script")) == 1 and not found.named("img")
    assert not [name for _, attributes in found.tags for name in attributes if name.startswith("on")]
    assert "\x1b" not in html and "{{ 7*7 }}" in html


def test_a_page_of_a_large_sweep_stays_small(tmp_path):
    value = sweep_json(rounds=1)
    long = '"' * 5_000
    cells = [
        value["cells"][1] | {"batch_size": 8 * k, "reason": long, "marks": [long]} for k in range(1, 400)
    ]
    gaps = [value["gaps"][0] | {"batch_size": 8 * k} for k in range(1, 400)]
    curves = [value["curves"][1] | {"batch_size": 8 * k} for k in range(1, 100)]
    marks = [{"mark": f"{k}{long}", "reason": long, "gpus": 2, "batch_size": 8} for k in range(200)]
    value |= {"cells": cells, "gaps": gaps, "curves": curves, "fairness": marks}
    value["environment"] = {f"{k}{long}": long for k in range(500)}
    html = page_of(write_answer(tmp_path, value)).html
    assert len(html.encode()) < 6_000_000
    for hidden in ("339 more rows", "375 more are in scale.json", "93 more batches", "140 more marks"):
        assert hidden in html


def test_losses_that_are_not_finite_leave_gaps_and_are_no_error(tmp_path):
    value = sweep_json()
    for point in value["curves"][0]["points"]:
        point[3] = None
    value["curves"][1]["points"][5][3] = float("nan")
    assert "learning" in page_of(write_answer(tmp_path, value)).sections
    value["curves"] = value["curves"][:1]
    assert "learning" not in page_of(write_answer(tmp_path, value)).sections


def test_losses_are_compared_where_all_lines_have_come(tmp_path):
    """Twice as fast, and half as good for each example: ahead by neither."""
    one = [[k, 10 * k, 1.0 * k, 100.0 - k] for k in range(1, 101)]
    two = [[k, 10 * k, 0.5 * k, 100.0 - k / 2] for k in range(1, 81)]
    curves = [{"gpus": n, "batch_size": 10, "points": points} for n, points in ((1, one), (2, two))]
    text = text_of(page_of(write_answer(tmp_path, sweep_json(rounds=1) | {"curves": curves})).html)
    assert "after 800 examples after 80 steps after 40.0 s" in text
    # the mean over the last tenth: steps 73 to 80 of both; in 40 s, steps 37 to 40 of the first
    assert "1 GPU 23.5 23.5 61.5 2 GPUs 61.75 61.75 61.75" in text


def test_runs_are_joined_up_in_order_with_a_gap_between_them(tmp_path):
    folder = write_sweep(tmp_path, sweep_json(rounds=1), has_gpus=True)
    runs = next(runs for cell, runs in full_runs(folder).items() if cell.gpus == 2)
    course, begins = joined_up(runs)
    assert [run.number for run in runs] == [2, 5, 8] and begins == [0.0, 2.0, 4.0]
    seconds = [at_s for at_s, _ in course]
    assert seconds == sorted(seconds) and sum(sample is None for _, sample in course) == 3
    samples = [sample for _, sample in course if sample is not None]
    assert len(samples) == 3 * 8 and all(len(sample.gpu) == 2 for sample in samples)
    mean = sum(sample.own_cores for sample in samples) / len(samples)
    text = text_of(page_of(folder).html)
    assert f"the ranks, mean {mean:.3g}" in text and "the least busy, mean" in text


def test_a_noise_scale_that_cannot_be_told_says_why(tmp_path):
    unknown = {"value": None, "low": 30.0, "high": None, "num_steps": 4, "reason": "too few steps."}
    text = text_of(page_of(write_answer(tmp_path, sweep_json() | {"noise_scale": unknown})).html)
    assert "cannot be told: too few steps." in text and "30 to not bounded" in text
    assert "noise" not in page_of(write_answer(tmp_path, sweep_json() | {"noise_scale": None})).sections


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"version": 2, "samestep": "9.0"}, "has version 2"),
        ({"cells": "none"}, "is not a sweep that can be read (cells: "),
        (
            {"gaps": [{"gpus": 2, "batch_size": 8, "ideal_s": float("inf"), "measured_s": 1}]},
            "gaps.0.ideal_s",
        ),
    ],
)
def test_another_version_or_a_damaged_answer_is_refused(tmp_path, change, sentence):
    with pytest.raises(RecordError) as caught:
        page_of(write_answer(tmp_path, sweep_json(rounds=1) | change))
    assert sentence in str(caught.value)


def test_rows_that_cannot_be_read_leave_their_sections_out(tmp_path):
    folder = write_sweep(tmp_path)
    for path in folder.glob("runs/*/ranks/*/observations.jsonl"):
        path.write_text("garbage\n")
    for path in folder.glob("runs/*/host.jsonl"):
        path.write_text('{"at_s": "now"}\nnull\n')
    sections = page_of(folder).sections
    assert not {"timeline", "utilisation"} & set(sections) and "speed" in sections


def test_a_folder_may_hold_a_verdict_and_a_sweep(tmp_path):
    page = page_of(write_verdict(write_sweep(tmp_path)))
    assert {"steps", "speed", "gap"} <= set(page.sections)
    assert "norm-not-synchronised" in page.html and "exchange-bound" in page.html


def test_a_sweep_below_a_folder_is_named(tmp_path):
    write_answer(tmp_path / "demo-sweep", sweep_json(SLOW, rounds=1))
    with pytest.raises(RecordError, match="name one of them: demo-sweep"):
        page_of(tmp_path)


def test_a_page_of_a_sweep_needs_no_torch(tmp_path):
    code = (
        "import sys, pathlib; sys.modules['torch'] = None; from samestep.report.page import page_of; "
        "print(len(page_of(pathlib.Path(sys.argv[1])).html))"
    )
    folder = write_sweep(tmp_path, sweep_json(JOB, rounds=1))
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and int(done.stdout) > 1000, done.stderr
