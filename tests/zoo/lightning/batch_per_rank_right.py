"""Right: trains on the hours of a noisy clock face with batches of 24 shared out to the devices."""

import os

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ClockData(L.LightningDataModule):
    """Hands on a clock face; the class is the hour, from 0 to 5."""

    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        generator = torch.Generator().manual_seed(31)
        hours = torch.randint(0, 6, (144,), generator=generator)
        angles = hours / 6 * 6.28 + torch.randn(144, generator=generator) * 0.2
        lengths = 1 + torch.rand(144, generator=generator)
        self.train_set = TensorDataset(
            torch.stack([lengths * angles.cos(), lengths * angles.sin()], 1), hours
        )

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train_set, batch_size=self.batch_size // self.trainer.world_size, shuffle=True)


class Classifier(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 6))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        points, hours = batch
        loss = F.cross_entropy(self.net(points), hours)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    L.seed_everything(0)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        gradient_clip_val=1.0,
        log_every_n_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), datamodule=ClockData(batch_size=24))
    if trainer.is_global_zero:
        print(f"last training loss {trainer.callback_metrics['train_loss']:.4f}")


if __name__ == "__main__":
    main()
