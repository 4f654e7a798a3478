"""Samestep, with a loop of the user's own."""

import samestep
from benchmarks.peers.job import Job
from benchmarks.peers.libraries.base import Library, evaluated


class WithSamestep(Library):
    """`samestep.init()` and the five lines that follow it."""

    settings = (
        'fast mode, update="auto": ranks update a slice each where that pays; as it comes, so through shared '
        "memory, with freed memory kept and torch's compiler not loaded"
    )

    def __init__(self) -> None:
        self._world = samestep.init()
        self.rank, self.size = self._world.rank, self._world.size

    def train(self, job: Job) -> None:
        world = self._world
        world.set_mode(job.shards)
        world.reset()
        model, optimizer = job.made()
        model = world.replicate(model)
        loader = world.loader(
            job.dataset,
            batch_size=job.batch_size,
            sampler=job.sampler,
            collate=job.collate,
            workers=job.workers,
        )
        num_steps = 0
        if job.folder is not None:
            checkpoints = world.checkpoints(job.folder, model=model, optimizer=optimizer, loader=loader)
            num_steps = checkpoints.restore() if job.resume_at is not None else 0
        for _ in range(job.epochs):
            for batch in loader:
                with world.step(optimizer, update="auto") as step:
                    step.backward(job.total(model, batch), job.weight(batch))
                if not step.is_last_turn:
                    continue
                num_steps += 1
                assert world.share is not None
                if job.after_step(batch if world.share.count else None):
                    return
                if num_steps == job.save_after:
                    checkpoints.save()
                    checkpoints.wait()
                    return

    def predict(self, job: Job) -> list[float]:
        # here, because a start without predictions is measured too
        from samestep.train.predict import predictions

        self._world.reset()
        model, _ = job.made()
        model = self._world.replicate(model)
        task = samestep.Task(
            model=job.make_model,
            train_data=lambda: job.dataset,
            loss=lambda model, batch: (job.total(model, batch), job.weight(batch)),
            optimizer=job.make_optimizer,
            batch_size=job.batch_size,
            epochs=1,
            predict=job.output,
        )
        loader = self._world.loader(job.dataset, batch_size=job.batch_size, train=False)
        return [
            row
            for arrays in predictions(task, self._world, model, loader)
            for row in arrays["output"].tolist()
        ]

    def average(self, job: Job) -> float:
        from torchmetrics import MeanMetric

        self._world.reset()
        model, _ = job.made()
        model = self._world.replicate(model)
        metric = MeanMetric()
        loader = self._world.loader(job.dataset, batch_size=job.batch_size, train=False)
        for values in evaluated(job, model, loader):
            metric.update(values)
        return float(self._world.compute(metric))

    def close(self) -> None:
        self._world.close()
