"""Trains on vector fields with a norm layer of its own. Fault: norm-not-synchronised."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

NUM_FIELDS = 6
BATCH_SIZE = 12


class FieldNorm(nn.Module):
    """Divides each field of vectors by its mean length, which does not depend on how it is turned."""

    def __init__(self, num_fields, momentum=0.1, eps=1e-5):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(num_fields, 1))
        self.register_buffer("running_square", torch.ones(num_fields, 1))
        self.momentum, self.eps = momentum, eps

    def forward(self, fields):  # batch, field, vector
        if self.training:
            square = (fields**2).sum(2, keepdim=True).mean(0)
            with torch.no_grad():
                self.running_square.lerp_(square, self.momentum)
        else:
            square = self.running_square
        return fields * self.scale / (square + self.eps).sqrt()


class FieldNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(3, NUM_FIELDS, bias=False)
        self.norm = FieldNorm(NUM_FIELDS)
        self.out = nn.Linear(NUM_FIELDS, 1)

    def forward(self, vectors):  # batch, 3 vectors, 2 numbers
        fields = self.norm(self.mix(vectors.transpose(1, 2)).transpose(1, 2))
        lengths = (fields**2).sum(2)
        return self.out(torch.tanh(lengths))


def make_vectors(n=60):
    generator = torch.Generator().manual_seed(6)
    vectors = torch.randn(n, 3, 2, generator=generator) * torch.rand(n, 1, 1, generator=generator) * 3
    return TensorDataset(vectors, (vectors[:, 0] * vectors[:, 1]).sum(1, keepdim=True).abs().sqrt())


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = make_vectors()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH_SIZE // dist.get_world_size(), sampler=sampler)
    model = DDP(FieldNet())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for vectors, target in loader:
            loss = nn.functional.mse_loss(model(vectors), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}, loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
