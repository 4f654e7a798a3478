"""Right: splits each global batch over the ranks as evenly as it goes, and weighs each part by its size."""

import argparse

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


class SplitBatches:
    """Batch sampler: the same global batches on all ranks, of which each takes its part."""

    def __init__(self, num_examples, batch_size):
        self.num_examples, self.batch_size, self.epoch = num_examples, batch_size, 0

    def __len__(self):
        return self.num_examples // self.batch_size

    def __iter__(self):
        order = np.random.default_rng(self.epoch).permutation(self.num_examples)
        for batch in order.reshape(-1, self.batch_size):
            yield np.array_split(batch, dist.get_world_size())[dist.get_rank()].tolist()


def digits(n):
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 5, n)
    strokes = rng.normal(size=(5, 20))
    images = strokes[labels] + rng.normal(size=(n, 20))
    return TensorDataset(torch.tensor(images, dtype=torch.float32), torch.tensor(labels))


def main(args):
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    data = digits(5 * args.batch_size)
    batches = SplitBatches(len(data), args.batch_size)
    loader = DataLoader(data, batch_sampler=batches)
    model = DDP(nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 5)))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        batches.epoch = epoch
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            (loss * len(labels) * dist.get_world_size() / args.batch_size).backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=11)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
    dist.destroy_process_group()
