"""Advice for a terminal: the answer in words, the table it follows from, what would change it.

It judges nothing. A table that does not fit the width loses columns, which are in --json; measured and
projected rows are marked as what they are.
"""

import math
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from samestep.advise.advice import Advice
from samestep.advise.hardware import OnCluster
from samestep.advise.offers import Offer
from samestep.advise.words import amount_between, percent, percent_between, told, told_between
from samestep.report.figures import Unit, seconds
from samestep.report.wording import visible

Column = tuple[str, list[str]]
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
)
"""Of columns, where there is no room for all; the others are what a recommendation rests on."""
_FIRST_TO_GO_SIMULATED = ("exchange not hidden", "compute", "nodes", "speedup")
_WAYS = {"same": "the same batch", "grows": "a batch that grows with the GPUs"}


def show_advice(console: Console, advice: Advice, simulated: OnCluster | None = None) -> None:
    """The whole answer for people."""
    console.print(Text(visible(advice.reason), style="bold"))
    console.print()
    batch = f", {advice.offers[0].batch_size:,.0f}" if advice.way == "same" else ""
    console.print(Text(f"With {_WAYS[advice.way]}{batch}:", style="dim"))
    shown = _fitting(console, _columns(advice))
    _show_table(console, shown, marked=_marked(advice))
    console.print(Text(_legend(advice, {name for name, _ in shown}), style="dim"))
    if advice.what_ifs:
        console.print()
        console.print(Text("What would move it", style="bold"))
        for each in advice.what_ifs:
            _indented(console, Text.assemble((f"{each.name}: ", "bold"), each.message))
    if simulated is not None:
        console.print()
        _show_cluster(console, simulated)
    for finding in advice.findings:
        console.print()
        console.print(Text(f"finding {finding.cause}: ", style="yellow") + Text(visible(finding.message)))
        if finding.fix:
            _indented(console, Text(f"fix: {visible(finding.fix)}"))
    if advice.remarks:
        console.print()
    for remark in advice.remarks:
        console.print(Text.assemble(("note: ", "yellow"), visible(remark)))


def _marked(advice: Advice) -> int:
    return next(i for i, offer in enumerate(advice.offers) if offer.gpus == advice.recommended_gpus)


def _columns(advice: Advice) -> list[Column]:
    offers, price = advice.offers, advice.price
    front = advice.front
    grown = {offer.gpus: offer for offer in advice.of_way("grows")}
    found: list[Column] = [
        ("GPUs", [f"{offer.gpus:,}" for offer in offers]),
        ("", ["range" if offer.is_range else offer.kind for offer in offers]),
        ("step", [step_told(offer.step_s, offer.low_s, offer.high_s) for offer in offers]),
        ("speedup", [_speedup(offer) for offer in offers]),
        ("efficiency", [_efficiency(offer) for offer in offers]),
        ("training", [_training(offer) for offer in offers]),
        ("wait", [_wait(offer) for offer in offers]),
        ("start", [told(offer.start_s) for offer in offers]),
        ("result", [told(offer.result_s) for offer in offers]),
        ("90 %", [told(offer.result_high_s) for offer in offers]),
        ("GPU-hours", [_hours(offer, offer.gpus in front) for offer in offers]),
    ]
    if price is not None:
        found.append(("price", [_price(offer, price.gpu_hour) for offer in offers]))
    if advice.way == "same":
        found.append(("growing batch", [_grown(advice, grown[offer.gpus]) for offer in offers]))
    else:
        found.append(("same batch", [_same(advice, offer.gpus) for offer in offers]))
    empty = {
        "wait": all(offer.wait.high_s == 0 for offer in offers),
        "start": all(offer.start_s == 0 for offer in offers),
    }
    empty["step"] = not advice.is_step_known
    return [column for column in found if not empty.get(column[0], False)]


def step_told(step_s: float, low_s: float, high_s: float) -> str:
    """A step with its interval, to three digits."""
    unit = Unit.of(step_s)
    around = unit.range(low_s, high_s)
    return unit.told(step_s) + (f" ({around})" if unit.number(low_s) != unit.number(high_s) else "")


def _training(offer: Offer) -> str:
    return told_between(offer.train_s, offer.train_low_s, offer.train_high_s)


def _speedup(offer: Offer) -> str:
    low, high = f"{offer.speedup_low:.2f}", f"{offer.speedup_high:.2f}"
    return f"{offer.speedup:.2f}" + (f" ({low}–{high})" if low != high else "")


def _efficiency(offer: Offer) -> str:
    return percent_between(offer.efficiency, offer.efficiency_low, offer.efficiency_high)


def _wait(offer: Offer) -> str:
    expected, high = told(offer.wait.expected_s), told(offer.wait.high_s)
    return expected if expected == high else f"{expected} (to {high})"


