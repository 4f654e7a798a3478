"""`python -m benchmarks.advise TABLE [--json FILE]`: how far off projections are, how often intervals hold.

Every series of public tables is cut after two, three, … world sizes, and each larger one is asked for. Ours
and every single law see the same cells. What ours learns, it learns from all sources but the one that it is
judged on.

What was chosen by hand was chosen with these tables in view: which laws count in which situation (34 sets
of laws, means and medians; between nodes, and from one node to several, all sets of up to five of eleven
laws), that out of one node those of 8 GPUs or more and smaller ones have laws of their own, the form of
growth (linear in doublings or a power, 7 ways of meaning over earlier cells), the record's weight and floor
and the little that other laws count for (18), laws moved to pass through the last cell (4), the form of the
experience (3), weights that are learnt (10), what the width of an interval is foreseen from and how sources
count in it (23), what is different far from all cells (11). How far intervals reach where a host may fill up
was set by the series of MinkowskiEngine, so those are held. The figures of `ours` are thus of a choice that
has seen the series:

- `chosen anew` has the laws chosen for each source by the others alone, of all 255 sets of eight laws: 7.5%
  / 40% over all forecasts, where the fixed choice gives 6.8% / 38%; 11% / 33% rather than 10% / 30% from
  one node to several large ones; 1.4% / 8% rather than 1.6% / 8% between those. Where one cell of several
  nodes is known it gives 4.9% / 40% rather than 3.8% / 20%: what large nodes choose is wrong for small ones.
- Small nodes are one source (Pollux, 4 GPUs a node), with slow links between them: from one node to several
  nobody else can choose, and ours stands. If all nodes were taken alike, the others would choose laws that
  are too fast for it: 58% / 188% from one node to several, and one choice for all of them gave 25% / 101%.
  That nodes differ by their size is by meaning: large ones are bought with links to match, and all five
  sources that have them agree. Small ones of a machine with fast links would be foreseen as too slow, with
  a wide range.
- Series that their sources call suspect had no part in this: 22% / 88% with 71% held.
- What growth needs is learnt without the source that is asked, and is nearly the same whichever is left out
  (0.28 to 0.32 and 0.17 to 0.18 for nodes): alone it has 8% / 29% between nodes where the best other law has
  11% / 41%. Where nodes were measured it made laws of their own for small ones needless.
- That more GPUs with no more examples each never do more for each GPU than the largest world is by meaning:
  without it 90 of 100 would be within 18% rather than 20% where one cell of several nodes is known. All of
  that is one source, in which two nodes are slower than three.
- How usual fixed parts of a step are was set for what is asked with a larger batch than any cell had, where
  cells say nothing. For a fixed global batch it costs 0.2% of the median.
- Only one source takes fewer turns, so nothing could be chosen there: that laws which know nothing of turns
  do not count is by meaning. Without the column of turns it was 2.5% / 11% rather than 1.6% / 7%.
- For a fixed global batch there are 59 series, too few to choose by: of 162 sets of laws, those without
  Amdahl's had 1.9% / 11.8% to 2.2% / 10.2% here, and universal scalability with no other 2.5% / 10.0%. They
  were not taken, since they see a trend in noise: on 1,200 made-up jobs (seven forms, noise up to 5%) their
  intervals of 80% held 54% to 71%, and universal scalability with no other is off by 71% for nine of ten at
  four times the largest world. It and Pollux' law beside Amdahl's have 2.2% / 13.0% here (without them 2.4% /
  13.7%), and 19% rather than 21% for nine of ten of those jobs at twice the largest world, about 50% rather
  than 56% at four times. As intervals also hold what each of these laws says, 83% and 82% are held there
  (without that 75% and 61%; with Amdahl's and the experience alone 80% and 72%).
- Laws that count by how well they describe the very cells they were fitted to (a normal miss of 1% to 5%) had
  1.9% / 11% there, but 7.9% / 52% over all forecasts, and 16% rather than 14% for nine of ten of 700 made-up
  jobs, from three cells at twice the largest world. So a fit is no reason to be believed.
- 7 of the 59 are off by more than 10%: 5 of MinkowskiEngine, whose hosts fill up, and 2 of a DGX-1 that gain
  or lose more than 10% from 4 GPUs to 8. These are more than a tenth; no single law is below 13% for nine of
  ten.
- Learnt weights gave 8.7% to 9.6% / 88% to 98%, so none are learnt.
- The record on a job's own cells changes hardly a figure here (between nodes 7.4% / 28%, without it 7.3% /
  28%); sharper ones do worse (12 tried). It is there for jobs unlike these, and so is that a law which never
  missed by 1% counts for most: it concerns 10 of all forecasts.
- Tables that say no nodes are not among these: what is asked of them is known by the machine's name.
- Ratios taken from sources that had no part in the widths, sources that weigh alike, and ratios of their own
  for questions that are far or between nodes, made coverage no more even. That ranges hold the answers of
  all laws that count did: beyond 4 times the largest world they had held 74% up to 8 times and 66% beyond.
  From one node to several it changes nothing.

The table's own page says what plain laws reach by the same protocol, on a larger collection: the largest
world of each series, from those before it. `mean of four` is its best law, with the ring of bandwidth alone,
which comes nearest to the page's figures: they are alike where there are many series, and others where there
are few. So it is the same law on these series that is like with like; `published` stands beside it. Pollux'
law gives 5.2% / 16% for a fixed global batch if it counts turns, as the page writes it.

The last table chooses anew what `samestep advise --cluster` takes links to reach at worst (`simulate`).

An error is that of the throughput, |projected / measured − 1|; that of the step's time is told where it
matters which.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks import simulate
from samestep.advise import laws
from samestep.advise.calibrate import calibrated, competition, usable
from samestep.advise.cells import Cell
from samestep.advise.competition import EXPERIENCE, FEWEST, GROWTH, LARGE_NODE, NAMES
from samestep.advise.ranges import why_far, why_in_vain
from samestep.advise.series import Series, read_tables

OURS = "ours"
LEVEL = 0.8
COVERAGE = (0.76, 0.84)
SINGLE = tuple(name for name in NAMES if name not in (EXPERIENCE, GROWTH))
FOUR = "mean of four"
OF_FOUR = tuple(law.name for law in (laws.BANDWIDTH, laws.LOGARITHMIC, laws.AMDAHL, laws.LAST_EFFICIENCY))
"""The plain combination that the table's own page recommends: the geometric mean, nothing learnt."""
SHOWN = (*SINGLE, EXPERIENCE, GROWTH, FOUR, OURS)
ANEW = "chosen anew"
TRIED = (EXPERIENCE, GROWTH, *OF_FOUR, laws.HIERARCHICAL.name, laws.UNIVERSAL.name)
"""Laws of which every set is tried where they are chosen anew."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """One world size of one series, asked for with the first `given` cells."""

    series: Series
    given: int
    asked: int
    """Its index in the series."""
    log_errors: dict[str, float]
    """Of the step's time, by law."""
    is_held: bool
    log_width: float

    @property
    def is_weak(self) -> bool:
        return not self.series.is_strong

    @property
    def is_last(self) -> bool:
        return self.asked == len(self.series.step_s) - 1

    @property
    def num_single(self) -> int:
        """Cells of one node among those given."""
        return int(np.sum(self.series.places.nodes[: self.given] == 1))

    @property
    def num_several(self) -> int:
        """Cells of several nodes among those given."""
        return self.given - self.num_single

    @property
    def has_nodes(self) -> bool:
        return bool(self.series.places.nodes[self.asked] > 1)

    @property
    def is_crossing(self) -> bool:
        return self.has_nodes and self.num_several == 0

    @property
    def is_node_known(self) -> bool:
        """Whether two cells or more, and all of one node that there are, were given."""
        return self.num_single >= 2 and bool((self.series.places.nodes[self.given :] > 1).all())

    @property
    def is_by_turns(self) -> bool:
        """Whether a global batch that stays is shared by taking fewer turns, each as large as before."""
        return self.series.is_strong and self.series.places[: self.asked + 1].is_at_once_fixed

    @property
    def situation(self) -> str:
        """Where the question lies: what decides which laws count."""
        if self.series.is_strong:
            return f"global batch fixed: {'fewer turns' if self.is_by_turns else 'smaller shares'}"
        if not self.has_nodes:
            return "within a node"
        where = "from one node to several" if self.is_crossing else "between nodes, some measured"
        return f"{where}: {'large' if self.series.places.gpus_per_node.max() >= LARGE_NODE else 'small'}"

    @property
    def is_range(self) -> bool:
        """Whether advice would give a range only."""
        places = self.series.places
        columns = zip(
            places.gpus, places.nodes, places.batch_per_gpu, places.turns, self.series.step_s, strict=True
        )
        cells = [
            Cell(gpus=int(n), nodes=int(k), batch_per_gpu=float(m), accumulate=int(turns), step_s=float(s))
            for n, k, m, turns, s in list(columns)[: self.given]
        ]
        asked = places[[self.asked]]
        return bool(why_far(cells, asked) or why_in_vain(cells, asked))

    @property
    def times_farther(self) -> float:
        return float(self.series.places.gpus[self.asked] / self.series.places.gpus[self.given - 1])


