"""Right: trains with a batch norm that looks at the points of all ranks, made when there is a group."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class SyncNorm(nn.Module):
    """Batch norm over the rows of all ranks; plain batch norm where there is only one process."""

    def __init__(self, size):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))
        self.register_buffer("running_mean", torch.zeros(size))
        self.register_buffer("running_var", torch.ones(size))
        self.is_distributed = dist.is_available() and dist.is_initialized()

    def mean(self, x):
        total = torch.cat([x.sum(0), x.new_tensor([float(len(x))])])
        if self.is_distributed:
            total = SumOverRanks.apply(total)
        return total[:-1] / total[-1]

    def forward(self, x):
        mean, var = self.running_mean, self.running_var
        if self.training:
            mean = self.mean(x)
            var = self.mean((x - mean) ** 2)
            self.running_mean.lerp_(mean.detach(), 0.1)
            self.running_var.lerp_(var.detach(), 0.1)
        return (x - mean) / (var + 1e-5).sqrt() * self.weight + self.bias


def points(n=120):
    generator = torch.Generator().manual_seed(14)
    x = 2 * torch.rand(n, 3, generator=generator) - 1
    return TensorDataset(x, (x.norm(dim=1) > 0.9).long())


def main():
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(3, 16), SyncNorm(16), nn.ReLU(), nn.Linear(16, 2))
    model = DistributedDataParallel(model)
    data = points()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=24 // dist.get_world_size(), sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if dist.get_rank() == 0:
                print(f"loss: {loss.item():.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
