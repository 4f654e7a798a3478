"""The page docs/benchmarks.md, from results. Measures nothing."""

from typing import Any

from benchmarks.peers.libraries import NOT_RUN, TITLES
from benchmarks.peers.results import Cell, Row, Table

_TITLES = {"right": "Right", "fast": "Fast", "growth": "Cost growth"}
_ABOUT = {
    "right": "Is the result of two ranks that of one? Every answer was made by running the library on two "
    "CPU ranks, with the settings named below.",
    "fast": "All libraries train the same in the same run: each has ranks of its own, which take turns with "
    "the others in random order, round by round.",
    "growth": "Samestep and DDP by hand, as something gets larger.",
}
_HEAD = """# Benchmarks

Samestep beside the libraries that people would pick instead. This page and its picture are made by one
command, which makes an environment of its own in `.venv-bench`:

<!-- not run: it takes most of an hour -->
```console
$ make bench
```

A part by itself: `.venv-bench/bin/python -m benchmarks peers --only right`. There is no GPU on this machine,
and no GPU figure is claimed: ranks are CPU processes with one thread each. The libraries exchange by gloo;
Samestep's ranks of one machine do so through shared memory, and keep the memory that they free. Neither is of
use on GPUs. They also leave torch's compiler unloaded, which the optimizers of the others load: no job here
compiles anything.

![Which library is right about what, and how fast it is](benchmarks.svg)
"""


def page(results: dict[str, Any]) -> str:
    """The whole page, as Markdown."""
    parts = [_HEAD, _summary(results)]
    for name, title in _TITLES.items():
        parts.append(f"## {title}\n\n{_ABOUT[name]}\n")
        part = results.get(name)
        if part is None:
            parts.append("Not measured yet.\n")
            continue
        parts.append(_conditions(part))
        parts += [_table(Table.from_json(table)) for table in part["tables"]]
    parts.append(_settings(results))
    return "\n".join(parts)


def tables_of(results: dict[str, Any]) -> list[Table]:
    """All tables, part by part."""
    return [Table.from_json(table) for name in _TITLES for table in results.get(name, {}).get("tables", [])]


def _summary(results: dict[str, Any]) -> str:
    rows = [(table, row) for table in tables_of(results) for row in table.rows]
    standings = [row.standing() for _, row in rows]
    text = (
        f"Of {sum(map(bool, standings))} rows, Samestep is first in {standings.count('first')}, level with "
        f"the best of the others in {standings.count('level')} and behind in {standings.count('behind')}. "
        f"Level: the 95 % intervals overlap, or another is right as well.{_right_in_all(rows)}\n"
    )
    behind = [f"- {table.title}: {row.what}" for table, row in rows if row.standing() == "behind"]
    return "\n".join([text, "Behind:\n", *behind, ""]) if behind else text


def _right_in_all(rows: list[tuple[Table, Row]]) -> str:
    """How many of the questions with yes or no each library has right, as a sentence."""
    asked = [row for _, row in rows if row.better == "right"]
    names = list(dict.fromkeys(name for row in asked for name in row.cells))
    counts = {
        name: sum(bool(row.cells[name].is_right) for row in asked if name in row.cells) for name in names
    }
    told = ", ".join(f"{TITLES.get(name, name)} {counts[name]}" for name in names)
    fair = "One of them is batch norm, which some of the others can synchronise, but on GPUs only."
    return f" Right in how many of {len(asked)}: {told}. {fair}" if asked else ""


def _conditions(part: dict[str, Any]) -> str:
    machine = part["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in part["versions"].items())
    quick = " **A quick run: its figures mean nothing.**" if part["quick"] else ""
    return (
        f"{part['when']}, {machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB free, "
        f"load {machine['load_before']:.1f} before; Python {machine['python']}, {versions}.{quick}\n"
    )


def _table(table: Table) -> str:
    names = list(dict.fromkeys(name for row in table.rows for name in row.cells))
    lines = [
        f"### {table.title}\n\n{table.about}\n",
        f"| | {' | '.join(TITLES.get(name, name) for name in names)} | Samestep is |",
        f"|---{'|---' * len(names)}|---|",
    ]
    notes = []
    for row in table.rows:
        cells = [_cell(row, row.cells.get(name)) for name in names]
        lines.append(f"| {row.what} | {' | '.join(cells)} | {row.standing()} |")
        said: dict[str, list[str]] = {}
        for name, cell in row.cells.items():
            if cell.note:
                said.setdefault(cell.note, []).append(TITLES.get(name, name))
        notes += [f"- {row.what}, {', '.join(who)}: {note}." for note, who in said.items()]
    return "\n".join([*lines, "", *notes, *([""] if notes else [])])


def _cell(row: Row, cell: Cell | None) -> str:
    if cell is None:
        return ""
    told = cell.told.replace("|", "\\|")
    if row.better != "right":
        return told
    return f"{'yes' if cell.is_right else '**no**'}: {told}"


def _settings(results: dict[str, Any]) -> str:
    settings: dict[str, str] = {}
    for part in results.values():
        settings |= part.get("settings", {})
    lines = [f"- {TITLES.get(name, name)}: {text}." for name, text in settings.items()]
    absent = [f"- {name}: {why}." for name, why in NOT_RUN.items()]
    head = (
        "All have the same model, data, batch and optimizer (fused), and each its best documented settings:"
    )
    return "\n".join(["## The settings\n", head, "", *lines, "", "Not run:\n", *absent, ""])
