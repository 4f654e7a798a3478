"""The training loop, from top to bottom: what a task means, on any number of ranks."""

import math
import time
from collections import deque
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from samestep import phase
from samestep.errors import ConfigError, DataError
from samestep.findings import Finding
from samestep.hooks import is_better
from samestep.record import RecordWriter
from samestep.task import Task
from samestep.train import stop
from samestep.train.conditions import conditions_of, refuse_operator
from samestep.train.evaluate import as_loss, computed, evaluate, update_metrics
from samestep.train.precision import autocast
from samestep.train.rehearsal import rehearse
from samestep.train.session import Session, init, shards_of
from samestep.train.state import digest
from samestep.train.step import NonFiniteLoss, checked
from samestep.train.totals import Totals
from samestep.train.training import Training
from samestep.world import current


def train(
    task: Task, world: Session, *, out: Path, resume: bool | str | Path, record: RecordWriter
) -> dict[str, Any]:
    """Train a task to its end; returns what `samestep train` tells about the run."""
    world.reset(task.seed)
    world.on_finding = record.finding
    training = Training(task, world, out, record)
    training.resume(resume)
    return Loop(training).run()


def run(
    task: Task,
    *,
    out: str | Path,
    resume: bool | str | Path = False,
    mode: Literal["fast", "bitwise"] | None = None,
    shards: int | None = None,
    allow_drift: bool | None = None,
) -> dict[str, Any]:
    """Train a task in this process: alone, as in a notebook, or as one of the ranks that a launcher started.

    Writes the same record as `samestep train` into `out`, and returns its result. For `mode` and its company
    see `init`, whose world is used if there is one already.
    """
    stop.clear()
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    existing = current()
    if not isinstance(existing, Session):
        world = init(seed=task.seed, mode=mode, shards=shards, allow_drift=allow_drift)
    else:
        world = existing
        asked = shards_of(mode, shards, world.shards)
        drifts = world.allow_drift if allow_drift is None else allow_drift
        if (asked, drifts) != (world.shards, world.allow_drift):
            world.set_mode(asked, allow_drift=drifts)
    if world.any(world.is_first and resume is False and (folder / "steps.jsonl").exists()):
        raise ConfigError(
            f"The run was to be written to {folder}, which holds a run already: go on with it by "
            "resume=True, or choose another folder."
        )
    record = RecordWriter(folder, world.rank)
    record.describe(
        command="run", mode=world.mode, shards=world.shards, world_size=world.size, seed=task.seed
    )
    began = time.monotonic()
    try:
        result = train(task, world, out=folder, resume=resume, record=record)
        result |= {"command": "run", "seconds": time.monotonic() - began, "out": str(folder.resolve())}
        record.finish(result)
    finally:
        world.on_finding = None
        record.close()
    return result


class _Seen(NamedTuple):
    """A step whose totals have not been read yet."""

    step: int
    epoch: int
    num_examples: int
    learning_rate: float
    step_s: float
    totals: Totals


