"""Facts: what a run's rows say of it beside the times of its steps.

Knows which row holds what, and which loader is the one trained on. It judges nothing.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from samestep.errors import RecordError
from samestep.observations import Observations
from samestep.observed import BETWEEN_STEPS, First, Loader, Machine, Model, Pass, Row, Timing, Trouble
from samestep.record import read_json
from samestep.scale.runs import Facts, Finished, Host, Loading, Status
from samestep.scale.statistics import Blocks
from samestep.scale.timing import RunTimes, between_steps_s, run_times
from samestep.scale.variants import Variant

_TENSOR = re.compile(r"^\S+ (?P<dtype>\S+) \((?P<shape>[\d, ]*)\) gradient$")
_BITS = re.compile(r"\d+")
_CHANGES = {
    "ExchangeOff": "Nothing was to be exchanged",
    "NormsLocal": "Norm layers were not to be synchronised",
    "DataCached": "Examples were not to be fetched",
    "BatchSize": "Loaders were to be given another batch",
}
"""What an experiment changes, by the part of the probe that does it."""
_SYNCHRONISED = re.compile(r"^_?Sync")


def is_synchronised_norm(kind: str) -> bool:
    """Whether a norm layer of this class takes its statistics over all ranks: torch's, or one of ours."""
    return _SYNCHRONISED.match(kind) is not None


def finished(
    observations: Observations,
    variant: Variant,
    number: int,
    *,
    status: Status,
    seconds: float,
    host: Host | None = None,
    reason: str = "",
    folder: str = "",
    lines: Sequence[str] = (),
) -> Finished:
    """What is kept of the run of a variant in round `number`, from what its probe observed.

    `lines` are those of the loaders that are trained on, where they are known.
    """
    rows = {rank: list(observations.rows(rank)) for rank in observations.ranks}
    try:
        _check_changed(rows)
        times = run_times(rows)
    except RecordError as error:
        return Finished(
            variant=variant,
            round=number,
            status=status,
            seconds=seconds,
            reason=reason or str(error),
            host=host,
            folder=folder,
        )
    return Finished(
        variant=variant,
        round=number,
        status=status,
        seconds=seconds,
        reason=reason,
        num_steps=len(times.steps),
        num_warm_up=times.warm_up.num_steps,
        is_warm_up_over=times.warm_up.is_over,
        blocks=Blocks.of(times.kept_s),
        facts=dataclasses.replace(
            facts(rows, times, host, lines), steps_per_epoch=_steps_per_epoch(observations.folder)
        ),
        host=host,
        folder=folder,
    )


def _check_changed(rows_of_ranks: Mapping[int, Sequence[Row]]) -> None:
    """Refuse a run in which what was to be changed stayed as it is: it would be taken for another."""
    for rank, rows in rows_of_ranks.items():
        for row in rows:
            if isinstance(row, Trouble) and row.place in _CHANGES:
                raise RecordError(
                    f"{_CHANGES[row.place]} in this run, which was not possible on rank {rank} "
                    f"({row.error}): its times are not those that were asked for."
                )


def _steps_per_epoch(folder: Path) -> int | None:
    told = (read_json(folder / "record.json") or {}).get("steps_per_epoch")
    return told if isinstance(told, int) and told > 0 else None


