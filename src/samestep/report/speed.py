"""The speed for a terminal: the table, where the speed went, the findings; its words are those of the page.

It judges nothing. A table that does not fit the width loses its last columns, which are in scale.json.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from samestep.report.faster import answer
from samestep.report.sweep import Sweep
from samestep.report.wording import counted, duration, number, visible
from samestep.scale.cells import CellResult, Gap, Mark, Part, Result
from samestep.scale.evidence import told_bytes, told_s

_LEAST_BAR = 8
_MOST_BAR = 32


def show_speed(console: Console, result: Result, out: Path, *, is_interrupted: bool = False) -> None:
    """The whole answer for people: the answer in a sentence, the table, the gaps, what to do about them."""
    said = answer(Sweep.model_validate(result.to_json()))
    console.print(Text.assemble((f"{said.title}: ", "bold"), visible(said.sentence)))
    for remark in result.remarks:
        console.print(Text.assemble(("note: ", "yellow"), visible(remark)))
    console.print()
    notes = _show_table(console, result)
    for place, (mark, cells) in enumerate(notes.items(), start=1):
        _indented(console, Text.assemble((f"[{place}] ", "yellow"), f"{cells}: {visible(mark)}"))
    for gap in result.gaps:
        console.print()
        _show_gap(console, gap)
    for place, finding in enumerate(result.findings, start=1):
        console.print()
        console.print(Text(f"{place}. {finding.cause}", style="bold yellow"))
        _indented(console, Text(visible(finding.message)))
        if finding.fix:
            _indented(console, Text.assemble(("fix: ", "bold"), visible(finding.fix)))
    console.print()
    _show_end(console, result, out, is_interrupted=is_interrupted)


Word = Literal["faster", "not faster", "too close to call", "not told"]


def word_of(result: Result) -> Word:
    """Whether some number of GPUs is faster than one: surely, surely not, or neither can be said."""
    known = [cell for cell in result.cells if cell.gpus > 1 and cell.speedup is not None]
    if not known:
        return "not told"
    if any((cell.speedup_low or 0.0) > 1 for cell in known):
        return "faster"
    return "too close to call" if any((cell.speedup_high or 0.0) > 1 for cell in known) else "not faster"


# the table


def _show_table(console: Console, result: Result) -> dict[str, str]:
    """Show the cells; returns what the numbers behind them stand for: reasons, with the mark of each."""
    notes = _notes(result)
    said = [_said_of(cell, list(notes), result.fairness) for cell in result.cells]
    columns = _columns(result)
    width = math.inf if console.soft_wrap else console.width
    said_width = max(map(len, said)) + 1
    while len(columns) > _NEEDED and sum(map(_width, columns)) + said_width > width:
        columns.pop()
    # a number that is cut off would be another number
    is_narrow = sum(map(_width, columns)) + said_width > width
    if is_narrow:
        columns = [[text.partition(" (")[0] for text in column] for column in columns]
    for place, row in enumerate(zip(*columns, strict=True)):
        line = "".join(f"{text:>{_width(column)}}" for text, column in zip(row, columns, strict=True))
        text = Text(line.removeprefix("  "), style="bold" if place == 0 else "")
        if place and not is_narrow:
            text.append(f"  {said[place - 1]}", style="yellow")
        _line(console, text)
        if place and is_narrow and said[place - 1]:
            _line(console, Text(f"   {said[place - 1]}", style="yellow"))
    for cell in result.cells:
        if cell.reason:
            _indented(console, Text.assemble((f"{cell.cell}: ", "yellow"), visible(cell.reason)))
    return {mark: _told_cells(cells) for mark, cells in notes.items()}


_NEEDED = 4
"""Columns that are shown however narrow a terminal is."""


def _width(column: Sequence[str]) -> int:
    return max(map(len, column)) + 2


def _columns(result: Result) -> list[list[str]]:
    """The columns, each with its head, the first to go last; those in which nothing is known are left out."""
    cells = result.cells
    found = [
        ["GPUs", *(str(cell.gpus) for cell in cells)],
        ["batch/GPU", *(number(cell.batch_per_gpu) for cell in cells)],
        ["step", *(_step(cell) for cell in cells)],
        ["speedup (ideal)", *(_speedup(cell) for cell in cells)],
        ["efficiency", *(_share(cell.efficiency) for cell in cells)],
        ["examples/s", *(_known(cell.examples_per_s, "{:,.0f}") for cell in cells)],
        ["epoch", *("" if cell.epoch_s is None else _time(cell.epoch_s) for cell in cells)],
        ["CPU", *(_share(cell.cpu_utilisation) for cell in cells)],
        ["GPU", *(_share(cell.gpu_utilisation) for cell in cells)],
        ["memory/rank", *("" if not c.memory_bytes else told_bytes(c.memory_bytes) for c in cells)],
        ["energy/step", *(_known(cell.energy_j, "{:.3g} J") for cell in cells)],
    ]
    return [column for column in found if any(column[1:])]


def _notes(result: Result) -> dict[str, list[Mark]]:
    """The reasons of marks, each once, in the order of the cells."""
    found: dict[str, list[Mark]] = {}
    for mark in result.fairness:
        found.setdefault(mark.reason, []).append(mark)
    return found


def _told_cells(marks: Sequence[Mark]) -> str:
    first = marks[0]
    refused = "refused, " if first.is_refusal else ""
    return refused + first.mark


def _said_of(cell: CellResult, reasons: list[str], marks: Sequence[Mark]) -> str:
    """What is wrong with a cell, and the numbers of the notes on it."""
    own = [mark for mark in marks if (mark.gpus, mark.batch_size) == (cell.gpus, cell.batch_size)]
    numbers = sorted({reasons.index(mark.reason) + 1 for mark in own})
    told = "".join(f"[{number}]" for number in numbers)
    return told if cell.status == "measured" else f"{cell.status} {told}".rstrip()


def _step(cell: CellResult) -> str:
    if cell.step_s is None:
        return ""
    width = cell.relative_half_width or 0.0
    return f"{told_s(cell.step_s)} ±{100 * width:{'.2g' if width < 0.995 else '.0f'}}%"


def _speedup(cell: CellResult) -> str:
    if cell.speedup is None:
        return ""
    if cell.gpus == 1:
        return "1"
    return f"{cell.speedup:.2f} ({cell.ideal_speedup:g})"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _known(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _time(seconds: float) -> str:
    return told_s(seconds) if seconds < 1 else duration(seconds)


# the gap


def _show_gap(console: Console, gap: Gap) -> None:
    title = f"{gap.gpus} GPUs at batch {gap.batch_size}: where a step's time goes"
    _show_waterfall(console, title, gap.ideal_s, gap.measured_s, gap.parts)
    if gap.epoch is not None:
        names = {part.name for part in gap.parts}
        steps_s = math.fsum(part.seconds for part in gap.epoch.parts if part.name in names)
        fixed = tuple(part for part in gap.epoch.parts if part.name not in names)
        if fixed:
            told = ", ".join(f"{part.name} {_signed(part)}" for part in fixed)
            lost = gap.epoch.measured_s - gap.epoch.ideal_s
            _indented(
                console,
                Text(
                    f"the first epoch: {_time(gap.epoch.measured_s)}, {_time(abs(lost))} "
                    f"{'more' if lost >= 0 else 'less'} than ideal: steps {_plus(steps_s)}, {told}",
                    style="dim",
                ),
            )


def _show_waterfall(
    console: Console, title: str, ideal_s: float, measured_s: float, parts: Sequence[Part]
) -> None:
    """From ideal to measured, one line a bar, each beginning where the one before it ended."""
    console.print(Text(title, style="bold"))
    names = ["ideal", *(part.name for part in parts), "measured"]
    margin = max(map(len, names)) + 2
    told = {part.name: _signed(part) for part in parts}
    for note in (" (noise)", " ~"):
        if not console.soft_wrap and margin + 2 + max(map(len, told.values())) > console.width:
            # a number that is cut off would be another number
            told = {part.name: f"{_plus(part.seconds)}{note * part.is_noise}" for part in parts}
    told_width = max(map(len, told.values())) + 4
    width = _MOST_BAR if console.soft_wrap else min(_MOST_BAR, console.width - margin - told_width)
    ends = [ideal_s]
    for part in parts:
        ends.append(ends[-1] + part.seconds)
    most = max(*ends, measured_s)
    full, light, less = ("#", ".", "-") if console.options.ascii_only else ("█", "░", "▒")

    def line(name: str, begin: float, end: float, sign: str, told: str, style: str = "") -> None:
        text = Text(f"  {name:<{margin}}")
        if width >= _LEAST_BAR and most > 0:
            low, high = sorted(min(max(0, round(at / most * width)), width) for at in (begin, end))
            low = min(low, width - 1)  # so that a bar without length is seen
            bar = " " * low + sign * max(1, high - low)
            text.append(f"{bar[:width]:<{width}} ", style=style)
        text.append(told)
        _line(console, text)

    line("ideal", 0.0, ideal_s, full, told_s(ideal_s), "green")
    for part, begin in zip(parts, ends, strict=False):
        sign, style = (light, "dim") if part.is_noise else (less if part.seconds < 0 else full, "yellow")
        line(part.name, begin, begin + part.seconds, sign, told[part.name], style)
    line("measured", 0.0, measured_s, full, told_s(measured_s), "cyan")
    if any(text.endswith(" ~") for text in told.values()):
        _line(console, Text("  ~ is noise", style="dim"))


def _signed(part: Part) -> str:
    told = _plus(part.seconds)
    if not part.seconds:
        return told  # a run less itself: a batch that grows is not smaller
    return f"{told} (noise: {_plus(part.low)} to {_plus(part.high)})" if part.is_noise else told


def _plus(seconds: float) -> str:
    return f"{'−' if seconds < 0 else '+'}{told_s(abs(seconds)) if seconds else '0 s'}"


# the end


def _show_end(console: Console, result: Result, out: Path, *, is_interrupted: bool) -> None:
    threads = result.threads_per_rank
    told = f"{counted(result.num_rounds, 'round')}, {counted(threads or 0, 'thread')} a rank"
    if result.stopped_because:
        told += f"; stopped because {result.stopped_because}"
    console.print(Text(told, style="dim"))
    if result.outlook:
        console.print(Text(f"precision: {result.outlook}", style="dim"))
    if is_interrupted:
        console.print(Text(f"finished runs are kept: the same command with --out {out} goes on", style="dim"))
    console.print(Text(f"kept in {out}; as a page: samestep report {out}", style="dim"))


def _line(console: Console, text: Text) -> None:
    if console.soft_wrap:
        console.print(text)
    else:
        console.print(text, no_wrap=True, overflow="ellipsis")


def _indented(console: Console, text: Text) -> None:
    if console.soft_wrap:  # no terminal, and so no width to keep to
        console.print(Text("   ") + text)
    else:
        console.print(Padding(text, (0, 0, 0, 3), expand=False))
