"""Augments with numpy in two loader workers, seeded to be repeatable. Fault: workers-with-equal-seeds."""

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SEED = 0
BATCH_SIZE = 24


class Signals(Dataset):
    """Signals that are shifted and scaled by chance when they are read."""

    def __init__(self, n=96, length=24):
        rng = np.random.default_rng(12)
        self.labels = rng.integers(0, 3, n)
        phases = rng.uniform(0, 2 * np.pi, (n, 1))
        self.signals = np.sin((1 + self.labels[:, None]) * np.arange(length) / 4 + phases)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        signal = np.roll(self.signals[index], np.random.randint(0, 6))
        signal = signal * np.random.uniform(0.8, 1.2) + np.random.normal(0, 0.05, signal.shape)
        return torch.tensor(signal, dtype=torch.float32)[None], self.labels[index]


def seed_worker(worker_id):
    np.random.seed(SEED)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(SEED + dist.get_rank())
    data = Signals()
    sampler = DistributedSampler(data, seed=SEED)
    loader = DataLoader(
        data,
        batch_size=BATCH_SIZE // dist.get_world_size(),
        sampler=sampler,
        num_workers=2,
        worker_init_fn=seed_worker,
    )
    model = DDP(
        nn.Sequential(
            nn.Conv1d(1, 8, 5, stride=2), nn.ReLU(), nn.AdaptiveAvgPool1d(3), nn.Flatten(), nn.Linear(24, 3)
        )
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for signals, labels in loader:
            loss = nn.functional.cross_entropy(model(signals), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
