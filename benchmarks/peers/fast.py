"""How fast is it? Throughput, overhead, start-up, memory, first batches and resuming, library by library."""

import random
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from benchmarks.measure import Estimate, Length, median
from benchmarks.peers import facts, timed
from benchmarks.peers.crew import Crew, CrewError
from benchmarks.peers.memory import available_bytes
from benchmarks.peers.results import OURS, Cell, Row, Table, measured, missing
from benchmarks.peers.rounds import Ensemble, Taken
from benchmarks.peers.workloads import NAMES

BASE = "ddp"
OWN_LAUNCHER = f"{OURS} train"
"""Samestep once more, started by its own launcher."""
_SIZE = 2
_PREFETCHED = 6
"""Steps that workers may have fetched meanwhile: two each, and some under way."""
_BYTES_PER_EXAMPLE = 60
"""Of torch's shuffled order: a tensor, a list and an int object for each index, with room to spare."""

Say = Callable[[str], None]
Found = TypeVar("Found")


def tables(names: list[str], *, quick: bool, only: list[str] | None, say: Say) -> list[Table]:
    """All tables; `only` names some workloads."""
    workloads = [name for name in NAMES if only is None or name in only]
    return [
        *_throughput(names, workloads, quick, say),
        _start(names, quick, say),
        _memory(names, quick, say),
        _long_epoch(names, quick, say),
        _resume(names, quick, say),
    ]


def _throughput(names: list[str], workloads: list[str], quick: bool, say: Say) -> list[Table]:
    rows, added = [], []
    for size in (1, 2):
        ensemble = Ensemble({name: (name, size) for name in names})
        try:
            for workload in workloads:
                say(f"throughput: {NAMES[workload]}, {size} rank{'s' * (size > 1)}")
                length = Length(rounds=2, block_s=0.0) if quick else Length(rounds=30, block_s=0.25)
                before = _PREFETCHED if workload == "slow" else 0
                taken = ensemble.take_turns(workload, length, quick=quick, before=before)
                what = f"{NAMES[workload]}, {size} rank{'s' * (size > 1)}"
                rows.append(Row(what=what, better="more", cells=_ratios(names, taken)))
                if workload == "tiny":
                    added.append(Row(what=what, better="less", cells=_added(names, taken)))
        finally:
            ensemble.close()
    return [
        Table(
            name="throughput",
            title="Throughput, as a part of that of hand-tuned DDP",
            about="Above 1 is faster. Median of the ratios within rounds, with its 95 % interval. One rank "
            "by hand is a plain loop without DDP. Batch norm is synchronised by Samestep only, since the "
            "others cannot do that on CPU; losses are weighted over all ranks by Samestep, by hand and with "
            "Accelerate only. The others do a training that is cheaper, and another one.",
            rows=rows,
        ),
        Table(
            name="overhead",
            title="Time that a step of the tiny MLP takes more than by hand, in µs",
            about="Less is better; median of the differences within rounds, with its 95 % interval.",
            rows=added,
        ),
    ]


def _ratios(names: list[str], taken: Taken) -> dict[str, Cell]:
    def cell(name: str) -> Cell:
        figure = taken.throughput(name, BASE)
        step = f"{_middle(taken.wall_s[name]) * 1e3:.3g} ms"
        return measured(figure, digits=3, told=f"1 ({step})" if name == BASE else None)

    return _cells(names, taken, cell)


def _added(names: list[str], taken: Taken) -> dict[str, Cell]:
    return _cells(names, taken, lambda name: measured(taken.added_s(name, BASE).scaled(1e6), digits=0))


def _cells(names: list[str], taken: Taken, cell: Callable[[str], Cell]) -> dict[str, Cell]:
    cells = {}
    for name in names:
        if name not in taken.wall_s or BASE not in taken.wall_s:
            cells[name] = missing(taken.failed.get(name, "there is nothing to compare with"))
        else:
            cells[name] = cell(name)
    return cells


def _start(names: list[str], quick: bool, say: Say) -> Table:
    ways = {name: (name, None) for name in names} | (
        {OWN_LAUNCHER: (OURS, "samestep")} if OURS in names else {}
    )
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    failed: dict[str, str] = {}
    order = random.Random(0)
    for number in range(1 if quick else 5):
        say(f"start: round {number + 1}")
        for way in order.sample(list(ways), len(ways)):
            name, launcher = ways[way]
            try:
                with Crew(name, _SIZE, launcher=launcher) as crew:
                    crew.begin(timed.in_turns, name="tiny", quick=quick)
                    # the first start fills the caches of the disk
                    seconds[way].append(max(message["ready"] for message in crew.hear()) - crew.began)
                    crew.end_training()
            except CrewError as error:
                failed[way] = str(error)
    cells = {
        way: missing(failed[way])
        if way in failed
        else measured(median(taken if len(taken) == 1 else taken[1:]), digits=1, unit=" s")
        for way, taken in seconds.items()
    }
    return Table(
        name="start",
        title=f"From the command to the end of the first step, {_SIZE} ranks",
        about="By torchrun, Ray's by its own driver; Samestep also by its own launcher. Median of rounds in "
        "which each was started once.",
        rows=[Row(what="tiny MLP", better="less", cells=cells)],
    )


