"""Facts: what a run's rows say of it beside the times of its steps.

Knows which row holds what, and which loader is the one trained on. It judges nothing.
"""

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from samestep.errors import RecordError
from samestep.observations import Observations
from samestep.observed import Loader, Machine, Model, Row, Timing
from samestep.scale.runs import Facts, Finished, Host, Loading, Status
from samestep.scale.statistics import Blocks
from samestep.scale.timing import BETWEEN_STEPS, RunTimes, run_times
from samestep.scale.variants import Variant

_TENSOR = re.compile(r"^\S+ (?P<dtype>\S+) \((?P<shape>[\d, ]*)\) gradient$")
_BITS = re.compile(r"\d+")
_SYNCHRONISED = re.compile(r"^_?Sync")


def finished(
    observations: Observations,
    variant: Variant,
    number: int,
    *,
    status: Status,
    seconds: float,
    host: Host | None = None,
    reason: str = "",
) -> Finished:
    """What is kept of the run of a variant in round `number`, from what its probe observed."""
    rows = {rank: list(observations.rows(rank)) for rank in observations.ranks}
    try:
        times = run_times(rows)
    except RecordError as error:
        return Finished(
            variant=variant,
            round=number,
            status=status,
            seconds=seconds,
            reason=reason or str(error),
            host=host,
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
        facts=facts(rows, times, host),
        host=host,
    )


def facts(rows_of_ranks: Mapping[int, Sequence[Row]], times: RunTimes, host: Host | None = None) -> Facts:
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
        loading=_loading(ranks),
        waits_per_step=max((w for w in waits if w is not None), default=None),
    )


class _RankRows:
    """The rows of one rank; blocks that count are those that begin after warm-up, if there are any."""

    def __init__(self, rows: Sequence[Row], first_kept: int) -> None:
        self.machine = next((row for row in rows if isinstance(row, Machine)), None)
        self.models = [row for row in rows if isinstance(row, Model)]
        self.loaders = [row for row in rows if isinstance(row, Loader)]
        self.all_blocks = [row for row in rows if isinstance(row, Timing) and row.num_steps > 0]
        kept = [block for block in self.all_blocks if block.first_step >= first_kept]
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
        return sum(bool(_SYNCHRONISED.match(kind)) for _, _, kind in names)

    @property
    def examples_per_step(self) -> float | None:
        counts = [(block.num_examples, block.num_steps) for block in self.blocks]
        known = [count / steps for count, steps in counts if count is not None]
        # the last batch of an epoch may be smaller: that is no other batch size
        return float(np.median(known)) if len(known) == len(counts) and known else None

    @property
    def waits_per_step(self) -> float | None:
        counts = [getattr(block, "num_waits", None) for block in self.blocks]
        known = [count for count in counts if count is not None]
        return sum(known) / self.num_steps if known else None

    @property
    def cpu_s(self) -> float:
        return sum(block.cpu_s for block in self.blocks) / self.num_steps

    @property
    def memory_bytes(self) -> int:
        of_device = max((block.device_bytes or 0 for block in self.all_blocks), default=0)
        return of_device or max((block.rss_bytes or 0 for block in self.all_blocks), default=0)

    def phase_s(self, phase: str) -> float:
        """Seconds of a step."""
        return sum(block.phases_s.get(phase, 0.0) for block in self.blocks) / self.num_steps

    def whole_s(self, phase: str) -> float:
        """Seconds of the run, warm-up included."""
        return sum(block.phases_s.get(phase, 0.0) for block in self.all_blocks)


def _loading(ranks: Sequence[_RankRows]) -> Loading | None:
    """The loader trained on: the one with most examples, since nothing else tells it from others."""
    if not ranks[0].loaders:
        return None
    loader = max(ranks[0].loaders, key=lambda row: (row.num_examples or 0, -row.loader))
    same = [row for rank in ranks for row in rank.loaders if row.loader == loader.loader]
    drawn = [row.num_drawn for row in same if row.num_drawn is not None]
    return Loading(
        num_workers=loader.num_workers,
        num_examples=loader.num_examples,
        num_drawn=sum(drawn) if len(drawn) == len(ranks) else None,
        is_pinned=getattr(loader, "is_pinned", None),
        where=loader.where,
    )
