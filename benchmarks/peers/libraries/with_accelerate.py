"""Hugging Face Accelerate."""

from contextlib import nullcontext
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join

from benchmarks.peers.job import Batch, Job
from benchmarks.peers.libraries.base import DDP_SETTINGS, Library, evaluated, plain_loader, synchronised


class WithAccelerate(Library):
    """`Accelerator.prepare`, uneven inputs joined rather than padded."""

    settings = (
        "split_batches; where an epoch does not divide, even_batches=False with torch's Join, which is what "
        "join_uneven_inputs is on GPUs (on CPU it does nothing); use_seedable_sampler; DDP's bucket view and "
        "static graph; its guide's recipe for tokens; save_state with skip_first_batches; gather_for_metrics"
    )

    def __init__(self) -> None:
        self._package: Any = import_module("accelerate")
        self._accelerator = self._package.Accelerator(
            cpu=True,
            dataloader_config=self._package.DataLoaderConfiguration(
                split_batches=True, even_batches=False, use_seedable_sampler=True
            ),
            kwargs_handlers=[self._package.DistributedDataParallelKwargs(**DDP_SETTINGS)],
        )
        self.rank, self.size = self._accelerator.process_index, self._accelerator.num_processes

    def train(self, job: Job) -> None:
        self._train(job)
        self._accelerator.free_memory()

    def _train(self, job: Job) -> None:
        accelerator = self._accelerator
        # torch cannot join ranks of a static graph
        is_uneven = self.size > 1 and job.num_examples % job.batch_size != 0
        accelerator.ddp_handler.static_graph = not is_uneven
        model, optimizer = job.made()
        loader: Any
        model, optimizer, loader = accelerator.prepare(synchronised(job, model), optimizer, self._loader(job))
        if job.resume_at is not None:
            accelerator.load_state(str(job.folder))
        num_steps = job.resume_at or 0
        for epoch in range(job.epochs):
            batches = (
                loader if epoch or not num_steps else self._package.skip_first_batches(loader, num_steps)
            )
            if hasattr(loader, "set_epoch"):
                loader.set_epoch(epoch)
            with Join([model]) if is_uneven else nullcontext():
                for batch in batches:
                    optimizer.zero_grad()
                    accelerator.backward(self._loss(job, model, batch))
                    optimizer.step()
                    num_steps += 1
                    if job.after_step(batch):
                        return
                    if num_steps == job.save_after:
                        accelerator.save_state(str(job.folder))
                        return

    def _loss(self, job: Job, model: nn.Module, batch: Batch) -> Tensor:
        if not job.is_weighted or self.size == 1:
            return job.mean(model, batch)
        weights: Tensor = self._accelerator.gather(torch.as_tensor(job.weight(batch)))
        return job.total(model, batch) * self.size / weights.sum()

    def _loader(self, job: Job, *, train: bool = True) -> Any:
        return plain_loader(job, 1, train=train)

    def predict(self, job: Job) -> list[float]:
        return [row for values in self._outputs(job) for row in values.tolist()]

    def average(self, job: Job) -> float:
        return float(torch.cat(self._outputs(job)).mean())

    def _outputs(self, job: Job) -> list[Tensor]:
        model, _ = job.made()
        model, loader = self._accelerator.prepare(model, self._loader(job, train=False))
        # the default for evaluation, which gather_for_metrics knows how to cut
        loader.batch_sampler.even_batches = True
        return [self._accelerator.gather_for_metrics(values) for values in evaluated(job, model, loader)]

    def close(self) -> None:
        self._accelerator.end_training()
        super().close()
