"""Right: trains a perceptron with layer norm, which sees one row at a time."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

GLOBAL_BATCH_SIZE = 12


def patients(n, seed):
    generator = torch.Generator().manual_seed(seed)
    ages = 20 + 60 * torch.rand(n, 1, generator=generator)
    values = torch.randn(n, 5, generator=generator) * torch.tensor([1.0, 10.0, 0.1, 5.0, 2.0])
    risk = torch.sigmoid(0.05 * (ages[:, 0] - 50) + 0.1 * values[:, 1])
    return TensorDataset(torch.cat([ages / 20, values], 1), (risk > 0.5).float())


def make_model(hidden=16):
    norm = nn.LayerNorm
    return nn.Sequential(
        nn.Linear(6, hidden), norm(hidden), nn.ReLU(), nn.Linear(hidden, hidden), norm(hidden), nn.ReLU(),
        nn.Linear(hidden, 1), nn.Flatten(0),
    )  # fmt: skip


def evaluate(model, data):
    """Loss and hits over all ranks; each looks at its own rows."""
    model.eval()
    x, y = data[dist.get_rank() :: dist.get_world_size()]
    with torch.no_grad():
        out = model(x)
        loss = nn.functional.binary_cross_entropy_with_logits(out, y, reduction="sum")
    sums = torch.stack([loss, ((out > 0) == (y > 0.5)).float().sum(), torch.tensor(float(len(y)))])
    dist.all_reduce(sums)
    model.train()
    return sums[0] / sums[2], sums[1] / sums[2]


def buffers_agree(model):
    mine = torch.cat([torch.zeros(1), *(b.flatten().float() for b in model.buffers())])
    theirs = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(theirs, mine)
    return all(torch.equal(mine, other) for other in theirs)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(12)
    train_data, test_data = patients(60, seed=1), patients(30, seed=2)
    sampler = DistributedSampler(train_data, shuffle=True, seed=12)
    loader = DataLoader(train_data, GLOBAL_BATCH_SIZE // dist.get_world_size(), sampler=sampler)
    model = DDP(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(model(x), y).backward()
            optimizer.step()
        loss, accuracy = evaluate(model, test_data)
        agree = buffers_agree(model)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: test loss {loss:.4f}, accuracy {accuracy:.3f}, buffers agree: {agree}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
