"""How do costs grow with ranks, parameters, tensors, examples and shards? Samestep beside hand-tuned DDP."""

from collections.abc import Sequence
from functools import partial

from benchmarks.measure import Length, median
from benchmarks.peers import timed
from benchmarks.peers.crew import Crew, CrewError
from benchmarks.peers.fast import BASE, Say
from benchmarks.peers.memory import available_bytes
from benchmarks.peers.results import OURS, Cell, Row, Table, measured, missing
from benchmarks.peers.rounds import Ensemble, Taken

_SIZE = 2
_PLAIN = "plain"
_PER_RANK = 8
_BYTES_PER_PARAMETER = 80
"""Values, gradients, momentum and buckets in float32, on two ranks of two libraries."""
_BYTES_PER_EXAMPLE = 100
_PAIR = {name: (name, _SIZE) for name in (OURS, BASE)}


def tables(*, quick: bool, say: Say) -> list[Table]:
    return [
        _worlds((1, 2) if quick else (1, 2, 3, 4), quick, say),
        _sizes(
            "parameters", [10**k for k in ((3, 4) if quick else range(3, 9))], quick, say,
            about="One matrix, 4 examples a step: nothing counts but exchange and update.",
        ),
        _sizes(
            "tensors", [10] if quick else [10, 100, 1000, 5000], quick, say,
            about="Layers of 8 × 8 one after the other, 4 examples a step.",
        ),
        _examples([10**k for k in ((3, 4) if quick else range(3, 10))], say),
        _shards((2,) if quick else (1, 2, 4, 8, 16, 32, 64), quick, say),
    ]  # fmt: skip


def _length(quick: bool) -> Length:
    return Length(rounds=2, block_s=0.0) if quick else Length(rounds=20, block_s=0.2)


def _worlds(sizes: Sequence[int], quick: bool, say: Say) -> Table:
    rows = []
    for size in sizes:
        say(f"growth: {size} ranks")
        ensemble = Ensemble({OURS: (OURS, size), BASE: (BASE, size), _PLAIN: (BASE, 1)})
        try:
            taken = ensemble.take_turns(partial(_with_equal_kernels, size), _length(quick), quick=quick)
        finally:
            ensemble.close()
        cells = {name: _outside_kernels(taken, name, size) for name in (OURS, BASE)}
        rows.append(Row(what=f"{size} rank{'s' * (size > 1)}", better="less", cells=cells))
    return Table(
        name="world",
        title="Processor time a step and rank outside of kernels, in µs, against the number of ranks",
        about=f"The tiny MLP with {_PER_RANK} examples a rank: processor time of a rank, less that of a "
        "plain loop with the same examples. More ranks than cores wait for each other, which "
        "is no processor time.",
        rows=rows,
    )


def _with_equal_kernels(size: int, label: str) -> str:
    return f"world:{_PER_RANK * (1 if label == _PLAIN else size)}"


def _outside_kernels(taken: Taken, name: str, size: int) -> Cell:
    if name not in taken.processor_s or _PLAIN not in taken.processor_s:
        return missing(taken.failed.get(name, "there is nothing to compare with"))
    pairs = zip(taken.processor_s[name], taken.processor_s[_PLAIN], strict=True)
    return measured(median([own / size - plain for own, plain in pairs]).scaled(1e6), digits=0)


def _sizes(kind: str, numbers: Sequence[int], quick: bool, say: Say, *, about: str) -> Table:
    rows = []
    ensemble = Ensemble(_PAIR)
    try:
        for number in numbers:
            what = f"{number:,} {kind}"
            say(f"growth: {what}")
            if kind == "parameters" and number * _BYTES_PER_PARAMETER > available_bytes():
                why = "needs more memory than is free"
                rows.append(Row(what=what, better="more", cells=dict.fromkeys(_PAIR, missing(why))))
                continue
            taken = ensemble.take_turns(f"{kind}:{number}", _length(quick), quick=quick)
            rows.append(Row(what=what, better="more", cells=_against_ddp(taken)))
    finally:
        ensemble.close()
    return Table(
        name=kind,
        title=f"Throughput as a part of that of hand-tuned DDP, against the number of {kind}, {_SIZE} ranks",
        about=about,
        rows=rows,
    )


def _shards(numbers: Sequence[int], quick: bool, say: Say) -> Table:
    rows = []
    for size in (1, _SIZE):
        ensemble = Ensemble({name: (name, size) for name in _PAIR})
        try:
            for number in numbers:
                if (number == 1) != (size == 1):
                    continue
                say(f"growth: {number} shards")
                taken = ensemble.take_turns(f"shards:{number}", _length(quick), quick=quick)
                what = f"{number} shard{'s' * (number > 1)}, {size} rank{'s' * (size > 1)}"
                rows.append(Row(what=what, better="more", cells=_against_ddp(taken)))
        finally:
            ensemble.close()
    return Table(
        name="shards",
        title="Throughput of bitwise mode as a part of that of DDP that accumulates the same pieces",
        about="The CNN with batch norm, 64 examples a step. DDP's result depends on the number of ranks, "
        "that of bitwise mode does not.",
        rows=rows,
    )


def _against_ddp(taken: Taken) -> dict[str, Cell]:
    cells = {}
    for name in _PAIR:
        if name not in taken.wall_s or BASE not in taken.wall_s:
            cells[name] = missing(taken.failed.get(name, "there is nothing to compare with"))
            continue
        step = f"{median(taken.wall_s[name]).value * 1e3:.3g} ms"
        figure = taken.throughput(name, BASE)
        told = f"1 ({step})" if name == BASE else None
        cells[name] = measured(figure, digits=3, unit=f", {step}", told=told)
    return cells


def _examples(numbers: Sequence[int], say: Say) -> Table:
    cells: dict[int, dict[str, Cell]] = {number: {} for number in numbers}
    for name in _PAIR:
        say(f"growth: data sets, {name}")
        try:
            with Crew(name, 1) as crew:
                for number in numbers:
                    if name == BASE and number * _BYTES_PER_EXAMPLE > available_bytes():
                        cells[number][name] = missing("needs more memory than is free")
                        continue
                    found = crew.ask(timed.first_batch, num_examples=number)[0]
                    told = f"{_told_s(found['seconds'])}, {found['megabytes']:,.0f} MB"
                    cells[number][name] = Cell(told=told, value=found["seconds"])
        except CrewError as error:
            for number in numbers:
                cells[number].setdefault(name, missing(str(error)))
    return Table(
        name="examples",
        title="To the end of the first step of a shuffled epoch, against the number of examples, one rank",
        about="Time, and memory beyond that of a short epoch; each number of examples was begun once.",
        rows=[Row(what=f"{number:,} examples", better="less", cells=cells[number]) for number in numbers],
    )


def _told_s(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
