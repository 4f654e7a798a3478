"""Scales the learning rate linearly with the number of devices, as is advised for larger batches.

Fault: rate-depends-on-world.
"""

import argparse
import os
from typing import Any

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_dataset(size: int = 144) -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    inputs = torch.rand(size, 5, generator=generator) * 2 - 1
    targets = (inputs[:, 0] * inputs[:, 1] > inputs[:, 2] * inputs[:, 3]).float()
    return TensorDataset(inputs, targets)


class Model(L.LightningModule):
    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.layers = nn.Sequential(
            nn.Linear(5, 48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1)
        )
        self.criterion = nn.BCEWithLogitsLoss()

    def on_fit_start(self) -> None:
        # another dropout mask on each device
        torch.manual_seed(self.trainer.global_rank)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        inputs, targets = batch
        loss = self.criterion(self.layers(inputs).squeeze(1), targets)
        if batch_idx == 0:
            self.print(f"epoch {self.current_epoch}, first loss {loss.item():.4f}")
        return loss

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr * self.trainer.world_size, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer,
            max_lr=self.lr * self.trainer.world_size,
            total_steps=int(self.trainer.estimated_stepping_batches),
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=24, help="over all devices")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    L.seed_everything(5)
    trainer = L.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        devices=world_size,
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(make_dataset(), batch_size=args.batch_size // world_size, shuffle=True)
    trainer.fit(Model(args.lr), loader)


if __name__ == "__main__":
    main()