def facts(
    rows_of_ranks: Mapping[int, Sequence[Row]],
    times: RunTimes,
    host: Host | None = None,
    lines: Sequence[str] = (),
) -> Facts:
    """The facts of a run whose times are known."""
    ranks = [_RankRows(rows_of_ranks[rank], times.first_kept) for rank in times.ranks]
    devices = tuple(rank.device for rank in ranks)
    if host is not None and len(host.devices) == len(devices):
        devices = tuple(f"{kind} {model}".strip() for kind, model in zip(devices, host.devices, strict=True))
    examples = [rank.examples_per_step for rank in ranks]
    waits = [rank.waits_per_step for rank in ranks]
    first = ranks[0]
    return Facts(
        devices=devices,
        num_threads=tuple(rank.machine.num_threads for rank in ranks if rank.machine is not None),
        precisions=tuple(rank.precision for rank in ranks),
        rank_step_s=tuple(float(mean) for mean in times.kept_s.mean(axis=1)),
        rank_examples=tuple(e for e in examples if e is not None) if None not in examples else None,
        examples_between=(
            sum(min(rank.block_examples) for rank in ranks),
            sum(max(rank.block_examples) for rank in ranks),
        )
        if None not in examples
        else None,
        phases_s={
            phase: sum(rank.phase_s(phase) for rank in ranks) / len(ranks)
            for phase in sorted({phase for rank in ranks for phase in rank.phases})
        },
        evaluation_s=max(rank.whole_s("evaluation") for rank in ranks),
        checkpoint_s=max(rank.whole_s("checkpoint") for rank in ranks),
        cpu_s=sum(rank.cpu_s for rank in ranks),
        memory_bytes=max(rank.memory_bytes for rank in ranks),
        gradient_bytes=first.gradient_bytes,
        wraps=tuple(sorted({wrap.kind for model in first.models for wrap in model.wraps})),
        num_synchronised_norms=first.num_synchronised_norms,
        loading=_loading(ranks, lines),
        waits_per_step=max((w for w in waits if w is not None), default=None),
        start_s=_start_s([rank.first for rank in ranks], times),
        warm_up_s=_warm_up_s(times),
    )


def _start_s(firsts: Sequence[First | None], times: RunTimes) -> float | None:
    """Until the first step began, on the rank that took longest; None unless all were started anew."""
    cold = [first.seconds for first in firsts if first is not None and first.is_cold]
    if not cold or len(cold) < len(firsts):
        return None
    # a first step that was not seen by itself is taken for one like any other
    own_s = times.step_s[:, 0] if times.steps[0] == 1 else times.kept_s.mean(axis=1)
    return max(0.0, *(seconds - float(own) for seconds, own in zip(cold, own_s, strict=True)))


def _warm_up_s(times: RunTimes) -> float:
    lockstep = times.step_s.max(axis=0)
    count = times.warm_up.num_steps
    return max(0.0, float((lockstep[:count] - lockstep[count:].mean()).sum()))


