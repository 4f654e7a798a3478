"""Right: exchanges gradients by hand and keeps the norm of their mean at most 0.1."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MAX_NORM = 0.1


def chains(n=120, length=10):
    """Random walks; the target is where they go next."""
    g = torch.Generator().manual_seed(23)
    steps = torch.randn(n, length + 1, 2, generator=g)
    walks = (0.7 * steps + 0.3 * steps.roll(1, dims=1)).cumsum(1)
    return TensorDataset(walks[:, :-1], walks[:, -1])


class Walker(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(2, 16, batch_first=True)
        self.out = nn.Linear(16, 2)

    def forward(self, walks):
        return walks[:, -1] + self.out(self.rnn(walks)[0][:, -1])


def all_reduce_gradients(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad.div_(dist.get_world_size())


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = chains()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=24 // dist.get_world_size(), sampler=sampler)
    model = Walker()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for walks, ends in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(walks), ends)
            loss.backward()
            all_reduce_gradients(model)
            clip_grad_norm_(model.parameters(), MAX_NORM)
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
