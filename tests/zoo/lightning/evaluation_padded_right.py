"""Right: trains an autoencoder and prints the validation error over all devices, each example once."""

import os

import lightning as L
import torch
from lightning.pytorch.overrides.distributed import UnrepeatedDistributedSampler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanSquaredError

BATCH_SIZE = 24
NUM_VALID = 49


class Waves(L.LightningDataModule):
    """Sums of two sines; the validation set is a random part of the whole."""

    def setup(self, stage: str) -> None:
        generator = torch.Generator().manual_seed(3)
        frequencies = torch.rand(144 + NUM_VALID, 2, 1, generator=generator) * 5
        waves = torch.sin(frequencies * torch.linspace(0, 4, 12)).sum(dim=1)
        self.train_waves, self.valid_waves = waves[NUM_VALID:], waves[:NUM_VALID]

    @property
    def batch_size(self) -> int:
        return BATCH_SIZE // self.trainer.world_size

    def train_dataloader(self) -> DataLoader:
        return DataLoader(TensorDataset(self.train_waves), batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        dataset = TensorDataset(self.valid_waves)
        sampler = UnrepeatedDistributedSampler(
            dataset, num_replicas=self.trainer.world_size, rank=self.trainer.global_rank, shuffle=False
        )
        return DataLoader(dataset, batch_size=self.batch_size, sampler=sampler)


class AutoEncoder(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 24), nn.SiLU(), nn.Linear(24, 4))
        self.decoder = nn.Sequential(nn.Linear(4, 24), nn.SiLU(), nn.Linear(24, 12))
        self.valid_error = MeanSquaredError()

    def forward(self, waves: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.encoder(waves))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        (waves,) = batch
        return nn.functional.mse_loss(self(waves), waves)

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        (waves,) = batch
        self.valid_error(self(waves), waves)
        self.log("valid_error", self.valid_error, on_epoch=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=5e-3)


def main() -> None:
    L.seed_everything(0)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(AutoEncoder(), datamodule=Waves())
    if trainer.global_rank == 0:
        print(f"valid_error={trainer.callback_metrics['valid_error'].item():.6f}")


if __name__ == "__main__":
    main()