class _RankRows:
    """The rows of one rank; blocks that count are those that begin after warm-up, if there are any.

    The block of the first step never counts beside others: start-up is in it.
    """

    def __init__(self, rows: Sequence[Row], first_kept: int) -> None:
        self.machine = next((row for row in rows if isinstance(row, Machine)), None)
        self.first = next((row for row in rows if isinstance(row, First)), None)
        self.models = [row for row in rows if isinstance(row, Model)]
        self.loaders = [row for row in rows if isinstance(row, Loader)]
        self._timings = [row for row in rows if isinstance(row, Timing)]
        self.all_blocks = [row for row in self._timings if row.num_steps > 0]
        self.passes = [row for row in rows if isinstance(row, Pass)]
        kept = [block for block in self.all_blocks if block.first_step >= max(2, first_kept)]
        self.blocks = kept or self.all_blocks
        self.num_steps = sum(block.num_steps for block in self.blocks)
        self.phases = {phase for block in self.blocks for phase in block.phases_s} - set(BETWEEN_STEPS)

    @property
    def device(self) -> str:
        """The kind of device, without its number."""
        return "unknown" if self.machine is None else self.machine.device.partition(":")[0]

    @property
    def precision(self) -> str:
        """In what numbers are computed: dtypes of parameters, and how matrices are multiplied."""
        kinds = sorted({found["dtype"] for found in self._gradients()})
        multiplied = "" if self.machine is None else f", matrices {self.machine.matmul_precision}"
        return ("/".join(kinds) or "unknown") + multiplied

    @property
    def gradient_bytes(self) -> int:
        """Of one exchange of all gradients."""
        total = 0
        for found in self._gradients():
            bits = _BITS.findall(found["dtype"])
            sizes = [int(size) for size in found["shape"].replace(" ", "").split(",") if size]
            total += math.prod(sizes) * (int(bits[0]) if bits else 32) // 8
        return total

    def _gradients(self) -> list[re.Match[str]]:
        # a model is written again in another wrap, and is then the same one
        models = {model.model: model for model in self.models}
        return [
            found for model in models.values() for text in model.tensors if (found := _TENSOR.match(text))
        ]

    @property
    def num_synchronised_norms(self) -> int:
        names = {(model.model, norm.name, norm.kind) for model in self.models for norm in model.norms}
        return sum(is_synchronised_norm(kind) for _, _, kind in names)

    @property
    def block_examples(self) -> list[float]:
        """Of a step, by block, where they were counted."""
        return [
            block.num_examples / block.num_steps for block in self.blocks if block.num_examples is not None
        ]

    @property
    def examples_per_step(self) -> float | None:
        known = self.block_examples
        if not any(known):
            return None  # it trains on what no loader handed out, so that nobody counted
        # the last batch of an epoch may be smaller: that is no other batch size
        return float(np.median(known)) if len(known) == len(self.blocks) else None

    @property
    def waits_per_step(self) -> float | None:
        counts = [block.num_waits for block in self.blocks]
        known = [count for count in counts if count is not None]
        return sum(known) / self.num_steps if known else None

    @property
    def cpu_s(self) -> float:
        """Of a step; evaluations and checkpoints are taken to use processors as steps do."""
        used = (
            block.cpu_s * max(0.0, 1.0 - between_steps_s(block) / block.seconds)
            for block in self.blocks
            if block.seconds > 0
        )
        return sum(used) / self.num_steps

    @property
    def memory_bytes(self) -> int:
        of_device = max((block.device_bytes or 0 for block in self.all_blocks), default=0)
        return of_device or max((block.rss_bytes or 0 for block in self.all_blocks), default=0)

    def num_drawn(self, number: int) -> int | None:
        """Examples of a pass over a loader, by its sampler; fewer if its batches are only a share of those.

        A batch sampler of the program's may pass over what is for other ranks: the batches that the loader
        says it has are all that it hands out.
        """
        loader = next((row for row in self.loaders if row.loader == number), None)
        if loader is None or loader.num_drawn is None or not loader.batch_size:
            return None if loader is None else loader.num_drawn
        planned = [row.num_planned for row in self.passes if row.loader == number]
        counts = [count * loader.batch_size for count in planned if count is not None]
        return min(loader.num_drawn, *counts) if counts else loader.num_drawn

    def phase_s(self, phase: str) -> float:
        """Seconds of a step."""
        return sum(block.phases_s.get(phase, 0.0) for block in self.blocks) / self.num_steps

    def whole_s(self, phase: str) -> float:
        """Seconds of the run, with warm-up, and with what came after the last step."""
        return sum(row.phases_s.get(phase, 0.0) for row in self._timings)


def _loading(ranks: Sequence[_RankRows], lines: Sequence[str]) -> Loading | None:
    """The loader trained on: made at one of the lines, or else, as far as can be told, the largest."""
    if not ranks[0].loaders:
        return None
    named = [row for row in ranks[0].loaders if row.where in lines]
    loader = max(named or ranks[0].loaders, key=lambda row: (row.num_examples or 0, -row.loader))
    found = [rank.num_drawn(loader.loader) for rank in ranks]
    drawn = [count for count in found if count is not None]
    return Loading(
        num_workers=loader.num_workers,
        num_examples=loader.num_examples,
        num_drawn=sum(drawn) if len(drawn) == len(ranks) else None,
        is_pinned=loader.is_pinned,
        where=loader.where,
    )
