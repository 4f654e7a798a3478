"""DeepSpeed."""

import os
from importlib import import_module
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.peers.job import Job
from benchmarks.peers.libraries.base import (
    Gathering,
    loader_in_order,
    sampled_loader,
    synchronised,
    without_first,
)


class WithDeepSpeed(Gathering):
    """`deepspeed.initialize` around the model, and torch's DistributedSampler."""

    settings = (
        "ZeRO stage 0 (whole replicas), gradient_clipping 0, fused torch optimizer, a loader with "
        "DistributedSampler and persistent workers, a custom sampler through deepspeed_io; save_checkpoint "
        "and load_checkpoint, batches skipped by hand; outputs gathered with torch, torchmetrics"
    )

    def __init__(self) -> None:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        self._deepspeed: Any = import_module("deepspeed")
        import_module("deepspeed.utils").logger.setLevel("ERROR")
        self._deepspeed.init_distributed("gloo", verbose=False)
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    def _engine(self, job: Job, model: nn.Module, optimizer: Optimizer) -> Any:
        config = {
            "train_batch_size": job.batch_size,
            "train_micro_batch_size_per_gpu": job.batch_size // self.size,
            "zero_optimization": {"stage": 0},
            "gradient_clipping": 0.0,  # it is 1 where nothing is said, and nobody else clips
            "steps_per_print": 10**9,
            "wall_clock_breakdown": False,
        }
        return self._deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]

    def train(self, job: Job) -> None:
        model, optimizer = job.made()
        engine = self._engine(job, synchronised(job, model), optimizer)
        self._train(job, engine)
        engine.destroy()

    def _train(self, job: Job, engine: Any) -> None:
        loader, sampler = self._loader(job, engine)
        num_steps = 0
        if job.resume_at is not None:
            engine.load_checkpoint(str(job.folder))
            num_steps = engine.global_steps
        for epoch in range(job.epochs):
            if sampler is not None:
                sampler.set_epoch(epoch)
            for batch in loader if epoch else without_first(loader, num_steps):
                engine.backward(job.mean(engine, batch))
                engine.step()
                num_steps += 1
                if job.after_step(batch):
                    return
                if num_steps == job.save_after:
                    engine.save_checkpoint(str(job.folder))
                    return

    def _loader(self, job: Job, engine: Any) -> tuple[Any, DistributedSampler[Any] | None]:
        if job.sampler is not None:
            loader = engine.deepspeed_io(
                job.dataset, data_sampler=job.sampler, pin_memory=False, num_local_io_workers=job.workers
            )
            return loader, None
        sampler: DistributedSampler[Any] = DistributedSampler(job.dataset, self.size, self.rank)
        return sampled_loader(job, self.size, sampler), sampler

    def in_order(self, job: Job) -> DataLoader[Any]:
        return loader_in_order(job, self.size, self.rank)
