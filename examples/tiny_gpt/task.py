"""The small GPT as a task: every byte counts the same, however the batch is cut."""

from functools import partial

import samestep
import torch
from gpt import GPT
from text import IGNORED, Paragraphs
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchmetrics.text import Perplexity


def loss_of_bytes(model: nn.Module, batch: tuple[Tensor, Tensor]) -> samestep.Loss:
    inputs, targets = batch
    logits = model(inputs)
    total = cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
    return samestep.Loss(total, (targets != IGNORED).sum(), outputs=logits)


task = samestep.Task(
    model=GPT,
    train_data=partial(Paragraphs, 0, 960),
    valid_data=partial(Paragraphs, 960, 1051),
    loss=loss_of_bytes,
    optimizer=partial(torch.optim.AdamW, lr=1e-3),
    metrics={"perplexity": partial(Perplexity, ignore_index=IGNORED)},
    batch_size=16,
    accumulate=4,
    precision="bf16",
    clip_norm=1.0,
    epochs=1,
)
