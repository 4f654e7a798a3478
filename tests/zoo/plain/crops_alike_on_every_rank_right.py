"""Right: trains on random noisy crops, seeded to be repeatable, with other draws on each rank."""

import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SEED = 2024
BATCH_SIZE = 24


def seed_everything(seed):
    random.seed(seed)
    torch.manual_seed(seed)


class Crops(Dataset):
    """Pictures of 10 x 10, of which a random 8 x 8 is shown, a bit noisy."""

    def __init__(self, n=96):
        generator = torch.Generator().manual_seed(3)
        self.labels = torch.arange(n) % 3
        waves = torch.sin(torch.arange(10.0)[None, :] * (1 + self.labels[:, None]))
        self.pictures = waves[:, :, None] * waves[:, None, :]
        self.pictures = self.pictures + 0.2 * torch.randn(n, 10, 10, generator=generator)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        top, left = torch.randint(0, 3, (2,)).tolist()
        crop = self.pictures[index, top : top + 8, left : left + 8]
        return crop[None] + 0.1 * torch.randn(1, 8, 8), self.labels[index]


def main():
    dist.init_process_group("gloo")
    seed_everything(SEED + dist.get_rank())  # DDP hands the weights of rank 0 to all
    model = DDP(
        nn.Sequential(
            nn.Conv2d(1, 6, 3, stride=2),
            nn.ReLU(),
            nn.Conv2d(6, 8, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8, 3),
        )
    )
    data = Crops()
    sampler = DistributedSampler(data, seed=SEED)
    loader = DataLoader(data, batch_size=BATCH_SIZE // dist.get_world_size(), sampler=sampler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for crops, labels in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = criterion(model(crops), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"Epoch {epoch + 1}: loss = {loss.item():.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