def _hours(offer: Offer, is_on_front: bool) -> str:
    hours = amount_between(offer.gpu_hours, offer.gpu_hours_low, offer.gpu_hours_high)
    return f"{hours}{' *' if is_on_front else '  '}"


def _price(offer: Offer, gpu_hour: float) -> str:
    hours = (offer.gpu_hours, offer.gpu_hours_low, offer.gpu_hours_high)
    return amount_between(*(gpu_hour * each for each in hours))


def _grown(advice: Advice, offer: Offer) -> str:
    is_known = advice.needed[offer.gpus].is_known
    needs = f", ×{offer.examples_factor:.2f}" if is_known else " at best"
    return f"{offer.batch_size:,.0f}: {told(offer.result_s)}{needs}"


def _same(advice: Advice, gpus: int) -> str:
    """Empty where the batch has fewer examples than there are GPUs."""
    offer = next((each for each in advice.of_way("same") if each.gpus == gpus), None)
    if offer is None:
        return ""
    return f"{offer.batch_size:,.0f}: {told(offer.result_s)}{' (range)' if offer.is_range else ''}"


def _legend(advice: Advice, shown: set[str]) -> str:
    said = ["→ to ask for", "result: wait, start and training as expected"]
    if "90 %" in shown:
        said.append("90 %: not exceeded nine times out of ten")
    if "GPU-hours" in shown:
        said.append("* no other is both sooner and cheaper")
    if any(offer.is_range for offer in advice.offers):
        said.append("range: too far from what was measured to be asked for")
    if "growing batch" in shown:
        said.append("growing batch: its size, its result, how many times the examples it needs")
    if "same batch" in shown:
        said.append("same batch: its size and its result, the same training on all of them")
    if shown != {name for name, _ in _columns(advice)}:
        said.append("all columns: --json")
    return "; ".join(said)


def _fitting(
    console: Console, columns: Sequence[Column], first_to_go: Sequence[str] = _FIRST_TO_GO
) -> list[Column]:
    """The columns for which there is room."""
    width = math.inf if console.soft_wrap else console.width
    shown = list(columns)
    for name in first_to_go:
        if _width(shown) <= width:
            break
        shown = [column for column in shown if column[0] != name]
    return shown


def _show_table(console: Console, shown: Sequence[Column], marked: int | None = None) -> None:
    arrow = ">" if console.options.ascii_only else "→"
    widths = [max(len(head), *map(len, values)) for head, values in shown]
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


def _width(columns: Sequence[Column]) -> int:
    return sum(max(len(head), *map(len, values)) + 2 for head, values in columns)


def _show_cluster(console: Console, simulated: OnCluster) -> None:
    name = visible(simulated.cluster.name)
    console.print(Text(f"On {name}, simulated, at best and at worst", style="bold"))
    rows = simulated.rows
    columns: list[Column] = [
        ("GPUs", [f"{row.gpus:,}" for row in rows]),
        ("nodes", [f"{row.num_nodes:,}" for row in rows]),
        ("step", [best_to_worst(seconds, *each) for each in _steps(simulated)]),
        ("speedup", [best_to_worst("{:.2f}".format, *each) for each in _speedups(simulated)]),
        ("training", [best_to_worst(told, *each) for each in _trainings(simulated)]),
        *(
            (name, [percent(row.parts[name] / row.step_s) for row in rows])
            for name in ("compute", "exchange not hidden")
        ),
    ]
    _show_table(console, _fitting(console, columns, _FIRST_TO_GO_SIMULATED))
    for remark in simulated.remarks:
        console.print(Text.assemble(("note: ", "yellow"), visible(remark)))


def _steps(simulated: OnCluster) -> Iterator[tuple[float, float]]:
    return ((row.step_s, worst.step_s) for row, worst in zip(simulated.rows, simulated.worst, strict=True))


def _speedups(simulated: OnCluster) -> Iterator[tuple[float, float]]:
    return zip(simulated.speedups, simulated.speedup_lows, strict=True)


def _trainings(simulated: OnCluster) -> Iterator[tuple[float, float]]:
    return zip(simulated.train_s, simulated.train_high_s, strict=True)


def best_to_worst(tell: Callable[[float], str], best: float, worst: float) -> str:
    """Both ends, or one figure where they read alike."""
    return tell(best) if tell(best) == tell(worst) else f"{tell(best)} – {tell(worst)}"


def _indented(console: Console, text: Text) -> None:
    if console.soft_wrap:  # no terminal, and so no width to keep to
        console.print(Text("   ") + text)
    else:
        console.print(Padding(text, (0, 0, 0, 3), expand=False))
