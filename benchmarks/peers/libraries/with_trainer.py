"""The Lightning Trainer."""

import logging
import os
import warnings
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor

from benchmarks.peers.job import Batch, Job
from benchmarks.peers.libraries.base import DDP_SETTINGS, Library, plain_loader


class WithTrainer(Library):
    """`Trainer.fit` without what is not asked for: no logger, bar, summary or automatic checkpoint."""

    settings = (
        "its Trainer; DDPStrategy with bucket view and static graph, use_distributed_sampler, sync_batchnorm "
        "where it can be, no logger, progress bar or summary, barebones=False; save_checkpoint and "
        "ckpt_path; self.log(sync_dist=True); BasePredictionWriter, put in order by its batch_indices"
    )

    def __init__(self) -> None:
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module="lightning")
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    def _trainer(self, job: Job, *callbacks: Callback) -> Trainer:
        return Trainer(
            accelerator="cpu",
            devices=self.size,
            strategy=DDPStrategy(**DDP_SETTINGS) if self.size > 1 else "auto",
            max_epochs=job.epochs,
            sync_batchnorm=job.sync_batch_norm,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=list(callbacks),
        )

    def train(self, job: Job) -> None:
        checkpoint = None if job.resume_at is None else f"{job.folder}/trainer.ckpt"
        trainer = self._trainer(job, _AfterStep(job))
        trainer.fit(_Module(job), plain_loader(job, self.size), ckpt_path=checkpoint, weights_only=False)

    def predict(self, job: Job) -> list[float]:
        writer = _Writer("epoch")
        self._trainer(job, writer).predict(
            _Module(job), plain_loader(job, self.size, train=False), return_predictions=False
        )
        parts: list[Any] = [None] * self.size
        if self.size > 1:
            dist.all_gather_object(parts, writer.rows)
        else:
            parts = [writer.rows]
        return [value for _, value in sorted(row for part in parts for row in part)]

    def average(self, job: Job) -> float:
        loader = plain_loader(job, self.size, train=False)
        (found,) = self._trainer(job).validate(_Module(job), loader, verbose=False)
        return float(found["value"])


class _Module(LightningModule):
    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job
        self.model, self._optimizer = job.made()

    def configure_optimizers(self) -> Any:
        return self._optimizer

    def training_step(self, batch: Batch, index: int) -> Tensor:
        return self.job.mean(self.model, batch)

    def validation_step(self, batch: Batch, index: int) -> None:
        values = self.predict_step(batch, index)
        self.log("value", values.mean(), batch_size=len(values), on_epoch=True, sync_dist=True)

    def predict_step(self, batch: Batch, index: int) -> Tensor:
        assert self.job.output is not None
        return self.job.output(self.model, batch)


class _AfterStep(Callback):
    def __init__(self, job: Job) -> None:
        self._job = job

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        trainer.should_stop = self._job.after_step(batch)
        if trainer.global_step == self._job.save_after:
            trainer.save_checkpoint(f"{self._job.folder}/trainer.ckpt")
            trainer.should_stop = True


class _Writer(BasePredictionWriter):
    """Keeps each output with the index of its example."""

    rows: list[tuple[int, float]]

    def write_on_epoch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        predictions: Sequence[Any],
        batch_indices: Sequence[Any],
    ) -> None:
        indices = [index for loader in batch_indices for batch in loader for index in batch]
        values = [value for batch in predictions for value in batch.tolist()]
        self.rows = list(zip(indices, values, strict=True))