class Loop:
    """Runs a training to its end, or until somebody wishes to stop."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.task = training.task
        self.world = training.world
        self.record = training.record
        self._autocast = autocast(self.task, self.world)
        self._stop_on_nan = any(getattr(hook, "stop_on_nan", False) for hook in self.task.hooks)
        plain = training.schedule is not None and not isinstance(training.schedule, ReduceLROnPlateau)
        self._steps_schedule = plain and self.task.schedule_every == "step"
        self._epochs_schedule = plain and self.task.schedule_every == "epoch"
        self._unread: deque[_Seen] = deque()
        self._was_interrupted = False
        self._is_rehearsed = False
        self._saved_place: tuple[int, int] | None = None
        self._clock = time.perf_counter()

    def run(self) -> dict[str, Any]:
        """All epochs; the result as `samestep train` tells it."""
        training = self.training
        phase.enter("other", step=training.step + 1)
        self._describe()
        for hook in self.task.hooks:
            hook.before_training(training)
        training.model.train()
        while not training.is_over:
            was_amid, before = training.loader.state()["step"] > 0, training.step
            self._run_steps()
            self._read_totals(keep=0)
            if self._was_interrupted:
                break
            if training.loader.is_amid_epoch:  # `steps` are done, the epoch is not
                self._save(best=self._is_best(self._evaluate()))
                break
            self._end_epoch()
            if training.step == before and not was_amid and self.task.epochs is None:
                raise DataError("An epoch had no examples at all: the sampler yields nothing.")
        for hook in self.task.hooks:
            hook.after_training(training)
        self._save()
        phase.enter("other", detail="checkpoint")
        training.checkpoints.wait()
        phase.enter("other")
        return self._result()

    def _run_steps(self) -> None:
        """The steps of one epoch, or of what is left of it."""
        task, world, training = self.task, self.world, self.training
        schedule = training.schedule if self._steps_schedule else None
        for batch in training.loader:
            if not self._is_rehearsed:
                self._rehearse(batch)
            learning_rate = training.learning_rate
            try:
                with world.step(
                    training.optimizer,
                    clip_norm=task.clip_norm,
                    schedule=schedule,
                    stop_on_nan=self._stop_on_nan,
                ) as step:
                    with self._autocast:
                        loss = as_loss(task.loss(training.model, batch))
                    step.backward(*loss)
            except NonFiniteLoss as error:
                # the bad batch may have spoilt statistics of norm layers: the last checkpoint stays the last
                self._saved_place = (training.step, training.epoch)
                self._interrupt(f"{error} Nothing was saved after it: the last checkpoint stays the last.")
                return
            if training.valid_loader is None and not world.is_idle:
                update_metrics(task, training.metrics, loss, None, batch)
            if step.is_last_turn:
                assert world.share is not None
                training.num_examples += world.share.batch
                self._after_step(learning_rate, step.totals)
                if training.is_over:
                    return

    def _rehearse(self, batch: Any) -> None:
        """In bitwise mode, see on the first shard whether the model gives the same bits twice."""
        self._is_rehearsed = True
        if self.world.shards is None or self.world.is_idle:
            return
        training = self.training

        def run() -> Tensor:
            self.world.begin_again()
            with self._autocast:
                loss = as_loss(self.task.loss(training.model, batch))
            return checked(loss.sum, loss.weight)[0]

        try:
            # hooks would become a part of a compiled model
            differs = rehearse(training.model, run, outputs=not self.task.compile)
        except RuntimeError as error:
            refuse_operator(str(error))
            raise
        self.world.begin_again()
        if differs is not None:
            self.world.drift(
                f"The first shard was run twice, and {differs} was not the same both times.",
                ConfigError,
            )

    def _after_step(self, learning_rate: float, totals: Totals) -> None:
        training = self.training
        if training.ema is not None:
            training.ema.update_parameters(training.model)
        now = time.perf_counter()
        self._unread.append(
            _Seen(
                training.step, training.epoch, training.num_examples, learning_rate, now - self._clock, totals
            )
        )
        self._clock = now
        self._read_totals(keep=1)
        if self.task.hooks:
            phase.enter("other", detail="hooks")
        for hook in self.task.hooks:
            hook.after_step(training)
        every = self.task.checkpoint_every
        if every is not None and training.step % every == 0:
            self._save()

    def _read_totals(self, *, keep: int) -> None:
        """Read what the steps before the last `keep` saw: by then it is there, and nobody waits for it."""
        while len(self._unread) > keep:
            seen = self._unread.popleft()
            loss_sum, weight, wish = seen.totals.read()
            self.training.epoch_loss_sum += loss_sum
            self.training.epoch_weight += weight
            values = {"loss": loss_sum / weight if weight else math.nan, "lr": seen.learning_rate}
            if (grad_norm := seen.totals.grad_norm) is not None:
                values["grad_norm"] = grad_norm
            self.record.step(
                seen.step, epoch=seen.epoch, examples=seen.num_examples, **values, step_s=seen.step_s
            )
            if not math.isfinite(loss_sum):
                self.world.notice(_loss_not_finite(seen.step, loss_sum))
            if wish:
                self._interrupt(stop.requested() or "another rank was asked to stop")

    def _evaluate(self) -> float:
        """Find and record the values of the epoch so far; returns the one that is monitored."""
        training, world = self.training, self.world
        weight = training.epoch_weight
        values = {"train/loss": training.epoch_loss_sum / weight if weight else math.nan}
        if training.valid_loader is not None:
            found = evaluate(
                self.task, world, training.evaluated_model, training.valid_loader, training.metrics
            )
            values |= {f"valid/{name}": value for name, value in found.items()}
        else:
            values |= {f"train/{name}": value for name, value in computed(world, training.metrics).items()}
        if not training.loader.is_amid_epoch:
            for hook in self.task.hooks:
                hook.after_epoch(training, values)
        training.values = values
        self.record.epoch(training.epoch, step=training.step, values=values, lr=training.learning_rate)
        self._clock = time.perf_counter()
        return training.value_of(training.monitor, values)

    def _end_epoch(self) -> None:
        training = self.training
        monitored = self._evaluate()
        training.epoch_loss_sum = training.epoch_weight = 0.0
        for metric in training.metrics.values():
            metric.reset()
        if isinstance(training.schedule, ReduceLROnPlateau):
            training.schedule.step(monitored)
        elif self._epochs_schedule:
            training.schedule.step()  # type: ignore[union-attr]
        is_best = self._is_best(monitored)
        if is_best or self.task.checkpoint_every is None:
            self._save(best=is_best)

    def _is_best(self, value: float) -> bool:
        is_best = is_better(value, self.training.best_value, self.task.monitor_mode)
        if is_best:
            self.training.best_value = value
        return is_best

    def _interrupt(self, reason: str) -> None:
        self.training.stop(reason)
        self._was_interrupted = True

    def _save(self, *, best: bool = False) -> None:
        self._read_totals(keep=0)
        training = self.training
        place = (training.step, training.epoch)
        if place == self._saved_place and not best:
            return
        self._saved_place = place
        phase.enter("other", detail="checkpoint")
        sections = training.state()
        if self.world.is_first:
            about = {
                "world_size": self.world.size,
                "epoch": training.epoch,
                "seed": self.task.seed,
                "conditions": conditions_of(self.world),
            }
            training.checkpoints.save(training.step, sections, about, best=best)
        self.record.event("checkpoint", step=training.step, best=best)
        phase.enter("other")

    def _describe(self) -> None:
        self.record.describe(
            batch_size=self.task.batch_size,
            accumulate=self.task.accumulate,
            precision=self.task.precision,
            num_steps=self.training.num_steps,
            steps_per_epoch=self.training.loader.num_steps,
            num_epochs=self.task.epochs,
            resumed_at_step=self.training.step,
            conditions=conditions_of(self.world),
            allow_drift=self.world.allow_drift,
        )

    def _result(self) -> dict[str, Any]:
        training = self.training
        state = training.state()
        own = digest({name: state[name] for name in ("model", "optimizer", "ema") if name in state})
        digests = self.world.gather_texts(own)
        if len(set(digests)) > 1:
            self.world.notice(_replicas_differ(digests))
        return {
            "status": "stopped" if self._was_interrupted else "finished",
            "stop_reason": training.stop_reason,
            "digest": own,
            "world_size": self.world.size,
            "mode": self.world.mode,
            "steps": training.step,
            "examples": training.num_examples,
            "epochs": training.epoch,
            "values": training.values,
            "findings": [finding.to_json() for finding in self.world.findings],
        }


def _loss_not_finite(step: int, loss_sum: float) -> Finding:
    return Finding(
        cause="loss-not-finite",
        message=f"The loss became {loss_sum} in step {step}.",
        evidence={"step": step},
        fix="Lower the learning rate or clip the gradient (clip_norm); StopOnNaN keeps the good weights.",
    )


def _replicas_differ(digests: list[str]) -> Finding:
    return Finding(
        cause="replicas-differ",
        message="The ranks did not end with the same weights, buffers and optimizer state.",
        evidence={"digests": digests},
        fix="Look for updates outside of world.step, and for layers that keep statistics of their own rank.",
    )
