"""A program that exists in numbers only: what each thing costs is known, and so what is to be found."""

from dataclasses import dataclass, field, replace

import numpy as np

from samestep.scale.judgement import judge
from samestep.scale.plan import Plan, Sweep
from samestep.scale.runs import Facts, Finished, Host, Loading
from samestep.scale.statistics import Blocks

STEPS = 96


@dataclass(kw_only=True)
class Job:
    """Costs are seconds: of an example, of a step on any rank, or of a step if there are several ranks.

    `late_s` is what a rank loses in every step, by its number; `jitter_s` what one rank in turn loses and
    the others win. `noise` is the deviation of a step's time as a part of it, `drift` that of a round's,
    which hits all its runs.
    """

    example_s: float = 1e-3
    fixed_s: float = 0.0
    fetch_s: float = 0.0
    """Of an example, not hidden."""
    sharing_s: float = 0.0
    exchange_s: float = 0.0
    norms_s: float = 0.0
    late_s: dict = field(default_factory=dict)
    jitter_s: float = 0.0
    noise: float = 0.01
    drift: float = 0.01
    run_noise: float = 0.0
    """The same of a single run: what a round does not share."""
    seed: int = 0
    num_cores: int = 8
    threads: int = 1
    facts: dict = field(default_factory=dict)
    """Of every run, or, by number of GPUs, of some."""
    loading: dict = field(default_factory=dict)
    drawn: object = None
    """Number of GPUs → examples of a pass over all ranks."""
    host: dict = field(default_factory=dict)
    looks: dict = field(default_factory=dict)
    """By number of ranks."""
    failing: tuple = ()
    """Names of variants."""

    def steps(self, variant, number):
        """Times by rank and step."""
        rng = np.random.default_rng([self.seed, number, *variant.name.encode()])
        world = variant.gpus
        share = variant.batch_size / world
        step = np.full((world, STEPS), self.fixed_s + share * self.example_s)
        if not variant.is_data_cached:
            step += share * self.fetch_s
        if world > 1:
            step += self.sharing_s
            for rank, seconds in self.late_s.items():
                step[rank] += seconds
            step -= self.jitter_s / (world - 1)
            step[np.arange(STEPS) % world, np.arange(STEPS)] += self.jitter_s * world / (world - 1)
        step *= np.exp(self.noise * rng.standard_normal(step.shape) + self.run_noise * rng.standard_normal())
        if world > 1 and not variant.is_exchange_off:
            # in lockstep: all ranks take as long as the slowest
            step[:] = step.max(axis=0) + self.exchange_s
            if not variant.are_norms_local:
                step += self.norms_s
        return step * np.exp(self.drift * np.random.default_rng([self.seed, number]).standard_normal())

    def run(self, variant, number):
        if variant.name in self.failing:
            return Finished(
                variant=variant, round=number, status="failed", seconds=1.0, reason="out of memory"
            )
        step = self.steps(variant, number)
        world = variant.gpus
        loading = {"num_workers": 0, "num_examples": 10_000} | self.loading
        loading.setdefault("num_drawn", loading["num_examples"])
        if self.drawn is not None:
            loading["num_drawn"] = self.drawn(world)
        facts = Facts(
            devices=("cpu",) * world,
            num_threads=(self.threads,) * world,
            precisions=("float32",) * world,
            rank_step_s=tuple(float(mean) for mean in step.mean(axis=1)),
            rank_examples=(variant.batch_size / world,) * world,
            memory_bytes=2**30,
            gradient_bytes=4_000_000,
            cpu_s=float(step.mean()) * world,
            loading=Loading(**loading),
        )
        changes = {name: value for name, value in self.facts.items() if isinstance(name, str)}
        facts = replace(facts, **changes | self.facts.get(world, {}))
        return Finished(
            variant=variant,
            round=number,
            status="cut",
            seconds=float(step.sum()) / world + 2.0,
            num_steps=STEPS + 10,
            num_warm_up=10,
            is_warm_up_over=True,
            blocks=Blocks.of(step),
            facts=facts,
            host=Host(num_cores=self.num_cores, **self.host),
        )

    def runs(self, sweep, rounds=6):
        """All runs of a sweep, as the plan asks for them."""
        found = []
        for _ in range(rounds):
            for planned in Plan(sweep, found, has_norms=bool(self.norms_s)).missing():
                found.append(self.run(planned.variant, planned.round))
        return found

    def result(self, worlds=(1, 2, 4), batches=(32,), rounds=6, **more):
        sweep = Sweep(worlds=tuple(worlds), batches=tuple(batches), **more)
        return judge(sweep, self.runs(sweep, rounds), has_norms=bool(self.norms_s), looks=self.looks)

    def causes(self, **more):
        return [finding.cause for finding in self.result(**more).findings]
