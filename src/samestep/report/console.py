"""The terminal: progress, what ranks say, findings and summaries for people; on standard error only.

Text of the user's is never read as markup. Standard output belongs to the answer of a command.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from samestep.errors import RecordError
from samestep.launch.failure import Failure
from samestep.launch.voices import Said
from samestep.record import Record, rank_folder, read_json
from samestep.report.wording import visible

PLAIN_EVERY_S = 5.0


def talk() -> Console:
    """The console for people: standard error, plain where it is no terminal or NO_COLOR is set."""
    return Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())


def ranks(size: int) -> str:
    """A number of ranks, in words."""
    return f"{size} rank{'s' * (size > 1)}"


def answer(value: Mapping[str, Any]) -> None:
    """Print the answer for machines: one JSON object, alone on standard output.

    JSON has no number that is not finite: what overflowed is null.
    """
    try:
        text = json.dumps(value, default=str, allow_nan=False)
    except ValueError:
        text = json.dumps(json.loads(json.dumps(value, default=str), parse_constant=lambda _: None))
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Watch:
    """Shows a run while it goes on: call it as `on_tick`, inside `with`.

    On a terminal a bar that follows progress.json; elsewhere a line every `PLAIN_EVERY_S`, if it moved.
    """

    def __init__(self, console: Console, folder: Path, *, title: str) -> None:
        self._console = console
        self._folder = folder
        self._title = title
        self._bar: Progress | None = None
        self._row: TaskID | None = None
        self._looked = self._told = time.monotonic()
        self._last: tuple[float, float] | None = None
        self._rate = ""
        self._findings_size = 0
        self._num_told = 0
        if console.is_terminal:
            columns = [TextColumn("{task.fields[title]}", markup=False)]
            if console.width >= 60:
                columns.append(BarColumn(bar_width=None))  # type: ignore[arg-type]
            columns.append(TextColumn("{task.fields[state]}", markup=False))
            self._bar = Progress(
                *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
            )

    def __enter__(self) -> "Watch":
        if self._bar is not None:
            self._bar.start()
            self._row = self._bar.add_task("", total=None, title=self._title, state="starting")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, said: Sequence[Said]) -> None:
        for line in said:
            tag = Text(f"{line.tag} ", style="dim") if line.tag else Text()
            self._console.print(tag + Text.from_ansi(line.text))
        now = time.monotonic()
        if now - self._looked >= 0.25:
            self._looked = now
            self._look(now)

    def _look(self, now: float) -> None:
        progress = read_json(self._folder / "progress.json")
        if progress is None:
            return
        about = read_json(self._folder / "record.json") or {}
        if isinstance(size := about.get("world_size"), int):  # fewer than at first, if ranks were lost
            self._title = ranks(size)
        state = self._state(progress, about, now)
        if self._bar is not None and self._row is not None:
            self._bar.update(
                self._row,
                title=self._title,
                total=about.get("num_steps"),
                completed=progress["step"],
                state=state,
            )
        elif now - self._told >= PLAIN_EVERY_S:
            self._told = now
            self._console.print(Text(f"{self._title}: {state}"))
        if self._findings_size != self._size_of_findings():
            self._findings_size = self._size_of_findings()
            self.tell_findings()

    def tell_findings(self) -> None:
        """Show the findings that were not shown yet."""
        found = _findings_of(self._folder)
        show_findings(self._console, found[self._num_told :])
        self._num_told = max(self._num_told, len(found))

    def _state(self, progress: Mapping[str, Any], about: Mapping[str, Any], now: float) -> str:
        step = progress["step"]
        examples = progress.get("examples")
        if isinstance(examples, int | float) and (self._last is None or examples != self._last[0]):
            if self._last is not None and now > self._last[1]:
                self._rate = f"{(examples - self._last[0]) / (now - self._last[1]):,.0f} examples/s"
            self._last = (examples, now)
        total = about.get("num_steps")
        loss = progress.get("loss")
        parts = [
            _epoch(progress, about),
            f"step {step:,}/{total:,}" if total else f"step {step:,}",
            f"loss {loss:.4g}" if isinstance(loss, int | float) else "",
            self._rate,
        ]
        wide = self._console.width >= 60 or self._bar is None
        return "  ".join(part for part in (parts if wide else parts[1:3]) if part)

    def _size_of_findings(self) -> int:
        path = self._folder / "findings.jsonl"
        return path.stat().st_size if path.exists() else 0


def _epoch(progress: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    """The epoch under way as people count, from 1."""
    if "epoch" not in progress:
        return ""
    total = about.get("num_epochs")
    return f"epoch {progress['epoch'] + 1}/{total}" if total else f"epoch {progress['epoch'] + 1}"


def _findings_of(folder: Path) -> list[dict[str, Any]]:
    try:
        return Record.read(folder).findings()
    except RecordError:
        return []


def show_findings(console: Console, findings: Sequence[Mapping[str, Any]]) -> None:
    """Each finding in two lines: what was noticed, and what to do about it."""
    for finding in findings:
        title = f"finding {finding.get('cause', '')}: "
        console.print(Text(title, style="yellow") + Text(str(finding.get("message", ""))))
        if finding.get("fix"):
            console.print(Text(f"    fix: {finding['fix']}"))


def show_error(console: Console, sentence: str) -> None:
    """The one sentence that tells why there is no answer."""
    lines = [visible(line) for line in sentence.split("\n")]
    console.print(Text("error: ", style="bold red") + Text("\n".join(lines)))


def show_failure(console: Console, failure: Failure, folder: Path) -> None:
    """Why a run failed: one sentence, the user's own line, and where to read more."""
    show_error(console, failure.sentence)
    if failure.where:
        console.print(Text(f"    at {failure.where}"))
    if failure.rank is not None:
        name = "traceback.txt" if failure.has_traceback else "stderr.log"
        label = "full traceback" if failure.has_traceback else "what it said"
        path = rank_folder(folder, failure.rank) / name
        if path.exists() and path.stat().st_size:
            console.print(Text(f"    {label}: {path}"))
    else:
        console.print(Text(f"    what it said: {folder / 'agent.log'}"))


def show_summary(console: Console, title: str, rows: Mapping[str, Any]) -> None:
    """A small table of names and values; values that are None are left out."""
    table = Table(title=Text(title), title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        if value is not None:
            table.add_row(Text(name, style="dim"), Text(_shown(value)))
    console.print(table)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
