"""Advice for a terminal: the answer in words, the table it follows from, what would change it.

It judges nothing. A table that does not fit the width loses columns, which are in --json; measured and
projected rows are marked as what they are.
"""

import math
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from samestep.report import advice_table as table
from samestep.report.advice_table import Column
from samestep.report.advised import Advised, ClusterRow
from samestep.report.wording import visible

_FIRST_TO_GO = (
    "start",
    "efficiency",
    "growing batch",
    "same batch",
    "GPU-hours",
    "step",
    "price",
    "90 %",
    "speedup",
    "wait",
    "training",
)
"""Of columns, where there is no room for all; the others are what a recommendation rests on."""
_FIRST_TO_GO_SIMULATED = ("exchange not hidden", "compute", "nodes", "speedup", "step")
_ALL = "all columns: --json"
_BATCHES = {"same": "the same batch", "grows": "a batch that grows with the GPUs"}


def show_advice(console: Console, advised: Advised) -> None:
    """The whole answer for people."""
    console.print(Text(visible(advised.reason), style="bold"))
    console.print()
    size = advised.rows[0].batch_size if advised.batch == "same" else None
    batch = "" if size is None else f", {size:,.0f}"
    console.print(Text(f"With {_BATCHES[advised.batch]}{batch}:", style="dim"))
    columns = table.columns(advised)
    shown = _fitting(console, columns, _FIRST_TO_GO)
    asked = next(place for place, row in enumerate(advised.rows) if row.gpus == advised.recommended_gpus)
    _show_table(console, shown, marked=asked)
    said = ["→ to ask for", *table.legend(advised, shown), *([] if shown == columns else [_ALL])]
    console.print(Text("; ".join(said), style="dim"))
    if advised.what_ifs:
        console.print()
        console.print(Text("What would move it", style="bold"))
        for each in advised.what_ifs:
            _indented(console, Text.assemble((f"{each.name}: ", "bold"), visible(each.message)))
    if advised.cluster is not None:
        console.print()
        _show_cluster(console, advised.cluster)
    for finding in advised.findings:
        console.print()
        console.print(Text(f"finding {finding.cause}: ", style="yellow") + Text(visible(finding.message)))
        if finding.fix:
            _indented(console, Text(f"fix: {visible(finding.fix)}"))
    if advised.remarks:
        console.print()
    for remark in advised.remarks:
        console.print(Text.assemble(("note: ", "yellow"), visible(remark)))


def _show_cluster(console: Console, cluster: ClusterRow) -> None:
    console.print(Text(f"On {visible(cluster.name)}, simulated, at best and at worst", style="bold"))
    columns = table.simulated_columns(cluster)
    shown = _fitting(console, columns, _FIRST_TO_GO_SIMULATED)
    _show_table(console, shown)
    if shown != columns:
        console.print(Text(_ALL, style="dim"))
    for remark in cluster.remarks:
        console.print(Text.assemble(("note: ", "yellow"), visible(remark)))


def _fitting(console: Console, columns: Sequence[Column], first_to_go: Sequence[str]) -> list[Column]:
    """The columns for which there is room."""
    width = math.inf if console.soft_wrap else console.width
    shown = list(columns)
    for name in first_to_go:
        if sum(_width(column) + 2 for column in shown) <= width:
            break
        shown = [column for column in shown if column[0] != name]
    return shown


def _width(column: Column) -> int:
    head, texts = column
    return max(map(len, [head, *texts]))


def _show_table(console: Console, shown: Sequence[Column], marked: int | None = None) -> None:
    arrow = ">" if console.options.ascii_only else "→"
    widths = [_width(column) for column in shown]
    rows = [[head for head, _ in shown], *map(list, zip(*(values for _, values in shown), strict=True))]
    for place, row in enumerate(rows, start=-1):
        is_marked = place == marked
        told_row = "  ".join(
            cell.rjust(width) if head else cell.ljust(width)
            for cell, width, (head, _) in zip(row, widths, shown, strict=True)
        )
        style = "bold" if place < 0 or is_marked else ""
        line = Text(f"{arrow if is_marked else ' '} {told_row}".rstrip(), style=style)
        if console.soft_wrap:  # no terminal, and so no width to keep to
            console.print(line)
        else:
            console.print(line, no_wrap=True, overflow="crop")


def _indented(console: Console, text: Text) -> None:
    if console.soft_wrap:  # no terminal, and so no width to keep to
        console.print(Text("   ") + text)
    else:
        console.print(Padding(text, (0, 0, 0, 3), expand=False))