def _memory(names: list[str], quick: bool, say: Say) -> Table:
    rows = []
    for workload in ("tiny", "heavy"):
        say(f"memory: {NAMES[workload]}")

        def peaks(crew: Crew, name: str = workload) -> list[float]:
            return crew.ask(timed.peak, name=name, quick=quick)

        found = _each(names, _SIZE, peaks, times=1 if quick else 3)
        rows.append(Row(what=NAMES[workload], better="less", cells=_spread(found, digits=0, unit=" MB")))
    return Table(
        name="memory",
        title=f"Peak of memory of a rank, {_SIZE} ranks",
        about="Resident memory of the process of a rank, libraries included, after five steps. Median and "
        "range over ranks and starts.",
        rows=rows,
    )


def _long_epoch(names: list[str], quick: bool, say: Say) -> Table:
    wanted = 10**5 if quick else 10**8
    number = wanted if wanted * _BYTES_PER_EXAMPLE <= available_bytes() else wanted // 10
    say(f"first batch of {number:,} examples")

    def first(crew: Crew) -> list[dict[str, float]]:
        return crew.ask(timed.first_batch, num_examples=number)

    found = _each(names, 1, first, times=1 if quick else 2)
    rows = [
        Row(
            what=f"{number:,} examples: {what}",
            better="less",
            cells=_spread(_picked(found, key), digits=digits, unit=unit),
        )
        for what, key, digits, unit in (("time", "seconds", 2, " s"), ("memory", "megabytes", 0, " MB"))
    ]
    return Table(
        name="epoch",
        title="To begin a long epoch",
        about="One rank, shuffled: up to the end of the first step, and memory beyond that of a short epoch. "
        "Median and range of starts.",
        rows=rows,
    )


def _resume(names: list[str], quick: bool, say: Say) -> Table:
    say("resume amid an epoch")
    steps, wait_s = (8, 0.0) if quick else (250, 0.001)

    def resumed(crew: Crew) -> list[float]:
        with TemporaryDirectory(prefix="peers-") as folder:
            arguments: dict[str, Any] = {
                "num_examples": 2 * steps * 32, "batch_size": 32, "folder": folder, "wait_s": wait_s
            }  # fmt: skip
            crew.ask(facts.examples, save_after=steps, **arguments)
            again = [
                crew.ask(facts.examples, resume_at=steps, only_first=True, **arguments)
                for _ in range(1 if quick else 3)
            ]
        return [max(rank["first_step_s"] for rank in ranks) for ranks in again]

    cells = _spread(_each(names, _SIZE, resumed, times=1), digits=2, unit=" s")
    return Table(
        name="resume",
        title="To go on in the middle of an epoch",
        about=f"{_SIZE} ranks, {steps} steps of 32 examples behind them, {wait_s * 1e3:.0f} ms an example to "
        "load: from the call in a running process to the end of the next step. Median and range of three.",
        rows=[Row(what=f"after {steps} steps", better="less", cells=cells)],
    )


def _each(
    names: list[str], size: int, ask: Callable[[Crew], list[Found]], *, times: int
) -> dict[str, list[Found] | str]:
    """What each library answers in new processes, one after the other; or why it does not."""
    found: dict[str, list[Found] | str] = {}
    for name in names:
        try:
            answers: list[Found] = []
            for _ in range(times):
                with Crew(name, size) as crew:
                    answers += ask(crew)
            found[name] = answers
        except CrewError as error:
            found[name] = str(error)
    return found


def _picked(found: dict[str, list[dict[str, float]] | str], key: str) -> dict[str, list[float] | str]:
    return {
        name: answers if isinstance(answers, str) else [answer[key] for answer in answers]
        for name, answers in found.items()
    }


def _spread(found: dict[str, list[float] | str], *, digits: int, unit: str) -> dict[str, Cell]:
    """Medians, with the range of what was found."""
    return {
        name: missing(values)
        if isinstance(values, str)
        else measured(
            Estimate(value=_middle(values), low=min(values), high=max(values)), digits=digits, unit=unit
        )
        for name, values in found.items()
    }


def _middle(values: list[float]) -> float:
    return median(values).value
