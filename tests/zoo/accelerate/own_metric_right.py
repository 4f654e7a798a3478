"""Right: trains a regressor and reports its validation error over all processes after each epoch."""

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH_SIZE = 24


class Trainer:
    """Model, optimizer and loaders, prepared by Accelerate."""

    def __init__(self) -> None:
        config = DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True)
        self.accelerator = Accelerator(cpu=True, dataloader_config=config)
        model = nn.Sequential(nn.Linear(6, 24), nn.LayerNorm(24), nn.SiLU(), nn.Linear(24, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
        self.model, self.optimizer, self.train_loader, self.valid_loader = self.accelerator.prepare(
            model,
            optimizer,
            DataLoader(self.make_dataset(120, seed=1), batch_size=BATCH_SIZE, shuffle=True),
            DataLoader(self.make_dataset(72, seed=2), batch_size=BATCH_SIZE),
        )
        self.criterion = nn.MSELoss()

    @staticmethod
    def make_dataset(size: int, seed: int) -> TensorDataset:
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.rand(size, 6, generator=generator)
        targets = (inputs[:, :3] * inputs[:, 3:]).sum(dim=1, keepdim=True)
        return TensorDataset(inputs, targets)

    def train_epoch(self) -> None:
        self.model.train()
        for inputs, targets in self.train_loader:
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(inputs), targets)
            self.accelerator.backward(loss)
            self.optimizer.step()

    @torch.no_grad()
    def validate(self) -> float:
        self.model.eval()
        squares, count = torch.zeros(()), torch.zeros(())
        for inputs, targets in self.valid_loader:
            squares += (self.model(inputs) - targets).square().sum()
            count += len(targets)
        squares, count = self.accelerator.reduce(torch.stack([squares, count]), reduction="sum")
        return float(squares / count)


def main() -> None:
    set_seed(1234)
    trainer = Trainer()
    for epoch in range(1, 3):
        trainer.train_epoch()
        error = trainer.validate()
        trainer.accelerator.print(f"epoch {epoch}  val_mse {error:.6f}")
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main()