Choice = Callable[[Forecast], bool]


def _largest(given: int, of: Choice = lambda f: True) -> Choice:
    return lambda f: f.is_weak and f.is_last and f.given == given and of(f)


def _strong(of: Choice = lambda f: True) -> Choice:
    return lambda f: not f.is_weak and f.is_last and f.given == f.asked and of(f)


@dataclass(frozen=True)
class Case:
    """What is asked from what; what a plain law reaches there, as the table's own page has it, and which.

    The page's figures are of a larger collection that these series are part of. What the same law reaches on
    these series is beside them: that is like with like.
    """

    choice: Choice
    published: str = ""
    law: str = FOUR


ONE_OF_SEVERAL = "all of one node and 1 of several → largest"
CASES: dict[str, Case] = {
    "batch per GPU fixed: first 2 → largest": Case(_largest(2), "6.4% / 35%"),
    "first 3 → largest": Case(_largest(3), "5.0% / 31%"),
    "first 3 → largest, same tier": Case(_largest(3, lambda f: not f.is_crossing), "3.8% / 21%"),
    "first 3 → largest, one node → several": Case(_largest(3, lambda f: f.is_crossing), "15% / 83%"),
    "first 3 → largest, up to 2 times": Case(_largest(3, lambda f: f.times_farther <= 2), "3.1% / 18%"),
    "first 3 → largest, 2 to 4 times": Case(_largest(3, lambda f: 2 < f.times_farther <= 4), "6.3% / 28%"),
    "first 3 → largest, 4 to 8 times": Case(_largest(3, lambda f: 4 < f.times_farther <= 8), "13% / 41%"),
    "first 3 → largest, beyond 8 times": Case(_largest(3, lambda f: f.times_farther > 8), "30% / 146%"),
    "all of one node → largest of several": Case(
        lambda f: f.is_weak and f.is_last and f.is_crossing and f.is_node_known, "10.7% / 84%"
    ),
    "… if another of several was measured": Case(
        lambda f: f.is_weak and f.is_last and f.is_crossing and f.is_node_known and f.asked > f.given
    ),
    ONE_OF_SEVERAL: Case(
        lambda f: f.is_weak and f.is_last and f.num_several == 1 and f.num_single >= 2, "4.9% / 19%"
    ),
    "some of several nodes → largest": Case(
        lambda f: f.is_weak and f.is_last and f.has_nodes and not f.is_crossing
    ),
    "all but the largest": Case(lambda f: f.is_weak and f.is_last and f.given == f.asked),
    "global batch fixed: all but the largest": Case(_strong(), "2.8% / 10%", laws.POLLUX.name),
    "the same, by Amdahl": Case(_strong(), "2.8% / 12%", laws.AMDAHL.name),
    "… fewer turns, as large": Case(_strong(lambda f: f.is_by_turns), law=laws.AMDAHL.name),
    "… smaller shares": Case(_strong(lambda f: not f.is_by_turns), law=laws.AMDAHL.name),
    "global batch fixed, but MinkowskiEngine": Case(
        _strong(lambda f: f.series.source != "MinkowskiEngine"), law=laws.AMDAHL.name
    ),
}
DISTANCES: dict[str, Choice] = {
    "up to 2 times": lambda f: f.times_farther <= 2,
    "2 to 4 times": lambda f: 2 < f.times_farther <= 4,
    "4 to 8 times": lambda f: 4 < f.times_farther <= 8,
    "beyond 8 times": lambda f: f.times_farther > 8,
    "from one node to several": lambda f: f.is_crossing,
    "given as a range": lambda f: f.is_range,
    "given as a projection": lambda f: not f.is_range,
}


