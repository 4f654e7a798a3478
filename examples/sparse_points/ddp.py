"""The same network on N ranks, as it is mostly written: each has its own norms and takes its own mean."""

import torch
import torch.distributed as dist
from scans import Scans, collate
from sparse import SparseUNet
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

BATCH_SIZE, EPOCHS = 8, 1


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = Scans(0, 160)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, BATCH_SIZE // dist.get_world_size(), sampler=sampler, collate_fn=collate)
    model = DistributedDataParallel(SparseUNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for points, reflectance, lengths, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(points, reflectance, lengths), labels)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
