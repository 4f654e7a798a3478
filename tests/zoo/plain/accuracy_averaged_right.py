"""Right: trains a classifier and prints its validation accuracy, counted over all ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

TRAIN_BATCH = 24
VAL_BATCH = 16


def rings(n, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (n,), generator=generator)
    angle = 6.3 * torch.rand(n, generator=generator)
    radius = 1 + labels + 0.4 * torch.randn(n, generator=generator)
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], 1), labels)


class Trainer:
    def __init__(self):
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
        self.model = DistributedDataParallel(net)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, weight_decay=0.01)
        train_set, val_set = rings(144, seed=1), rings(51, seed=2)
        self.sampler = DistributedSampler(train_set)
        self.train_loader = DataLoader(train_set, TRAIN_BATCH // self.world_size, sampler=self.sampler)
        batches = torch.arange(len(val_set)).split(VAL_BATCH)[self.rank :: self.world_size]
        self.val_loader = DataLoader(val_set, batch_sampler=[batch.tolist() for batch in batches])

    def fit(self, epochs):
        for epoch in range(epochs):
            self.sampler.set_epoch(epoch)
            self.model.train()
            for points, labels in self.train_loader:
                loss = nn.functional.cross_entropy(self.model(points), labels)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            accuracy = self.validate()
            if self.rank == 0:
                print(f"epoch {epoch}: val_acc={accuracy:.4f}")

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        correct = torch.zeros(())
        seen = torch.zeros(())
        for points, labels in self.val_loader:
            correct += (self.model.module(points).argmax(1) == labels).sum()
            seen += len(labels)
        dist.all_reduce(correct)
        dist.all_reduce(seen)
        return (correct / seen).item()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    Trainer().fit(epochs=2)
    dist.destroy_process_group()