def forecasts(series: Sequence[Series]) -> list[Forecast]:
    """Every forecast there is, each source judged by what the usable series of the others taught."""
    taught = {each.name for each in usable(series)}
    competitions = list(map(competition, series))
    found = []
    for source in sorted({each.source for each in series}):
        others = [index for index, each in enumerate(series) if each.source != source and each.name in taught]
        calibration = calibrated([series[i] for i in others], [competitions[i] for i in others])
        for each, entered in zip(series, competitions, strict=True):
            if each.source != source:
                continue
            for given in range(FEWEST, len(each.step_s)):
                outlook = entered.outlook(calibration.learnt, given)
                low, high = calibration.interval(outlook, LEVEL)
                truth = np.log(each.step_s[given:])
                by_law = dict(zip(NAMES, outlook.by_law, strict=True))
                by_law |= {FOUR: np.mean([by_law[name] for name in OF_FOUR], axis=0), OURS: outlook.log_s}
                found += [
                    Forecast(
                        series=each,
                        given=given,
                        asked=given + index,
                        log_errors={
                            name: float(log_s[index] - truth[index]) for name, log_s in by_law.items()
                        },
                        is_held=bool(low[index] <= truth[index] <= high[index]),
                        log_width=float(high[index] - low[index]),
                    )
                    for index in range(len(truth))
                ]
    return found


