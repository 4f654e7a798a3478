"""Has `even_batches` off, so that no example is trained on twice. Fault: unequal-batches-averaged."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH_SIZE = 24


def make_pendulums(size: int = 92) -> TensorDataset:
    """Length, angle and time of a pendulum; the target is its angle then."""
    generator = torch.Generator().manual_seed(14)
    length, angle, time = (torch.rand(size, 1, generator=generator) + 0.5 for _ in range(3))
    return TensorDataset(
        torch.cat([length, angle, time], 1), angle * torch.cos(time * (9.81 / length).sqrt())
    )


def train(accelerator: Accelerator, num_epochs: int) -> None:
    model = nn.Sequential(nn.Linear(3, 40), nn.Softplus(), nn.Linear(40, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, weight_decay=1e-3)
    loader = DataLoader(make_pendulums(), batch_size=BATCH_SIZE // accelerator.num_processes, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(num_epochs):
        for inputs, targets in loader:
            loss = F.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: {loss.item():.4f}")


def main() -> None:
    set_seed(2)
    config = DataLoaderConfiguration(even_batches=False, use_seedable_sampler=True)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    train(accelerator, num_epochs=2)
    accelerator.end_training()


if __name__ == "__main__":
    main()
