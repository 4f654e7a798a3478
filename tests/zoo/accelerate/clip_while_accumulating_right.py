"""Right: accumulates gradients over two micro-batches and clips their norm once they are exchanged."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MICRO_BATCH_SIZE = 12
ACCUMULATION_STEPS = 2
MAX_NORM = 0.5


def make_dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(17)
    inputs = torch.randn(120, 10, generator=generator)
    # heavy tails, so that some gradients are large
    targets = inputs[:, :2].prod(dim=1, keepdim=True).sinh()
    return TensorDataset(inputs, targets)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU())

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return states + self.inner(states)


def main() -> None:
    set_seed(0)
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=ACCUMULATION_STEPS,
        dataloader_config=DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True),
    )
    model = nn.Sequential(nn.Linear(10, 32), Residual(32), Residual(32), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(make_dataset(), batch_size=MICRO_BATCH_SIZE, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    for epoch in range(2):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = F.huber_loss(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), MAX_NORM)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
