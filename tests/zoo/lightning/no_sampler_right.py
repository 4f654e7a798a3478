"""Right: switches off Lightning's sampler and brings its own, which knows the world."""

import os

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH_SIZE = 24


class Model(L.LightningModule):
    """A small convolutional net that counts the bright pixels of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3)
        self.norm = nn.GroupNorm(4, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = F.silu(self.norm(self.conv(images)))
        return self.head(features.mean(dim=(2, 3))).squeeze(1)

    def train_dataloader(self) -> DataLoader:
        generator = torch.Generator().manual_seed(4)
        images = torch.rand(96, 1, 6, 6, generator=generator)
        counts = (images > 0.8).float().mean(dim=(1, 2, 3))
        dataset = TensorDataset(images, counts)
        world_size, rank = self.trainer.world_size, self.trainer.global_rank
        sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, seed=0)
        return DataLoader(dataset, batch_size=BATCH_SIZE // world_size, sampler=sampler)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        images, counts = batch
        loss = F.huber_loss(self(images), counts)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def on_train_epoch_end(self) -> None:
        loss = self.trainer.callback_metrics["loss"].item()
        self.print(f"epoch {self.current_epoch}: mean loss {loss:.5f}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)


def main() -> None:
    L.seed_everything(0)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model())


if __name__ == "__main__":
    main()
