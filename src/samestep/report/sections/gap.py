"""Where the speed of a step goes: for each number of GPUs, bars from ideal to measured time."""

from collections.abc import Iterator, Mapping
from typing import Any

from samestep.report.figures import Unit, gpus
from samestep.report.material import Material
from samestep.report.section import Section
from samestep.report.sweep import BarsRow, GapRow
from samestep.report.waterfall import waterfall

MOST_GAPS = 24


def _values(material: Material) -> Mapping[str, Any] | None:
    gaps = material.sweep.gaps if material.sweep is not None else ()
    return drawn([(gap, gap) for gap in gaps], name="step")


def drawn(gaps: list[tuple[GapRow, BarsRow]], *, name: str) -> Mapping[str, Any] | None:
    """Pictures and tables of the bars of some gaps, of a step or of an epoch; None of no gaps."""
    if not gaps:
        return None
    parts = [part for _, bars in gaps for part in bars.parts]
    return {
        "name": name,
        "pictures": [
            (
                f"{gpus(gap.gpus)}, batch {gap.batch_size}",
                waterfall(bars, ideal=f"ideal {name}", measured=f"measured {name}"),
                list(_table(bars)),
            )
            for gap, bars in gaps[:MOST_GAPS]
        ],
        "num_hidden": max(0, len(gaps) - MOST_GAPS),
        "has_lost": any(part.low > 0 for part in parts),
        "has_won": any(part.high < 0 for part in parts),
        "has_noise": any(part.is_noise for part in parts),
    }


def _table(bars: BarsRow) -> Iterator[tuple[str, str, str, str]]:
    """Rows of name, time, interval and share of what was measured."""
    unit = Unit.of(max(abs(bars.measured_s), abs(bars.ideal_s)), digits=4)
    yield "ideal", unit.told(bars.ideal_s), "", _share(bars.ideal_s, bars)
    for part in bars.parts:
        noise = ", noise" if part.is_noise else ""
        around = f"{unit.range(part.low, part.high)}{noise}"
        yield part.name, unit.signed(part.seconds), around, _share(part.seconds, bars)
    yield "measured", unit.told(bars.measured_s), "", _share(bars.measured_s, bars)


def _share(seconds: float, bars: BarsRow) -> str:
    return f"{seconds / bars.measured_s:.0%}".replace("-", "−") if bars.measured_s > 0 else ""


SECTION = Section(name="gap", title="Where a step’s time goes", short="Step", values=_values)
