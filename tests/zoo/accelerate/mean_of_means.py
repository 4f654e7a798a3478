"""Averages the validation accuracy and loss over the processes. Fault: metric-averaged-without-counts."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH_SIZE = 24


def make_spirals(size: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(size) % 2
    radius = torch.rand(size, generator=generator) * 3
    angle = radius + 3.14 * labels
    noise = torch.randn(size, 2, generator=generator) * 0.1
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], 1) + noise, labels)


def train(
    accelerator: Accelerator, model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader
) -> None:
    model.train()
    for points, labels in loader:
        loss = F.cross_entropy(model(points), labels)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()


def validate(accelerator: Accelerator, model: nn.Module, loader: DataLoader) -> tuple[float, float]:
    model.eval()
    num_correct = num_seen = 0
    loss_sum = 0.0
    with torch.no_grad():
        for points, labels in loader:
            logits = model(points)
            num_correct += (logits.argmax(dim=1) == labels).sum().item()
            num_seen += len(labels)
            loss_sum += F.cross_entropy(logits, labels, reduction="sum").item()
    means = torch.tensor([num_correct / num_seen, loss_sum / num_seen])
    accuracy, loss = accelerator.reduce(means, reduction="mean").tolist()
    return accuracy, loss


def main() -> None:
    set_seed(0)
    # even_batches would repeat examples of the validation set
    config = DataLoaderConfiguration(split_batches=True, even_batches=False, use_seedable_sampler=True)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    model = nn.Sequential(nn.Linear(2, 40), nn.Tanh(), nn.Linear(40, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    train_loader = DataLoader(make_spirals(120, seed=1), batch_size=BATCH_SIZE, shuffle=True)
    valid_loader = DataLoader(make_spirals(43, seed=2), batch_size=BATCH_SIZE)
    model, optimizer, train_loader, valid_loader = accelerator.prepare(
        model, optimizer, train_loader, valid_loader
    )
    for epoch in range(2):
        train(accelerator, model, optimizer, train_loader)
        accuracy, loss = validate(accelerator, model, valid_loader)
        accelerator.print(f"epoch {epoch} val_acc {accuracy:.4f} val_loss {loss:.5f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
