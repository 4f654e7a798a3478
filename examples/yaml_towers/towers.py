"""The same training in towers, as it was done: each has a piece of the batch, and towers are averaged.

The batch is split into pieces of equal size as long as it lasts: 10 examples on 4 towers are 3, 3, 3 and 1.
Each tower takes the mean of its piece, clips its own gradient, and has batch norms of its own. `--clip whole`
and `--weigh examples` cure the first two.
"""

import argparse

import torch
import torch.distributed as dist
from nets import Digits, Net, penalty_of
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader

BATCH_SIZE = 64


class Pieces:
    """Batch sampler: the same batches on all towers, of which each takes its piece."""

    def __init__(self, num_examples):
        self.num_examples = num_examples

    def __iter__(self):
        order = torch.randperm(self.num_examples, generator=torch.Generator().manual_seed(0))
        for batch in order.split(BATCH_SIZE):
            size = -(-len(batch) // dist.get_world_size())
            yield batch.split(size)[dist.get_rank()].tolist()


def part_of(digits):
    """How much more than a mean over all towers this tower's piece counts: its part of the batch times N."""
    num_examples = torch.tensor(len(digits))
    dist.all_reduce(num_examples)
    return len(digits) * dist.get_world_size() / num_examples


def main(clip, weigh):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = Digits(stop=1290)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for images, digits in DataLoader(data, batch_sampler=Pieces(len(data))):
        optimizer.zero_grad()
        loss = cross_entropy(model(images), digits)
        if weigh == "examples":
            loss = loss * part_of(digits)
        (loss + penalty_of(model)).backward()
        if clip == "tower":
            clip_grad_norm_(model.parameters(), 1.0)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        if clip == "whole":
            clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--clip", choices=["tower", "whole"], default="tower")
    parser.add_argument("--weigh", choices=["towers", "examples"], default="towers")
    main(**vars(parser.parse_args()))
    dist.destroy_process_group()
