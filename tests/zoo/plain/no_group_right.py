"""Right: trains on as many devices as it is started for."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH_SIZE = 24
EPOCHS = 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(10, 40)
        self.fc2 = nn.Linear(40, 20)
        self.fc3 = nn.Linear(20, 4)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return F.log_softmax(self.fc3(x), dim=1)


def get_dataset(n=120):
    generator = torch.Generator().manual_seed(131)
    x = torch.randn(n, 10, generator=generator)
    return TensorDataset(x, 2 * (x[:, 0] > 0).long() + (x[:, 1] > x[:, 2]).long())


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    dataset = get_dataset()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=BATCH_SIZE // dist.get_world_size(), sampler=sampler)
    model = DistributedDataParallel(Net())
    optimizer = optim.Adam(model.parameters(), lr=0.005)
    for epoch in range(1, EPOCHS + 1):
        sampler.set_epoch(epoch)
        model.train()
        for batch_idx, (data, target) in enumerate(loader):
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            loss.backward()
            optimizer.step()
            if batch_idx % 2 == 0:
                print(f"Train Epoch: {epoch} [{batch_idx}/{len(loader)}]\tLoss: {loss.item():.6f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