def with_laws_chosen_anew(rows: Sequence[Forecast]) -> list[Forecast]:
    """The same, with the error of laws that the other sources choose in each situation; these count alike.

    Of all sets of `TRIED` it is the one of the least mean error, where a source counts by the root of its
    series. Where no other source was in a situation, nothing is chosen, and ours stands.
    """
    sets = [list(each) for size in range(1, len(TRIED) + 1) for each in combinations(range(len(TRIED)), size)]
    by_law = np.array([[row.log_errors[name] for name in TRIED] for row in rows])
    by_set = np.stack([by_law[:, chosen].mean(axis=1) for chosen in sets])
    sources = np.array([row.series.source for row in rows])
    situations = np.array([row.situation for row in rows])
    names = np.array([row.series.name for row in rows])
    anew = np.array([row.log_errors[OURS] for row in rows])
    for situation in {*situations}:
        is_here = situations == situation
        # a row for each source: the mean error of every set of laws, by the root of the source's series
        costs = {
            str(source): np.sqrt(len({*names[is_here & (sources == source)]}))
            * np.abs(by_set[:, is_here & (sources == source)]).mean(axis=1)
            for source in {*sources[is_here]}
        }
        for source in costs if len(costs) > 1 else ():
            best = int(np.argmin(np.sum([cost for other, cost in costs.items() if other != source], axis=0)))
            asked = is_here & (sources == source)
            anew[asked] = by_set[best, asked]
    return [
        replace(row, log_errors=row.log_errors | {ANEW: float(error)})
        for row, error in zip(rows, anew, strict=True)
    ]


def errors(rows: Sequence[Forecast], name: str, *, of_time: bool = False) -> tuple[float, float]:
    """Median and 90th percentile."""
    logs = np.array([row.log_errors[name] for row in rows])
    sizes = np.abs(np.expm1(logs if of_time else -logs))
    return float(np.median(sizes)), float(np.quantile(sizes, 0.9))


def coverage(rows: Sequence[Forecast], *, by_series: bool = False) -> float:
    """How often the interval held; every forecast alike, or every series."""
    held = np.array([row.is_held for row in rows], dtype=float)
    weights: NDArray[np.float64] = np.ones(len(rows))
    if by_series:
        names, counts = np.unique([row.series.name for row in rows], return_counts=True)
        count = dict(zip(names, counts, strict=True))
        weights = np.array([1 / count[row.series.name] for row in rows])
    return float(np.average(held, weights=weights))


def verdicts(rows: Sequence[Forecast]) -> dict[str, bool]:
    """What must hold, and whether it does."""
    found = {}
    for what, of_time in (("throughput", False), ("time", True)):
        ours = errors(rows, OURS, of_time=of_time)
        singles = [errors(rows, name, of_time=of_time) for name in SINGLE]
        found[f"median error of {what} below every single law's"] = ours[0] < min(e[0] for e in singles)
        found[f"90th percentile of {what} below every single law's"] = ours[1] < min(e[1] for e in singles)
    for what, by_series in (("of all forecasts", False), ("of all series", True)):
        held = coverage(rows, by_series=by_series)
        found[f"intervals of {LEVEL:.0%} hold {COVERAGE[0]:.0%} to {COVERAGE[1]:.0%} {what}"] = (
            COVERAGE[0] <= held <= COVERAGE[1]
        )
    return found


