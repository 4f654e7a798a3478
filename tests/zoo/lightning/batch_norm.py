"""Trains a small net with batch norm on every layer, the batch shared out to the devices.

Fault: norm-not-synchronised.
"""

import os

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH_SIZE = 24
WORLD_SIZE = int(os.environ["WORLD_SIZE"])


def make_dataset(size: int = 120) -> TensorDataset:
    generator = torch.Generator().manual_seed(13)
    signals = torch.randn(size, 4, 16, generator=generator)
    targets = signals.std(dim=2)[:, :2]
    return TensorDataset(signals, targets)


class Regressor(L.LightningModule):
    def __init__(self, learning_rate: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(
            nn.Conv1d(4, 12, 3, padding=1),
            nn.BatchNorm1d(12),
            nn.ReLU(),
            nn.Conv1d(12, 12, 3, padding=1),
            nn.BatchNorm1d(12),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(24, 2)
        self.criterion = nn.MSELoss()

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(signals))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        signals, targets = batch
        return self.criterion(self(signals), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.hparams["learning_rate"], momentum=0.9)


if __name__ == "__main__":
    L.seed_everything(42, workers=True)
    loader = DataLoader(make_dataset(), batch_size=BATCH_SIZE // WORLD_SIZE, shuffle=True, drop_last=True)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=WORLD_SIZE,
        strategy="ddp",
        max_epochs=2,
        deterministic=True,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regressor(learning_rate=0.05), loader)
