"""Fairness: what makes the comparison of a cell with one GPU worth less (a mark), or nothing (a refusal).

Each rule looks at the runs of both and says what differs, with values and what to do. Equal is: kinds of
device and their clocks, threads of a rank, examples of a step, precision. Still is: nobody else at work,
steps that have settled, enough of them, enough rounds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from samestep.errors import listed
from samestep.scale.cells import CellResult, Mark
from samestep.scale.estimates import Estimates
from samestep.scale.looks import TWICE, Look, times_in_a_step
from samestep.scale.runs import Facts, Finished
from samestep.scale.variants import Comparison

EXAMPLES_APART = 0.02
"""Part by which examples of a step may differ: batches are not always divisible by the number of ranks."""
NOISY = 0.10
FEWEST_STEPS = 8
"""After warm-up: fewer than two for each of the four batches that its end is found by."""
BUSY_CORES = 0.25
BUSY_SHARE = 0.05
"""Others are busy from so many cores on, or from that part of all cores."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The runs of a cell and of the one GPU that it is compared with, and what the cell measured."""

    comparison: Comparison
    result: CellResult
    runs: Sequence[Finished]
    """As the program is, of both cells."""
    all_runs: Sequence[Finished]
    """Of all variants that the gap is made of, too."""
    failed: Sequence[Finished] = ()
    """Of the same variants, those that have no times."""
    look: Look | None = None
    """What was seen of the program on so many GPUs before it was timed."""
    look_at_one: Look | None = None
    """The same on one."""

    @property
    def facts(self) -> Iterator[tuple[Finished, Facts]]:
        return ((run, run.facts) for run in self.runs if run.facts is not None)

    def mark(self, mark: str, reason: str, *, is_refusal: bool = False) -> Mark:
        cell = self.comparison.cell
        return Mark(
            mark=mark, reason=reason, gpus=cell.gpus, batch_size=cell.batch_size, is_refusal=is_refusal
        )


Rule = Callable[[Compared], Iterator[Mark]]


def marks(
    comparison: Comparison,
    estimates: Estimates,
    result: CellResult,
    *,
    has_norms: bool,
    looks: Mapping[int, Look],
) -> list[Mark]:
    """All that is to be said of a cell's comparison; refusals first. `looks` are by number of ranks."""
    roles = comparison.roles(has_norms=has_norms)
    plain, variants = dict.fromkeys((roles["full"], roles["one"])), dict.fromkeys(roles.values())
    compared = Compared(
        comparison=comparison,
        result=result,
        runs=[run for variant in plain for run in estimates.measured(variant)],
        all_runs=[run for variant in variants for run in estimates.measured(variant)],
        # what was never started has no folder: why is told elsewhere
        failed=[
            run
            for variant in variants
            for run in estimates.runs.get(variant, [])
            if run.folder and not run.is_measured
        ],
        look=looks.get(comparison.cell.gpus),
        look_at_one=looks.get(1),
    )
    found = [mark for rule in RULES for mark in rule(compared)]
    return sorted(found, key=lambda mark: not mark.is_refusal)


def other_device(compared: Compared) -> Iterator[Mark]:
    """Devices of other models, among ranks or between runs."""
    models = sorted({device for _, facts in compared.facts for device in facts.devices})
    if len(models) > 1:
        yield compared.mark(
            "other-device",
            f"The runs were on devices of {len(models)} kinds ({listed(models)}), so their times say "
            "nothing of the number of GPUs; use one kind for all (CUDA_VISIBLE_DEVICES).",
            is_refusal=True,
        )


def other_clock_limit(compared: Compared) -> Iterator[Mark]:
    """Devices that may run at another clock."""
    limits = sorted({mhz for run in compared.runs if run.host for mhz in run.host.clock_limits_mhz})
    if len(limits) > 1:
        told = listed([f"{mhz} MHz" for mhz in limits])
        yield compared.mark(
            "other-clock-limit",
            f"The devices were limited to different clocks ({told}); set one limit for all (nvidia-smi "
            "-lgc).",
        )


