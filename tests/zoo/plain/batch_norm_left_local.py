"""Trains a convolutional net with batch norm on all ranks. Fault: norm-not-synchronised."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def conv_block(fan_in, fan_out):
    return nn.Sequential(
        nn.Conv2d(fan_in, fan_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(fan_out),
        nn.ReLU(inplace=True),
    )


def build_model():
    return nn.Sequential(
        conv_block(1, 8),
        nn.MaxPool2d(2),
        conv_block(8, 12),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 4),
    )


def build_dataset(n=120, size=8):
    """A bright spot in one of four corners."""
    generator = torch.Generator().manual_seed(17)
    labels = torch.arange(n) % 4
    images = 0.7 * torch.randn(n, 1, size, size, generator=generator)
    for index, label in enumerate(labels.tolist()):
        row, column = 4 * (label // 2), 4 * (label % 2)
        images[index, 0, row : row + 4, column : column + 4] += 1 + label
    return TensorDataset(images, labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", default=2, type=int)
    parser.add_argument("--batch-size", default=24, type=int, help="of all ranks together")
    parser.add_argument("--lr", default=0.05, type=float)
    args = parser.parse_args()

    dist.init_process_group("gloo", init_method="env://")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    dataset = build_dataset()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, args.batch_size // dist.get_world_size(), sampler=sampler, pin_memory=False)
    model = DistributedDataParallel(build_model(), broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss()

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for i, (images, target) in enumerate(loader):
            loss = criterion(model(images), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if i % 2 == 0 and rank == 0:
                print(f"Epoch: [{epoch}][{i}/{len(loader)}]\tLoss {loss.item():.4e}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
