"""Ray Train: a TorchTrainer whose workers train with torch and Ray's `prepare_…` functions."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from benchmarks.peers.job import Job
from benchmarks.peers.libraries.base import DDP_SETTINGS, Gathering, plain_loader, synchronised, without_first

_FILE = "ray.pt"


class WithRay(Gathering):
    """On a worker, inside of `train_loop_per_worker`."""

    settings = (
        "TorchTrainer with gloo, prepare_model with DDP's bucket view and static graph, prepare_data_loader "
        "with its DistributedSampler, set_epoch; batches skipped by hand; outputs gathered with torch, "
        "torchmetrics"
    )

    def __init__(self) -> None:
        self._ray: Any = import_module("ray.train.torch")
        context = import_module("ray.train").get_context()
        self.rank, self.size = context.get_world_rank(), context.get_world_size()

    def train(self, job: Job) -> None:
        model, optimizer = job.made()
        num_steps = 0
        if job.resume_at is not None:
            state = torch.load(f"{job.folder}/{_FILE}", weights_only=True)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            num_steps = state["step"]
        replica = self._ray.prepare_model(
            synchronised(job, model), parallel_strategy_kwargs=DDP_SETTINGS if self.size > 1 else None
        )
        loader = self._ray.prepare_data_loader(plain_loader(job, self.size))
        for epoch in range(job.epochs):
            if hasattr(loader.sampler, "set_epoch"):
                loader.sampler.set_epoch(epoch)
            for batch in loader if epoch else without_first(loader, num_steps):
                optimizer.zero_grad(set_to_none=True)
                job.mean(replica, batch).backward()
                optimizer.step()
                num_steps += 1
                if job.after_step(batch):
                    return
                if num_steps == job.save_after:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    if self.rank == 0:
                        torch.save({**state, "step": num_steps}, f"{job.folder}/{_FILE}")
                    return

    def in_order(self, job: Job) -> Any:
        return self._ray.prepare_data_loader(plain_loader(job, self.size, train=False))

    def close(self) -> None:
        """Ray ends the process group of its workers."""


def launch(size: int, serve: Callable[..., None], *arguments: str) -> None:
    """Run `serve(*arguments)` on `size` workers of a Ray of our own, and end it."""
    ray: Any = import_module("ray")
    train: Any = import_module("ray.train")
    torch_trainer: Any = import_module("ray.train.torch")
    ray.init("local", num_cpus=size, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    trainer = torch_trainer.TorchTrainer(
        lambda: serve(*arguments),
        torch_config=torch_trainer.TorchConfig(backend="gloo"),
        scaling_config=train.ScalingConfig(num_workers=size, use_gpu=False),
    )
    try:
        trainer.fit()
    finally:
        ray.shutdown()


def main() -> None:
    """`python -m benchmarks.peers.libraries.with_ray SIZE ARGUMENTS`: the driver of a crew."""
    from benchmarks.peers.rank import serve

    launch(int(sys.argv[1]), serve, *sys.argv[2:])


if __name__ == "__main__":
    main()
