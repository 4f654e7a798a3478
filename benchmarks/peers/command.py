"""`python -m benchmarks peers`: runs the comparison, part by part, and writes figures, page and picture.

A part that was not asked for keeps its earlier figures, with their own date. Figures are written after every
part, so that what was measured is not lost.
"""

import argparse
import json
import os
import platform
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.peers import fast, growth, libraries, right
from benchmarks.peers.memory import available_bytes
from benchmarks.peers.page import page
from benchmarks.peers.picture import picture
from benchmarks.peers.results import Cell, Row, Table
from benchmarks.peers.workloads import NAMES

FIGURES = Path(__file__).with_name("results.json")
DOCS = Path(__file__).parent.parent.parent / "docs"
PARTS = ("right", "fast", "growth")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks peers", description="Samestep beside the libraries that people would pick."
    )
    parser.add_argument("--only", choices=PARTS, action="append", help="this part; may be given again")
    parser.add_argument("--libraries", type=_names, default=None, metavar="A,B", help="of those installed")
    parser.add_argument(
        "--workloads", type=_workloads, default=None, metavar="A,B", help=f"of {', '.join(NAMES)}"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a few steps each, to see that they run; needs --out"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write there rather than into docs/")
    parser.add_argument(
        "--render", action="store_true", help="measure nothing: page and picture from the figures"
    )
    options = parser.parse_args(arguments)
    if options.quick and options.out is None:
        parser.error("--quick figures mean nothing and do not belong into docs/: say --out FOLDER")
    names = options.libraries or libraries.installed()
    figures = FIGURES if options.out is None else options.out / FIGURES.name
    results: dict[str, Any] = json.loads(figures.read_text()) if figures.exists() else {}
    # a wish to end becomes an exception, so that no ranks are left behind
    signal.signal(signal.SIGTERM, _leave)
    for part in [] if options.render else options.only or PARTS:
        results[part] = _measured(part, names, options)
        figures.parent.mkdir(parents=True, exist_ok=True)
        figures.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    folder = DOCS if options.out is None else options.out
    (folder / "benchmarks.md").write_text(page(results))
    (folder / "benchmarks.svg").write_text(picture(results))
    print(f"{figures}, {folder / 'benchmarks.md'} and its picture are written")


def _leave(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second wish must not interrupt the ending of ranks
    sys.exit(128 + number)


def _measured(part: str, names: list[str], options: argparse.Namespace) -> dict[str, Any]:
    conditions = {
        "when": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "machine": _machine(),
        "quick": options.quick,
    }
    settings: dict[str, str] = {}
    if part == "right":
        table, settings = _right(names)
        tables = [table]
    elif part == "fast":
        tables = fast.tables(names, quick=options.quick, only=options.workloads, say=_say)
    else:
        tables = growth.tables(quick=options.quick, say=_say)
    versions = {
        package: version(package) for package in sorted({libraries.package_of(name) for name in names})
    }
    return {
        **conditions,
        "versions": versions,
        "settings": settings,
        "tables": [table.to_json() for table in tables],
    }


def _right(names: list[str]) -> tuple[Table, dict[str, str]]:
    cells: dict[str, dict[str, Cell]] = {check.what: {} for check in right.CHECKS}
    settings = {}
    for name in names:
        _say(f"right: {name}")
        settings[name], answers = right.ask_all(name, right.CHECKS)
        for what, answer in answers.items():
            cells[what][name] = Cell(told=answer.told, is_right=answer.is_right, note=answer.note)
    rows = [Row(what=what, better="right", cells=found) for what, found in cells.items()]
    about = (
        "Examples are counted over all ranks; gradients and metrics are compared with those of one process. "
        f"An error is relative to the largest entry; below {right.LIMIT:g} it is rounding. What can be "
        "added by hand to any of them counts where its documentation shows it, and for DDP by hand."
    )
    return Table(name="right", title="The same as on one rank", about=about, rows=rows), settings


def _machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(available_bytes() / 1e9),
        "load_before": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _names(text: str) -> list[str]:
    there = libraries.installed()
    if unknown := [name for name in text.split(",") if name not in there]:
        raise argparse.ArgumentTypeError(
            f"{', '.join(unknown)} is not there; installed are {', '.join(there)}"
        )
    return text.split(",")


def _workloads(text: str) -> list[str]:
    if unknown := [name for name in text.split(",") if name not in NAMES]:
        raise argparse.ArgumentTypeError(f"there is no {', '.join(unknown)}; there are {', '.join(NAMES)}")
    return text.split(",")


def _say(text: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", file=sys.stderr, flush=True)
