"""A runner that starts nothing: looks are those of a tiny training, and times those of a job in numbers."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "verify"))
from rows import WHERE, write
from synthetic import Job
from timing_rows import blocks, loader, machine, model
from tiny import Tiny

from samestep.observed import End, First
from samestep.scale.runner import Made
from samestep.scale.runs import Host
from samestep.scale.variants import Variant


@dataclass(kw_only=True)
class Pretended:
    """Obeys orders as a program would that costs what `job` says; `batch` is its own global one, by world.

    `failing` are orders, by a part of their name, and the reason they fail for; `interrupted_at` is the
    number of the order that is interrupted from the keyboard. `clock` goes on by `run_s` with each run.
    """

    out: Path
    job: Job = field(default_factory=lambda: Job(noise=1e-3, drift=1e-3))
    batch: object = lambda size: 8
    failing: dict = field(default_factory=dict)
    num_steps: int = 6
    interrupted_at: int | None = None
    run_s: float = 1.0
    edit: object = lambda row, rank, size: row
    asked: list = field(default_factory=list)
    now: float = 0.0

    def clock(self):
        return self.now

    def __call__(self, order):
        self.asked.append(order)
        if len(self.asked) == self.interrupted_at:
            raise KeyboardInterrupt
        self.now += self.run_s
        for part, reason in self.failing.items():
            if part in order.name:
                return Made(status="failed", seconds=self.run_s, reason=reason)
        folder = self.out / order.name
        if not order.is_timed:
            passes = -(-self.num_steps * self.batch(order.world_size) // 24)
            tiny = Tiny(out=self.out, batch_size=self.batch, num_passes=passes, edit=self.edit)
            tiny(order.name, order.world_size)
            status = "finished" if self.num_steps < 8 else "cut"
            return Made(status=status, seconds=self.run_s)
        write(folder, list(self._timed(order)))
        return Made(status="cut", seconds=self.run_s, host=Host(num_cores=8, other_cores=0.0))

    def _timed(self, order):
        changed, size = order.experiment, order.world_size
        kinds = {(True, True): "cached", (True, False): "silent", (False, True): "cached"}
        kind = kinds.get((changed.is_exchange_off, changed.is_data_cached))
        kind = kind or ("local-norms" if changed.are_norms_local else "full")
        batch = order.batch_size or changed.batch_size or self.batch(size)
        steps = self.job.steps(Variant(gpus=size, batch_size=batch, kind=kind), order.round)
        for times in steps:
            losses = {"losses": (1.0,) * 5}
            yield [
                machine(), loader(where=WHERE["loader"], num_drawn=1000 // size), model(),
                First(seconds=3.0 + float(times[0]), is_cold=order.is_cold),
                *blocks(times[: len(times) // 5 * 5], num_examples=batch / size, **losses),
                End(status="cut", exit_code=None),
            ]  # fmt: skip
