"""Asked: what a sweep was asked for, and, with what was seen of the program, which sweep that is.

A task takes its global batch as a setting. A script is left as it is unless batches are asked for by number:
then its training loaders are given them, each rank its share. Knows no files and starts nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from samestep.errors import ConfigError
from samestep.experiment import Experiment
from samestep.scale.looks import Look
from samestep.scale.plan import MOST_ROUNDS, Sweep
from samestep.scale.variants import Variant, comparisons

_NO_LOADER = "has no torch DataLoader that could be given another batch"
FEWEST_STEPS = 8
"""That a program must take: MSER leaves out up to half of them, and there must be some to compare."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the user wants to know; without `batches`, the program's own."""

    worlds: tuple[int, ...]
    batches: tuple[int, ...] | None = None
    is_weak: bool = False
    is_task: bool = False
    precision: float = 0.03
    budget_s: float | None = None
    fewest_rounds: int = 1
    most_rounds: int = MOST_ROUNDS
    seed: int = 0

    def check(self) -> None:
        """Refuse batches that cannot be shared out, before anything is started for them."""
        comparisons(self.worlds, self.batches or (max(self.worlds),), is_weak=self.is_weak)

    def check_look(self, look: Look) -> None:
        """Refuse a program that ran to its end and did not train for long enough, before it is run again.

        One that failed may do better on another number of ranks.
        """
        if look.status == "finished" and look.reason and look.world_size == 1:
            raise ConfigError(look.reason)
        if look.status == "finished" and look.is_good and look.num_steps < FEWEST_STEPS:
            raise ConfigError(
                f"The program ended after {look.num_steps} step{'s' * (look.num_steps > 1)} on "
                f"{look.world_size} rank{'s' * (look.world_size > 1)}, and at least {FEWEST_STEPS} are "
                "needed to time it; let it train for longer (more epochs, more examples)."
            )

    def sweep(self, looks: Mapping[int, Look]) -> tuple[Sweep, list[str]]:
        """The sweep, and remarks on it; refused if no world can be timed, with the reason of the first."""
        good = {size: look for size, look in sorted(looks.items()) if look.is_good}
        if not good:
            raise ConfigError(looks[min(looks)].reason)
        batches, is_weak, remarks = self.batches, self.is_weak, []
        if batches is None:
            batches, grows = _own_batches(good)
            if grows and not is_weak and not self.is_task:
                is_weak = True
                # ranks that never meet are refused, whatever their batch
                if all(look.is_joined for size, look in good.items() if size > 1):
                    remarks.append(_grows(batches[0]))
        if is_weak and self.is_weak:
            remarks.append(
                "The batch grows with the number of GPUs (--weak). Steps of a larger batch are other "
                "training: the table compares examples per second."
            )
        sweep = Sweep(
            worlds=self.worlds,
            batches=batches,
            is_weak=is_weak,
            precision=self.precision,
            budget_s=self.budget_s,
            fewest_rounds=self.fewest_rounds,
            most_rounds=self.most_rounds,
            seed=self.seed,
        )
        self._check_batches(sweep, looks)
        return sweep, remarks

    def impossible(self, sweep: Sweep, looks: Mapping[int, Look]) -> list[Variant]:
        """The variants whose batch nobody can give to the program: it is another than its own, and unloaded.

        Of a batch that could not be counted, what the user says of it is taken for true.
        """
        cells = {comparison.cell for comparison in sweep.comparisons}
        found: dict[Variant, None] = {}
        for comparison in sweep.comparisons:
            for variant in comparison.roles(has_norms=True).values():
                look = looks.get(variant.gpus)
                if self.is_task or look is None or look.is_loaded or not look.is_good:
                    continue
                is_as_it_is = self.batches is None and not self.is_weak
                is_own = variant.cell in cells and (look.batch_size is None or is_as_it_is)
                if not is_own and look.batch_size != variant.batch_size:
                    found[variant] = None
        return list(found)

    def _check_batches(self, sweep: Sweep, looks: Mapping[int, Look]) -> None:
        cells = {comparison.cell for comparison in sweep.comparisons}
        wrong = [v.cell for v in self.impossible(sweep, looks) if v.kind == "full" and v.cell in cells]
        if wrong:
            raise ConfigError(
                f"Steps of {wrong[0].batch_size} examples were asked for on {wrong[0].gpus} "
                f"rank{'s' * (wrong[0].gpus > 1)}. The program's own have {looks[wrong[0].gpus].batch_size}, "
                f"and it {_NO_LOADER}; measure it as it is, without --batch and --weak, or let it train from "
                "a DataLoader."
            )
        is_unknown = any(
            look.is_good and not look.is_loaded and not look.batch_size for look in looks.values()
        )
        if is_unknown and not self.is_task and len(sweep.batches) > 1:
            raise ConfigError(
                f"Batches of {', '.join(map(str, sweep.batches))} were asked for, and the program "
                f"{_NO_LOADER}; name the one that it has."
            )

    def experiment(self, variant: Variant, looks: Mapping[int, Look]) -> Experiment:
        """What is changed in the program to run a variant."""
        loaders = tuple(sorted({line for look in looks.values() for line in look.loaders}))
        return Experiment(
            is_exchange_off=variant.is_exchange_off,
            is_data_cached=variant.is_data_cached,
            are_norms_local=variant.are_norms_local,
            batch_size=None if self.is_task else self._loader_batch(variant, looks),
            loaders=() if self.is_task else loaders,
        )

    def _loader_batch(self, variant: Variant, looks: Mapping[int, Look]) -> int | None:
        """What a loader is to hand out over all ranks; None if the program does so by itself."""
        look = looks.get(variant.gpus)
        if look is not None and look.batch_size == variant.batch_size:
            return None
        if self.batches is None and not self.is_weak and variant.gpus > 1:
            return None  # as it is, fair or not
        of_step = 1.0 if look is None else look.batches_per_step
        return max(variant.gpus, round(variant.batch_size / of_step))


def _grows(batch: int) -> str:
    return (
        f"The program's batch is that of one rank, {batch} examples, and grows with the number of GPUs. "
        "Steps of a larger batch are other training: the table compares examples per second. Name the batch "
        f"(--batch {batch}) to compare the same training."
    )


def _own_batches(good: Mapping[int, Look]) -> tuple[tuple[int, ...], bool]:
    """The batch that the program has by itself: that of one rank if it ran; and whether it grows with N."""
    smallest = min(good)
    batch = good[smallest].batch_size
    if batch is None:
        raise ConfigError(
            "The examples of a step could not be counted: the program uses no torch DataLoader, or its "
            "batches have no length; name the global batch with --batch."
        )
    others = {size: look.batch_size for size, look in good.items() if size != smallest}
    grows = bool(others) and all(
        own is not None and own * smallest == batch * size for size, own in others.items()
    )
    return ((batch // smallest if grows else batch),), grows