def other_threads(compared: Compared) -> Iterator[Mark]:
    """Ranks with other numbers of threads."""
    by_gpus: dict[int, set[int]] = {}
    for run, facts in compared.facts:
        by_gpus.setdefault(run.variant.gpus, set()).update(facts.num_threads)
    if len(set().union(*by_gpus.values())) > 1:
        told = "; ".join(
            f"{'/'.join(map(str, sorted(threads)))} on {gpus} GPU{'s' * (gpus > 1)}"
            for gpus, threads in sorted(by_gpus.items())
        )
        yield compared.mark(
            "other-threads",
            f"Ranks had different numbers of threads ({told}), and the difference in time may be theirs; "
            "do not set threads in the program, or set the same for all.",
        )


def other_examples(compared: Compared) -> Iterator[Mark]:
    """Steps of more or fewer examples than one GPU's."""
    counts: dict[int, list[Facts]] = {}
    for run, facts in compared.facts:
        if facts.examples_per_step is None:
            yield compared.mark(
                "examples-not-counted",
                "The examples of a step could not be counted, so nobody can tell whether all steps had as "
                "many; use a torch DataLoader to have them counted.",
            )
            return
        counts.setdefault(run.variant.gpus, []).append(facts)
    cell, reference = compared.comparison.cell, compared.comparison.reference
    if cell.gpus == 1 or {1, cell.gpus} - counts.keys():
        return
    due = cell.batch_size / reference.batch_size
    one, many = (_middle([each.examples_per_step or 0.0 for each in counts[size]]) for size in (1, cell.gpus))
    # blocks of steps have the small batches that epochs end with, some more of them and some fewer
    (one_least, one_most), (least, most) = (
        (min(each.least_examples for each in counts[size]), max(each.most_examples for each in counts[size]))
        for size in (1, cell.gpus)
    )
    is_more = least > one_most * due * (1 + EXAMPLES_APART)
    is_less = most < one_least * due * (1 - EXAMPLES_APART)
    if one <= 0 or is_more or is_less:
        yield compared.mark(
            "other-examples",
            f"A step has {_told(many)} examples on {cell.gpus} GPUs and {_told(one)} on one, where "
            f"{_told(one * due)} were due: these are different amounts of work; divide the batch of the "
            "program by the number of ranks, or compare with --weak.",
            is_refusal=True,
        )


def batch_beyond_the_data(compared: Compared) -> Iterator[Mark]:
    """A batch that no step can have: a pass over the data set has fewer examples."""
    cell = compared.comparison.cell
    for run, facts in compared.facts:
        loading, found = facts.loading, facts.examples_per_step
        if run.variant.cell != cell or loading is None or found is None:
            continue
        due = loading.num_drawn or loading.num_examples
        if due is not None and due < cell.batch_size and found < (1 - EXAMPLES_APART) * cell.batch_size:
            yield compared.mark(
                "other-examples",
                f"Steps of {cell.batch_size:,} examples were asked for, and a pass over the data set has "
                f"{due:,}, so that they have {_told(found)}; ask for a batch of at most {due}.",
                is_refusal=True,
            )
            return


def repeated_examples(compared: Compared) -> Iterator[Mark]:
    """A pass that several ranks draw several times over, or steps in which they have the same examples."""
    cell = compared.comparison.cell
    drawn: dict[bool, int] = {}
    for run, facts in compared.facts:
        if facts.loading is not None and facts.loading.num_drawn:
            drawn[run.variant.gpus == 1] = facts.loading.num_drawn
    if cell.gpus > 1 and len(drawn) == 2 and drawn[False] >= TWICE * drawn[True]:
        yield compared.mark(
            "repeated-examples",
            f"The ranks draw {drawn[False]:,} examples in a pass over {drawn[True]:,}, so that examples per "
            "second count the same ones again, and an epoch is no shorter; share the data set out among the "
            "ranks.",
            is_refusal=True,
        )
        return
    times = times_in_a_step(compared.look_at_one, compared.look)
    if cell.gpus > 1 and times is not None and times >= TWICE:
        yield compared.mark(
            "repeated-examples",
            f"The ranks train on the same examples: each one of a step is in it {times:.3g} times, so that "
            "examples per second count the same ones again; share the examples out among the ranks.",
            is_refusal=True,
        )


