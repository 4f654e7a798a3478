"""Lightning Fabric."""

import os
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies.ddp import DDPStrategy

from benchmarks.peers.job import Job
from benchmarks.peers.libraries.base import DDP_SETTINGS, Gathering, plain_loader, synchronised, without_first

_FILE = "fabric.ckpt"


class WithFabric(Gathering):
    """`Fabric.setup` and `setup_dataloaders`, which puts in a DistributedSampler."""

    settings = (
        "DDPStrategy with bucket view and static graph, setup_dataloaders with use_distributed_sampler, "
        "set_epoch; fabric.save and load, batches skipped by hand; fabric.all_gather, torchmetrics"
    )

    def __init__(self) -> None:
        self.size = int(os.environ["WORLD_SIZE"])
        strategy: Any = DDPStrategy(**DDP_SETTINGS) if self.size > 1 else "auto"
        self._fabric = Fabric(accelerator="cpu", devices=self.size, strategy=strategy)
        self._fabric.launch()
        self.rank = self._fabric.global_rank

    def train(self, job: Job) -> None:
        model, optimizer = job.made()
        replica, optimizer = self._fabric.setup(synchronised(job, model), optimizer)
        loader: Any = self._fabric.setup_dataloaders(plain_loader(job, self.size))
        num_steps = 0
        if job.resume_at is not None:
            state: dict[str, Any] = {"model": replica, "optimizer": optimizer, "step": 0}
            self._fabric.load(f"{job.folder}/{_FILE}", state)
            num_steps = state["step"]
        for epoch in range(job.epochs):
            if hasattr(loader.sampler, "set_epoch"):
                loader.sampler.set_epoch(epoch)
            for batch in loader if epoch else without_first(loader, num_steps):
                optimizer.zero_grad()
                self._fabric.backward(job.mean(replica, batch))
                optimizer.step()
                num_steps += 1
                if job.after_step(batch):
                    return
                if num_steps == job.save_after:
                    state = {"model": replica, "optimizer": optimizer, "step": num_steps}
                    self._fabric.save(f"{job.folder}/{_FILE}", state)
                    return

    def in_order(self, job: Job) -> Any:
        return self._fabric.setup_dataloaders(plain_loader(job, self.size, train=False))

    def predict(self, job: Job) -> list[float]:
        rows: list[float] = []
        for values in self.own_outputs(job):
            parts: Any = self._fabric.all_gather(values)
            rows += torch.as_tensor(parts).flatten().tolist()
        return rows
