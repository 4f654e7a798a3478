"""Trains the small GPT with DDP, gradient accumulation and bf16; `--fault` averages as most scripts do."""

import argparse
from contextlib import nullcontext
from itertools import islice

import torch
import torch.distributed as dist
from gpt import GPT
from text import IGNORED, Paragraphs
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

BATCH_SIZE, ACCUMULATE = 16, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", action="store_true")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--steps", type=int, default=6)
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    world_size = dist.get_world_size()
    torch.manual_seed(0)
    data = Paragraphs(0, 960)
    loader = DataLoader(data, BATCH_SIZE // ACCUMULATE // world_size, sampler=DistributedSampler(data))
    model = DistributedDataParallel(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = iter(loader)
    for _ in range(arguments.steps):
        turns = list(islice(batches, ACCUMULATE))
        num_bytes = sum((targets != IGNORED).sum() for _, targets in turns)
        dist.all_reduce(num_bytes)
        for turn, (inputs, targets) in enumerate(turns, start=1):
            with model.no_sync() if turn < len(turns) else nullcontext():
                with torch.autocast("cpu", torch.bfloat16, enabled=arguments.precision == "bf16"):
                    logits = model(inputs).float().flatten(0, 1)
                if arguments.fault:
                    loss = cross_entropy(logits, targets.flatten(), ignore_index=IGNORED) / len(turns)
                else:
                    total = cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="sum")
                    loss = total * world_size / num_bytes  # DDP divides by the number of ranks
                loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
