"""Counts a confusion matrix inside the model while it trains. Fault: metric-overwritten."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

NUM_CLASSES = 3
BATCH_SIZE = 24


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.LayerNorm(24))
        self.head = nn.Linear(24, NUM_CLASSES)
        self.register_buffer("confusion", torch.zeros(NUM_CLASSES, NUM_CLASSES, dtype=torch.long))

    def forward(self, x):
        return self.head(self.body(x))

    def count(self, logits, labels):
        ones = torch.ones_like(labels)
        self.confusion.index_put_((labels, logits.argmax(1)), ones, accumulate=True)


def make_data(n=120):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 8, generator=generator)
    return TensorDataset(x, (x[:, :NUM_CLASSES] + 0.5 * x[:, 3:6]).argmax(1))


def train_epoch(model, loader, optimizer):
    """Returns the confusion matrix of the epoch, over all ranks."""
    model.module.confusion.zero_()
    for x, labels in loader:
        logits = model(x)
        model.module.count(logits, labels)
        optimizer.zero_grad()
        F.cross_entropy(logits, labels).backward()
        optimizer.step()
    total = model.module.confusion.clone()
    dist.all_reduce(total)
    return total


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = make_data()
    sampler = DistributedSampler(data, world, rank)
    loader = DataLoader(data, BATCH_SIZE // world, sampler=sampler)
    model = DDP(Classifier())
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        confusion = train_epoch(model, loader, optimizer)
        if rank == 0:
            accuracy = confusion.diag().sum().item() / confusion.sum().item()
            print(f"epoch {epoch}: {confusion.tolist()} accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
