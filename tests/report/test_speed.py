"""A sweep for a terminal: nothing is cut off that matters, nothing is read as markup, noise is called so."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from samestep.findings import Finding
from samestep.report.speed import show_speed, word_of
from samestep.scale.cells import Mark
from scale.synthetic import Job

JOB = Job(example_s=6e-4, fixed_s=1.5e-3, exchange_s=2.6e-3, noise=0.01, drift=0.01)


def shown(result, *, width=100, is_piped=False, encoding="utf-8", **more):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace")
    console = Console(file=file, width=width, highlight=False, soft_wrap=is_piped)
    result.threads_per_rank = 2
    show_speed(console, result, Path("runs/scale"), **more)
    file.flush()
    return file.buffer.getvalue().decode(encoding)


def test_the_answer_comes_first_then_the_table_the_gap_and_what_to_do():
    result = JOB.result()
    result.stopped_because, result.outlook = "every interval is narrow enough", "±1.0% after 6 rounds"
    text = " ".join(shown(result).split())
    place = 0
    for part in (
        "times as fast as one", "GPUs batch/GPU step speedup (ideal)",
        "2 GPUs at batch 32: where a step's time goes", "ideal", "exchange not hidden", "measured",
        "4 GPUs at batch 32", "1. ", "fix: ", "6 rounds, 2 threads a rank; stopped because every interval",
        "precision: ±1.0%", "samestep report runs/scale",
    ):  # fmt: skip
        place = text.index(part, place)


def test_a_bar_within_the_noise_is_called_noise_and_others_are_not():
    result = Job(exchange_s=5e-3, noise=0.05).result(worlds=(1, 2))
    lines = {line.split("  ")[1].strip(): line for line in shown(result).splitlines() if line[:2] == "  "}
    parts = {part.name: part.is_noise for part in result.gaps[0].parts}
    assert not parts["exchange not hidden"] and any(parts.values())
    for name, is_noise in parts.items():
        assert ("noise: " in lines[name]) == is_noise == ("░" in lines[name])


@pytest.mark.parametrize("width", [40, 44, 60, 70, 100])
def test_no_number_of_a_bar_is_cut_off(width):
    result = Job(exchange_s=5e-3, noise=0.05).result(worlds=(1, 2))
    text = shown(result, width=width)
    lines = text[text.index("where a step") :].splitlines()[1:]
    bars = lines[: next(i for i, line in enumerate(lines) if "measured" in line)]
    sign = "~" if width < 44 else "noise"
    assert any(sign in line for line in bars) and ("~ is noise" in text) == (sign == "~")
    assert all(line.rstrip().endswith(("s", ")", "~")) and len(line) <= width for line in bars)


def test_every_bar_is_seen_wherever_it_ends():
    result = JOB.result(worlds=(1, 2))
    gap = result.gaps[0]
    first, second, *rest = gap.parts
    whole = gap.measured_s
    # far below zero, then back to the very end, where bars without length follow
    parts = (
        replace(first, seconds=-2 * whole, low=-2 * whole, high=-whole),
        replace(second, seconds=3 * whole - gap.ideal_s, low=whole, high=3 * whole),
        *(replace(part, seconds=-1e-9, low=-1e-6, high=1e-6) for part in rest),
    )
    result.gaps = [replace(gap, parts=parts)]
    text = shown(result, width=100)
    lines = text[text.index("where a step") :].splitlines()[1 : 3 + len(parts)]
    assert len({line.rindex(line.split()[-2]) for line in lines if "noise" not in line}) == 1
    assert all(set(line) & set("█░▒") for line in lines) and all(len(line) <= 100 for line in lines)
    # what is below zero is not drawn as if it were above
    assert lines[1].count("▒") == lines[0].count("█")


def test_a_bar_that_cannot_be_there_is_not_called_noise():
    (line,) = (
        line for line in shown(JOB.result(worlds=(1, 2), is_weak=True)).splitlines() if "smaller" in line
    )
    assert line.endswith("+0 s") and "noise" not in line


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_every_line_fits_and_the_speedup_is_always_there(width):
    text = shown(JOB.result(), width=width)
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    assert "speedup" in text and all(f"{cell.speedup:.2f}" in text for cell in JOB.result().cells[1:])
    if width >= 60:
        assert "speedup (ideal)" in text and "examples/s" in shown(JOB.result(), width=120)


def test_a_narrow_table_has_its_marks_below():
    result = JOB.result()
    result.fairness = [Mark(mark="busy", reason="Others worked.", gpus=2, batch_size=32)]
    lines = shown(result, width=40).splitlines()
    row = next(i for i, line in enumerate(lines) if f"{result.cells[1].speedup:.2f}" in line and "ms" in line)
    assert lines[row].split()[0] == "2" and lines[row + 1].strip() == "[1]"


@pytest.mark.parametrize(
    ("half", "told"), [(0.0042, "±0.42%"), (0.26, "±26%"), (1.034, "±103%"), (12, "±1200%")]
)
def test_how_well_a_step_is_known(half, told):
    result = JOB.result(worlds=(1, 2))
    cell = result.cells[1]
    high = cell.step_s * (1 + 2 * half)
    result.cells[1] = replace(cell, step_low_s=cell.step_s, step_high_s=high)
    assert f"{told} " in shown(result)


def test_what_is_piped_is_not_cut():
    text = shown(JOB.result(), width=40, is_piped=True)
    assert "memory/rank" in text and "…" not in text


def test_large_batches_are_told_in_full():
    lines = shown(JOB.result(worlds=(1, 3), batches=(65536,)), width=120).splitlines()
    assert any("65,536" in line for line in lines) and any("21,845" in line for line in lines)


def test_a_terminal_without_unicode_has_other_bars():
    assert "####" in shown(JOB.result(), encoding="ascii")
    assert "#" not in shown(JOB.result())


def test_marks_are_notes_and_failures_have_their_reasons():
    result = Job(failing=("full-4x32",)).result()
    result.fairness = [
        Mark(mark="busy", reason="Other [bold]processes[/bold] worked.", gpus=2, batch_size=32),
        Mark(mark="other-device", reason="Two kinds.", gpus=2, batch_size=32, is_refusal=True),
    ]
    result.cells[1] = replace(result.cells[1], status="refused")
    text = shown(result)
    assert "refused [1][2]" in text
    assert "[1] busy: Other [bold]processes[/bold] worked." in text
    assert "[2] refused, other-device: Two kinds." in text
    assert "4 GPUs, batch 32: out of memory" in text


def test_text_of_the_users_is_made_visible():
    result = JOB.result()
    result.findings = [Finding(cause="input-bound", message="a\x1b[31mred", fix="b\u202ec")]
    text = shown(result)
    assert "\x1b" not in text and "\u202e" not in text


def test_the_first_epoch_is_told_with_what_comes_once():
    result = Job(facts={"evaluation_s": 3.0, "start_s": 2.0}).result(worlds=(1, 2))
    (line,) = [line for line in shown(result, width=200).splitlines() if "the first epoch" in line]
    assert "evaluation +" in line and "start-up +1 s" in line


def test_interrupted_it_says_how_to_go_on():
    assert "the same command with --out runs/scale goes on" in shown(JOB.result(), is_interrupted=True)
    assert "goes on" not in shown(JOB.result())


@pytest.mark.parametrize(
    ("job", "word"),
    [
        (Job(), "faster"),
        (Job(example_s=1e-4, exchange_s=0.05), "not faster"),
        (Job(example_s=1e-3, sharing_s=0.016, noise=0.01, run_noise=0.1), "too close to call"),
        (Job(failing=("full-2x32",)), "not told"),
    ],
)
def test_one_word(job, word):
    assert word_of(job.result(worlds=(1, 2))) == word
