"""Remarks: what is to be said of cells and of projections, in words."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from samestep.advise.batches import Way
from samestep.advise.cells import Cell
from samestep.advise.context import Context
from samestep.advise.convergence import ExamplesNeeded
from samestep.advise.next_cell import NUM_STEPS, NextCell
from samestep.advise.nodes import Node
from samestep.advise.ranges import GAIN
from samestep.advise.rows import ProjectedRow
from samestep.advise.words import examples as told_examples
from samestep.advise.words import gpus as told_gpus
from samestep.advise.words import told
from samestep.findings import Finding

_BETTER = 0.05
"""An example may cost so much less of a GPU's time on more GPUs before it is odd."""
_ERRATIC = 0.15
_LOSS = 0.5
"""Times the examples a second of the fewest GPUs: where all others lie between it and `GAIN`, they may be of
one GPU."""
_USUAL_S = (0.002, 10.0)
"""Of a hundred public steps on the fewest GPUs, one is shorter and five are longer: worth a question."""


def of_cells(cells: Sequence[Cell], *, has_single: bool) -> list[Finding]:
    """Superlinear, erratic, noisy, gainless and overlong cells of one batch, and none of one GPU.

    Intervals widen by themselves.
    """
    found = []
    costs = [cell.gpu_s_per_example for cell in cells]
    for cell, cost in zip(cells[1:], costs[1:], strict=True):
        least = costs[0] * (1 - _BETTER - 2 * cell.relative_deviation - 2 * cells[0].relative_deviation)
        if cost < least:
            gain = costs[0] / cost * cell.gpus / cells[0].gpus
            found.append(
                Finding(
                    cause="superlinear",
                    message=f"{cell.gpus} GPUs are {gain:.2f} times as fast as {cells[0].gpus}, which is "
                    f"more than {cell.gpus / cells[0].gpus:.3g} times the GPUs should bring. The cell is "
                    "kept, and projections are less sure for it.",
                    evidence={"gpus": cell.gpus, "speedup": gain},
                    fix="See whether the batch is right: if more GPUs share one, batch_per_gpu is smaller. "
                    "If it is, see whether all cells did the same work on free machines; measure again.",
                )
            )
            break
    changes = [after / before - 1 for before, after in pairwise(costs)]
    if any(up > _ERRATIC for up in changes) and any(down < -_ERRATIC for down in changes):
        found.append(
            Finding(
                cause="erratic",
                message="The cost of an example rises and falls by more than "
                f"{_ERRATIC:.0%} from one world size to the next. Projections are less sure for it.",
                evidence={"gpus": [cell.gpus for cell in cells], "gpu_s_per_example": costs},
                fix="Measure again on machines that nobody else uses.",
            )
        )
    found += [*_of_noise(cells), *_of_no_gain(cells)]
    found += _of_units(cells[0])
    if not has_single:
        found.append(
            Finding(
                cause="no-single-gpu",
                message=f"The smallest world has {cells[0].gpus} GPUs, so speedup over one is not known: "
                "tables tell it over these, each of which counts as one.",
                evidence={"smallest": cells[0].gpus},
                fix="Measure 1 GPU too, with the same batch.",
            )
        )
    return found


def _of_units(cell: Cell) -> list[Finding]:
    """Steps that somebody may have written down in another unit; a sweep knows its own."""
    short_s, long_s = _USUAL_S
    if cell.conditions or not cell.is_in_seconds or short_s <= cell.step_s <= long_s:
        return []
    takes = f"A step takes {told(cell.step_s)} on {told_gpus(cell.gpus)}, which is unusually"
    evidence = {"gpus": cell.gpus, "step_s": cell.step_s}
    if cell.step_s > long_s:
        fix = "If they were, name the column step_ms."
        said = f"{takes} long: were these milliseconds?"
        return [Finding(cause="long-steps", message=said, evidence=evidence, fix=fix)]
    fix = "If they were, name the column step_s; with examples_per_s, see which batch it is of."
    said = f"{takes} short: were these seconds?"
    return [Finding(cause="short-steps", message=said, evidence=evidence, fix=fix)]


def _of_noise(cells: Sequence[Cell]) -> list[Finding]:
    worst = max(cells, key=lambda cell: cell.half_width)
    low_s, high_s = worst.step_low_s, worst.step_high_s
    if low_s is None or high_s is None or (high_s - low_s) / 2 <= _ERRATIC * worst.step_s:
        return []
    return [
        Finding(
            cause="noisy",
            message=f"The step of {worst.gpus} GPU{'s' * (worst.gpus > 1)} is known to lie between "
            f"{told(low_s)} and {told(high_s)} only. Projections are less sure for it.",
            evidence={"gpus": worst.gpus, "step_low_s": low_s, "step_high_s": high_s},
            fix="See whether repeats did the same work, and measure again on machines that nobody else uses.",
        )
    ]


def _of_no_gain(cells: Sequence[Cell]) -> list[Finding]:
    """Examples a second that hardly change: of one GPU by mistake, or more GPUs bring nothing.

    Not of sweeps, which count all GPUs and say themselves what is gained.
    """
    if any(cell.conditions for cell in cells):
        return []
    first, last = cells[0], cells[-1]
    gains = [cell.examples_per_s / first.examples_per_s for cell in cells if cell.gpus > first.gpus]
    if not gains or not all(_LOSS < gain < GAIN for gain in gains):
        return []
    return [
        Finding(
            cause="no-gain",
            message=f"{last.gpus} GPUs together do {last.examples_per_s:.4g} examples a second, {first.gpus} "
            f"{'do' if first.gpus > 1 else 'does'} {first.examples_per_s:.4g}: nothing is gained. Or are "
            "these figures, or the batch, those of one GPU?",
            evidence={"gpus": last.gpus, "gain": gains[-1]},
            fix="Give examples_per_s and batch_size of all GPUs together, and the batch of one as "
            "batch_per_gpu; if they are, `samestep scale` tells where the speed goes.",
        )
    ]


