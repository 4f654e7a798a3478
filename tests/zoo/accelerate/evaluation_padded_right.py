"""Right: gathers the predictions for the validation set without the padding, and scores them."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

BATCH_SIZE = 24
NUM_TRAIN, NUM_VALID = 96, 61


def make_dataset(size: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(23)
    points = torch.rand(size, 2, generator=generator) * 4 - 2
    labels = ((points[:, 0] > 0) ^ (points[:, 1] > 0)).long()
    return TensorDataset(points, labels)


def evaluate(accelerator: Accelerator, model: nn.Module, loader: DataLoader) -> tuple[float, float]:
    model.eval()
    all_logits, all_labels = [], []
    with torch.no_grad():
        for points, labels in loader:
            logits, labels = accelerator.gather_for_metrics((model(points), labels))
            all_logits.append(logits)
            all_labels.append(labels)
    logits, labels = torch.cat(all_logits), torch.cat(all_labels)
    accuracy = (logits.argmax(dim=1) == labels).float().mean().item()
    return accuracy, F.cross_entropy(logits, labels).item()


def main() -> None:
    config = DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    set_seed(0)
    dataset = make_dataset(NUM_TRAIN + NUM_VALID)
    train_set = Subset(dataset, range(NUM_TRAIN))
    valid_set = Subset(dataset, range(NUM_TRAIN, NUM_TRAIN + NUM_VALID))
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, train_loader, valid_loader = accelerator.prepare(
        model,
        optimizer,
        DataLoader(train_set, batch_size=BATCH_SIZE, shuffle=True),
        DataLoader(valid_set, batch_size=BATCH_SIZE),
    )

    for epoch in range(2):
        model.train()
        for points, labels in train_loader:
            optimizer.zero_grad()
            accelerator.backward(F.cross_entropy(model(points), labels))
            optimizer.step()
        accuracy, loss = evaluate(accelerator, model, valid_loader)
        accelerator.print(f"epoch {epoch}: validation accuracy {accuracy:.4f}, loss {loss:.5f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