def no_group(compared: Compared) -> Iterator[Mark]:
    """Ranks that never meet."""
    if compared.comparison.cell.gpus > 1 and compared.look is not None and not compared.look.is_joined:
        yield compared.mark(
            "no-process-group",
            "The program makes no process group, so that each rank trains a model of its own: several "
            "trainings, and none of them faster; let it call torch.distributed.init_process_group, and "
            "exchange gradients.",
            is_refusal=True,
        )


def other_precision(compared: Compared) -> Iterator[Mark]:
    """Numbers of other kinds."""
    kinds = sorted({precision for _, facts in compared.facts for precision in facts.precisions})
    if len(kinds) > 1:
        yield compared.mark(
            "other-precision",
            f"The runs computed in different precisions ({'; '.join(kinds)}); use the same on every number "
            "of GPUs.",
            is_refusal=True,
        )


def failed_run(compared: Compared) -> Iterator[Mark]:
    """A run without times: of a variant that other rounds have measured, or that only the gap needs."""
    measured = {run.variant for run in compared.all_runs}
    for run in compared.failed:
        left = "its other rounds count" if run.variant in measured else "parts of the gap are not told apart"
        yield compared.mark(
            "failed-run",
            f"Round {run.round} of {run.variant} failed, and {left}. "
            f"{run.reason.rstrip('.') or 'There is a step that took no time'}. What it said "
            f"is kept in {run.folder}; the same command with the same --out tries it again.",
        )


def busy(compared: Compared) -> Iterator[Mark]:
    """Other processes at work on the same machine."""
    known = [
        (run.host.other_cores, run.host.num_cores, run)
        for run in compared.all_runs
        if run.host is not None and run.host.other_cores is not None
    ]
    if not known:
        return
    others, cores, worst = max(known, key=lambda each: each[0])
    if others > max(BUSY_CORES, BUSY_SHARE * cores):
        yield compared.mark(
            "busy",
            f"Other processes used {others:.1f} of {cores} cores during round {worst.round} of "
            f"{worst.variant}; measure when the machine is free.",
        )


def too_noisy(compared: Compared) -> Iterator[Mark]:
    """An interval that tells little."""
    width = compared.result.relative_half_width
    if width is not None and width > NOISY:
        yield compared.mark(
            "too-noisy",
            f"The time of a step is known to ±{width:.0%} only; make more rounds (--budget), or measure "
            "when the machine is free.",
        )


def too_few_steps(compared: Compared) -> Iterator[Mark]:
    """Runs that ended soon after warm-up, or in it."""
    fewest = min(compared.all_runs, key=lambda run: run.num_kept, default=None)
    if fewest is not None and fewest.num_kept < FEWEST_STEPS:
        yield compared.mark(
            "too-few-steps",
            f"{fewest.variant} took {fewest.num_steps} steps, of which {fewest.num_kept} came after "
            f"warm-up, and {FEWEST_STEPS} are needed; {_for_longer(fewest)}.",
        )
    unsettled = [run for run in compared.all_runs if run.num_kept >= FEWEST_STEPS and not run.is_warm_up_over]
    if unsettled:
        run = unsettled[0]
        yield compared.mark(
            "warm-up-not-over",
            f"Steps of {run.variant} still changed when the run of {run.num_steps} steps ended; "
            f"{_for_longer(run)}.",
        )


def one_round(compared: Compared) -> Iterator[Mark]:
    """A single round, of which nobody can tell how much rounds differ."""
    if compared.result.num_rounds == 1:
        yield compared.mark(
            "one-round",
            "One round was made: its steps tell the interval, and what differs from round to round is not in "
            "it; make 3 rounds or more (--budget).",
        )


RULES: tuple[Rule, ...] = (
    other_device,
    other_clock_limit,
    no_group,  # before what follows from it
    other_examples,
    batch_beyond_the_data,
    repeated_examples,
    other_precision,
    other_threads,
    failed_run,
    busy,
    too_noisy,
    too_few_steps,
    one_round,
)


def _for_longer(run: Finished) -> str:
    """What to do about a run that was too short: it ended by itself, or we ended it."""
    is_cut = run.status == "cut"
    return "let each run go on for longer (--seconds)" if is_cut else "let the program train for longer"


def _told(examples: float) -> str:
    """A number of examples, which may be a mean over steps."""
    return f"{examples:,.0f}" if examples == int(examples) else f"{examples:,.1f}"


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