def of_placements(cells: Sequence[Cell], shown: Sequence[Cell]) -> list[Finding]:
    """Numbers of GPUs that were measured on several numbers of nodes, and which one has the row."""
    found = []
    for cell in shown:
        nodes = sorted({each.num_nodes for each in cells if each.gpus == cell.gpus})
        if len(nodes) > 1:
            on = " and ".join(map(str, nodes))
            found.append(
                Finding(
                    cause="several-placements",
                    message=f"{told_gpus(cell.gpus)} were measured on {on} nodes; the row is of "
                    f"{cell.num_nodes}, which was quickest, and projections know all of them.",
                    evidence={"gpus": cell.gpus, "nodes": nodes, "row": cell.num_nodes},
                    fix=f"Ask for {cell.num_nodes} node{'s' * (cell.num_nodes > 1)} with them.",
                )
            )
    return found


def of_one_world(cell: Cell, then: NextCell | None) -> list[Finding]:
    """Why there is no projection."""
    fix = "" if then is None else f"{_measure(then)}: {then.why}."
    return [
        Finding(
            cause="one-world-size",
            message=f"Only {cell.gpus} GPU{'s were' if cell.gpus > 1 else ' was'} measured. One world size "
            "says nothing about more, so nothing is projected.",
            evidence={"gpus": cell.gpus} | ({} if then is None else {"next_gpus": then.gpus}),
            fix=fix,
        )
    ]


def of_ranges(rows: Sequence[ProjectedRow], then: NextCell | None) -> list[Finding]:
    """Why some rows are ranges, and what would turn them into projections."""
    ranges = [row for row in rows if row.is_range]
    if not ranges:
        return []
    message = (
        "Of some numbers of GPUs there is a range only, since what was measured tells too little about them. "
        f"The first is {ranges[0].gpus}: {ranges[0].because}."
    )
    if ranges[0].is_in_vain:
        fix = "See what takes the time, and mend that first: `samestep scale` tells."
        return [
            Finding(cause="far-from-measured", message=message, evidence={"gpus": ranges[0].gpus}, fix=fix)
        ]
    if then is None:
        return []
    return [
        Finding(
            cause="far-from-measured",
            message=message,
            evidence={
                "gpus": ranges[0].gpus,
                "next_gpus": then.gpus,
                "next_nodes": then.nodes,
                "narrows_to": then.narrows,
            },
            fix=f"{_measure(then)}: {then.why}.",
        )
    ]


def _measure(cell: NextCell) -> str:
    nodes = f" on {cell.nodes} nodes" if cell.nodes > 1 else ""
    batch = f" with {told_examples(cell.batch_per_gpu)} each" if cell.is_batch_known else ""
    about = "" if cell.takes_s is None else f", about {told(max(cell.takes_s, 1.0))} and the start"
    return f"Measure {told_gpus(cell.gpus)}{nodes}{batch} ({NUM_STEPS} steps{about})"


def of_idle(worlds: Sequence[int], batch_size: float) -> list[Finding]:
    """That there are more GPUs than examples of a step."""
    if not worlds:
        return []
    return [
        Finding(
            cause="batch-too-small",
            message=f"A batch of {batch_size:,.0f} gives {told_gpus(worlds[0])} less than one example each a "
            "step: they are left out.",
            evidence={"batch_size": batch_size, "gpus": list(worlds)},
            fix="let the batch grow with the GPUs, or ask about fewer",
        )
    ]


def of_node(node: Node, worlds: Sequence[int]) -> list[str]:
    """What a node was taken to have, where nobody said it and it matters."""
    if node.is_told or node.num_for(max(worlds)) == 1:
        return []
    return [f"A node is taken to have {node.gpus} GPUs, as is usual: say how many with --gpus-per-node."]


def of_run(
    context: Context, way: Way, needed: Mapping[int, ExamplesNeeded], *, is_batch_known: bool
) -> list[str]:
    """What is counted for a run beside its steps: start-up, and what a batch costs that grows."""
    said = []
    if context.marks:
        said.append(
            f"The sweep marked its comparison: {', '.join(context.marks)}. Its page says what that means."
        )
    if not context.has_start:
        said.append("How long a job takes to start is not known: it counts as nothing.")
    elif (start_s := max(context.overheads.start_s.values())) > 0:
        said.append(f"Starting takes {told(start_s)}, as it did on the GPUs that were measured.")
    if not is_batch_known:
        said.append(
            "No batch is known: each GPU is taken to have as many examples as on the fewest. That is other "
            "training, and what it costs in examples is not counted. Add batch_per_gpu or batch_size."
        )
        return said
    if way == "grows":
        said.append("The batch grows with the GPUs: that is other training than on the fewest of them.")
    if not all(each.is_known for each in needed.values()):
        said.append(
            "The gradient noise scale is not known: a batch that grows with the GPUs is counted as if it "
            "needed no more examples, which is the best case."
        )
    if way == "grows" and needed and (most := needed[max(needed)]).is_known and most.factor > 1.005:
        said.append(
            f"A batch that grows needs more examples by the gradient noise scale, and training counts them: "
            f"{most.factor:.2f} times as many on {told_gpus(max(needed))}."
        )
    return said