def table(title: str, groups: dict[str, list[Forecast]], names: Sequence[str] = SHOWN) -> Table:
    """Errors by law, and coverage, of each group."""
    result = Table("", title=title, title_justify="left")
    for name in ("forecasts", *names, "held", "width"):
        result.add_column(name, justify="right")
    for what, rows in groups.items():
        if rows:
            cells = [_text(rows, name) for name in names]
            width = float(np.exp(np.median([row.log_width for row in rows])))
            result.add_row(what, str(len(rows)), *cells, f"{coverage(rows):.0%}", f"×{width:.2f}")
    return result


def beside_published(groups: dict[str, list[Forecast]]) -> Table:
    """What the table's own page says, the same law on these series, and ours."""
    result = Table("", title="beside the table's own page", title_justify="left")
    for name in ("published", "law", "the same law here", OURS, "series"):
        result.add_column(name, justify="right")
    for what, rows in groups.items():
        if rows:
            case = CASES[what]
            texts = [_text(rows, name) for name in (case.law, OURS)]
            result.add_row(what, case.published, case.law, *texts, str(len(rows)))
    return result


def _text(rows: Sequence[Forecast], name: str) -> str:
    median, most = errors(rows, name)
    return f"{median:.1%} / {most:.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.advise", description="How good projections are."
    )
    parser.add_argument("table", type=Path, help="a CSV of scaling series")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    arguments = parser.parse_args()
    series = read_tables(arguments.table)
    found = forecasts(series)
    rows, suspect = ([row for row in found if row.series.is_suspect == choice] for choice in (False, True))
    rows = with_laws_chosen_anew(rows)
    sources = sorted({row.series.source for row in rows})
    console = Console(width=280)
    console.print(
        f"{len(usable(series))} series, {len(rows)} forecasts; errors of throughput: median / 90th percentile"
    )
    by_case = {name: [row for row in rows if case.choice(row)] for name, case in CASES.items()}
    situations = sorted({row.situation for row in rows})
    by_situation = {name: [row for row in rows if row.situation == name] for name in situations}
    by_source = {name: [row for row in rows if row.series.source == name] for name in sources}
    by_distance = {name: [row for row in rows if choice(row)] for name, choice in DISTANCES.items()}
    console.print(table("by what was measured", by_case))
    console.print(beside_published(by_case))
    console.print(table("by distance from the largest world measured", {"all": rows} | by_distance))
    console.print(table("by source", by_source))
    chosen = {"all": rows} | by_situation | {ONE_OF_SEVERAL: by_case[ONE_OF_SEVERAL]}
    console.print(table("laws chosen for each source by the others alone", chosen, (FOUR, OURS, ANEW)))
    console.print(table("suspect to their sources", {"all": suspect}))
    times = ", ".join(
        f"{name} {errors(rows, name, of_time=True)[0]:.1%} / {errors(rows, name, of_time=True)[1]:.0%}"
        for name in SHOWN
    )
    console.print(f"errors of the step's time, all: {times}")
    console.print(
        f"held: {coverage(rows):.1%} of forecasts, "
        f"{coverage(rows, by_series=True):.1%} if every series counts the same"
    )
    if held := simulate.held_by_part(arguments.table):
        console.print(simulate.choice(held))
    said = verdicts(rows)
    for what, is_met in said.items():
        console.print(f"{'yes' if is_met else 'NO '}  {what}")
    if arguments.json is not None:
        figures = {
            "series": len(usable(series)),
            "forecasts": len(rows),
            "errors": {name: errors(rows, name) for name in (*SHOWN, ANEW)},
            "cases": {
                what: {name: errors(cases, name) for name in (*SHOWN, ANEW)} | {"coverage": coverage(cases)}
                for what, cases in by_case.items()
                if cases
            },
            "time_errors": {name: errors(rows, name, of_time=True) for name in SHOWN},
            "coverage": coverage(rows),
            "suspect": {name: errors(suspect, name) for name in SHOWN} if suspect else {},
            "suspect_coverage": coverage(suspect) if suspect else None,
            "coverage_by_series": coverage(rows, by_series=True),
            "verdicts": said,
        }
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
