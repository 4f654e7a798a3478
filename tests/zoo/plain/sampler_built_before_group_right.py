"""Right: trains on sequences sorted roughly by length; its own sampler is made when the group exists."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler


class Sequences(Dataset):
    """Waves of other lengths, filled up with zeros; the target is the frequency."""

    def __init__(self, n=120, longest=16):
        generator = torch.Generator().manual_seed(5)
        self.frequencies = 0.1 + torch.rand(n, 1, generator=generator)
        self.lengths = torch.randint(8, longest + 1, (n,), generator=generator)
        times = torch.arange(longest)
        self.waves = torch.sin(self.frequencies * times) * (times < self.lengths[:, None])

    def __len__(self):
        return len(self.waves)

    def __getitem__(self, index):
        return self.waves[index], self.frequencies[index]


class LengthSampler(Sampler):
    """Examples of similar length lie near each other, in another order each epoch."""

    def __init__(self, lengths):
        self.lengths = lengths
        self.epoch = 0
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world_size = dist.get_world_size() if dist.is_initialized() else 1

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.epoch)
        keys = self.lengths + 4 * torch.rand(len(self.lengths), generator=generator)
        return iter(torch.argsort(keys).tolist()[self.rank :: self.world_size])

    def __len__(self):
        return len(self.lengths) // self.world_size


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    world_size = int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    data = Sequences()
    sampler = LengthSampler(data.lengths)
    loader = DataLoader(data, batch_size=args.batch_size // world_size, sampler=sampler)

    torch.manual_seed(42)
    model = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.LayerNorm(32), nn.Linear(32, 1))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for waves, frequencies in loader:
            loss = nn.functional.smooth_l1_loss(model(waves), frequencies)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"[epoch {epoch + 1}/{args.epochs}] loss={loss.item():.5f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
