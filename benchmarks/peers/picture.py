"""The picture of the benchmarks: who is right about what, and how fast, as one SVG. Measures nothing."""

from collections.abc import Iterable
from html import escape
from typing import Any

from benchmarks.peers.libraries import TITLES
from benchmarks.peers.page import tables_of
from benchmarks.peers.results import OURS, Cell, Row, Table
from samestep.report.chart import ticks

_WIDTH = 980
_LEFT, _RIGHT = 290, 20
_ROW = 26
_HEAD = 34
_COLOURS = {
    OURS: "#0b6e4f", "ddp": "#333333", "accelerate": "#d98200", "fabric": "#7a5bd0", "trainer": "#b05bd0",
    "ray": "#0a7fc2", "deepspeed": "#c0392b",
}  # fmt: skip
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#222}.head{font-weight:600}.end{text-anchor:end}"
    ".mid{text-anchor:middle}.key{font-size:12px}.quiet{fill:#666;font-size:12px}"
)


def picture(results: dict[str, Any]) -> str:
    """The drawing; parts that were not measured are left out."""
    tables = {table.name: table for table in tables_of(results)}
    parts: list[str] = []
    down = 10
    for name, draw in (("right", _grid), ("throughput", _dots)):
        if name in tables and tables[name].rows:
            drawn, height = draw(tables[name])
            parts.append(f'<g transform="translate(0 {down})">{"".join(drawn)}</g>')
            down += height + 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {down}" width="{_WIDTH}" '
        f'height="{down}" role="img"><title>Samestep beside its peers</title><style>{_STYLE}</style>'
        f'<rect width="{_WIDTH}" height="{down}" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def _grid(table: Table) -> tuple[list[str], int]:
    """A square for each library and question: filled if it is right."""
    names = list(dict.fromkeys(name for row in table.rows for name in row.cells))
    slot = (_WIDTH - _LEFT - _RIGHT) / len(names)
    drawn = [_text(10, 16, "Two ranks do what one does", "head")]
    drawn += [_text(_LEFT + slot * (i + 0.5), 16, TITLES[n], _class(n)) for i, n in enumerate(names)]
    for number, row in enumerate(table.rows):
        y = _HEAD + number * _ROW
        drawn.append(_text(_LEFT - 12, y + 15, row.what, "end"))
        for place, name in enumerate(names):
            drawn.append(_mark(_LEFT + slot * (place + 0.5), y + 10, row.cells[name]))
    return drawn, _HEAD + len(table.rows) * _ROW


def _mark(x: float, y: float, cell: Cell) -> str:
    words = f"<title>{escape(cell.told)}</title>"
    if cell.is_right:
        tick = f"M{x - 5:.1f} {y}l4 4l7 -8"
        return (
            f'<g>{words}<circle cx="{x:.1f}" cy="{y}" r="10" fill="#d7efe4"/>{_stroke(tick, "#0b6e4f")}</g>'
        )
    cross = f"M{x - 4:.1f} {y - 4}l8 8m0 -8l-8 8"
    return f'<g>{words}<circle cx="{x:.1f}" cy="{y}" r="10" fill="#f8dfdb"/>{_stroke(cross, "#b3261e")}</g>'


def _dots(table: Table) -> tuple[list[str], int]:
    """Throughput as a part of DDP's: a dot with its interval for each library, a line for each workload."""
    rows = [row for row in table.rows if any(cell.value is not None for cell in row.cells.values())]
    values = [value for row in rows for cell in row.cells.values() for value in _ends(cell)]
    marks = ticks(min([0.8, *values]), max([1.1, *values]), 6)
    names = list(dict.fromkeys(name for row in rows for name in row.cells))
    wide = _WIDTH - _LEFT - _RIGHT

    def across(value: float) -> float:
        return _LEFT + (value - marks[0]) / (marks[-1] - marks[0]) * wide

    bottom = _HEAD + len(rows) * _ROW
    drawn = [_text(10, 16, "Throughput, DDP by hand = 1", "head")]
    slot = wide / len(names)
    for place, name in enumerate(names):
        x = _LEFT + slot * (place + 0.5)
        drawn.append(f'<circle cx="{x - 42:.1f}" cy="12" r="4" fill="{_COLOURS.get(name, "#888")}"/>')
        drawn.append(_text(x - 35, 16, TITLES.get(name, name), "head key" if name == OURS else "key"))
    for mark in marks:
        colour = "#888" if abs(mark - 1) < 1e-9 else "#e4e4e4"
        drawn.append(_stroke(f"M{across(mark):.1f} {_HEAD - 6}V{bottom}", colour, 1))
        drawn.append(_text(across(mark), bottom + 16, f"{mark:.3g}", "mid quiet"))
    for number, row in enumerate(rows):
        drawn += _line(row, _HEAD + number * _ROW + 10, across)
    return drawn, bottom + 22


def _line(row: Row, y: float, across: Any) -> Iterable[str]:
    yield _text(_LEFT - 12, y + 5, row.what, "end")
    # ours last, so that it lies on top
    for name, cell in sorted(row.cells.items(), key=lambda item: item[0] == OURS):
        if cell.value is None or cell.low is None or cell.high is None:
            continue
        colour = _COLOURS.get(name, "#888")
        radius = 6 if name == OURS else 4
        yield (
            f'<g opacity="{1 if name == OURS else 0.75}"><title>{escape(TITLES.get(name, name))}: '
            f"{escape(cell.told)}</title>"
            f"{_stroke(f'M{across(cell.low):.1f} {y}H{across(cell.high):.1f}', colour)}"
            f'<circle cx="{across(cell.value):.1f}" cy="{y}" r="{radius}" fill="{colour}"/></g>'
        )


def _ends(cell: Cell) -> list[float]:
    return [value for value in (cell.value, cell.low, cell.high) if value is not None]


def _class(name: str) -> str:
    return "mid head" if name == OURS else "mid"


def _text(x: float, y: float, words: str, style: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}">{escape(words)}</text>'


def _stroke(path: str, colour: str, width: float = 2) -> str:
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
