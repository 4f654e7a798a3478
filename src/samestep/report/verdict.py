"""The verdict for a terminal and for machines; its words are those of the page.

It judges nothing. What does not fit the width of a terminal is counted, and is in verdict.json.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from samestep import __version__
from samestep.report.console import ranks as ranks_in_words
from samestep.report.headline import verdict_sentence
from samestep.report.material import VERSION, FirstDifference, Verification
from samestep.report.wording import counted, duration, exact, label, number, ranks, told, visible
from samestep.verify.plan import Verification as Judged

_STYLES = {"same": "green", "equal": "green", "different": "red", "inconclusive": "yellow"}
_MARKS = {"same": "=", "equal": "≈", "different": "≠", None: "·"}
_ASCII = {"same": "=", "equal": "~", "different": "x", None: "."}
_LEAST_COLUMNS = 4
_TICK_EVERY = 5
_MOST_EVIDENCE = 300
_ELSE = "in the table one rank was given the batches of more ranks: it shows what else differs"


def payload(judged: Judged, *, whys: Mapping[str, str], command: list[str], out: Path) -> dict[str, Any]:
    """What verdict.json and `--json` say: the verdict, and how it was come by.

    `whys` tells by a run's name what it was made for, `command` the words to ask for the same again.
    """
    value = judged.to_json()
    for run, told_of in zip(judged.runs, value["runs"], strict=True):
        told_of["why"] = whys.get(run.name, "")
        told_of["failure"] = run.failure.sentence if run.failure is not None else ""
    return {"version": VERSION, "samestep": __version__} | value | {"command": command, "out": str(out)}


def show_verdict(console: Console, verification: Verification, out: Path) -> None:
    """The whole answer for people: the verdict first, then what it rests on."""
    word = verification.verdict
    console.print(
        Text.assemble((f"{word}: ", f"bold {_STYLES[word]}"), visible(verdict_sentence(verification)))
    )
    if verification.first_difference is not None:
        _show_first(console, verification.first_difference)
    for place, finding in enumerate(verification.findings, start=1):
        console.print()
        console.print(Text(f"{place}. {finding.cause}", style="bold yellow"))
        _indented(console, Text(visible(finding.message)))
        if finding.fix:
            _indented(console, Text.assemble(("fix: ", "bold"), visible(finding.fix)))
        if evidence := _evidence(finding.evidence):
            _indented(console, Text(f"evidence: {evidence}", style="dim"))
    if verification.table:
        console.print()
        _show_table(console, verification)
    if verification.remarks:
        console.print()
    for remark in verification.remarks:
        console.print(Text.assemble(("note: ", "dim"), visible(remark)))
    console.print()
    _show_runs(console, verification)
    console.print(Text(f"kept in {out}; as a page: samestep report {out}", style="dim"))


def _show_first(console: Console, first: FirstDifference) -> None:
    on = f", on {ranks(first.ranks)}" if first.ranks else ""
    _indented(console, Text(f"step {first.step}, {first.quantity} {visible(first.name)}{on}"))
    told_as = f"{exact(first.reference)} on one rank, {exact(first.candidate)} on several: "
    if first.reference == "" and first.candidate == "":
        told_as = ""
    size = f"{number(first.size)} apart, where rounding explains {number(first.tolerance)}"
    if first.tolerance == 0 and isinstance(first.reference, str) and told_as:
        size, told_as = "", told_as.removesuffix(": ")
    _indented(console, Text(visible(told_as + size)))


def _evidence(evidence: Mapping[str, Any]) -> str:
    """The evidence in a line or two; the whole of it is in verdict.json."""
    parts = [f"{label(name)}: {told(value)}" for name, value in evidence.items() if value not in (None, "")]
    text = visible("; ".join(parts))
    return text if len(text) <= _MOST_EVIDENCE else f"{text[: _MOST_EVIDENCE - 1]}…"


def _show_table(console: Console, verification: Verification) -> None:
    """Quantities × steps, one character each; of more steps than fit, those around the first difference."""
    signs = _ASCII if console.options.ascii_only else _MARKS
    quantities = list(dict.fromkeys(quantity for quantity, _, _ in verification.table))
    marks = {(quantity, step): mark for quantity, step, mark in verification.table}
    steps = sorted({step for _, step, _ in verification.table})
    margin = max(map(len, quantities)) + 2
    width = console.width - margin - 1
    if width < _LEAST_COLUMNS:
        return
    first = verification.first_difference
    # what differs between programs as they are, such as who gets which examples, is not in the table
    lit = first.step if first is not None and marks.get((first.quantity, first.step)) == "different" else None
    start = max(0, min(steps.index(lit) - width // 2, len(steps) - width)) if lit is not None else 0
    shown = steps[start : start + width]
    _line(console, Text(f"{'step':<{margin}}{_ruler(shown)}", style="dim"))
    for quantity in quantities:
        line = Text(f"{quantity:<{margin}}")
        for step in shown:
            mark = marks.get((quantity, step))
            is_lit = first is not None and (quantity, step) == (first.quantity, lit)
            style = "bold red reverse" if is_lit else "red" if mark == "different" else "dim"
            line.append(signs[mark], style=style)
        _line(console, line)
    if lit is not None:
        _line(console, Text(" " * (margin + shown.index(lit)) + "^ first difference", style="bold red"))
    legend = f"{signs['same']} same bits  {signs['equal']} up to rounding  {signs['different']} different"
    if any((quantity, step) not in marks for quantity in quantities for step in shown):
        legend += f"  {signs[None]} not compared"
    more = f"  ({counted(len(steps) - len(shown), 'step')} not shown)" if len(shown) < len(steps) else ""
    console.print(Text(legend + more, style="dim"))
    if first is not None and lit is None:
        console.print(Text(_ELSE, style="dim"))


def _ruler(steps: list[int]) -> str:
    """Step numbers above their columns: the first, and then every fifth where there is room."""
    line = ""
    for place, step in enumerate(steps):
        if len(line) <= place and (place == 0 or step % _TICK_EVERY == 0):
            line = f"{line:<{place}}{step} "
    return line.rstrip()


def _show_runs(console: Console, verification: Verification) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    for run in verification.runs:
        table.add_row(
            *(Text(text, style="dim") for text in (
                ranks_in_words(run.world_size), run.why, run.status, duration(run.seconds)
            ))
        )  # fmt: skip
    console.print(table)
    total = duration(sum(run.seconds for run in verification.runs))
    console.print(Text(f"{counted(len(verification.runs), 'run')} in {total}", style="dim"))


def _indented(console: Console, text: Text) -> None:
    if console.soft_wrap:  # no terminal, and so no width to keep to
        console.print(Text("   ") + text)
    else:
        console.print(Padding(text, (0, 0, 0, 3), expand=False))


def _line(console: Console, text: Text) -> None:
    console.print(text, no_wrap=True, overflow="crop", crop=True)
