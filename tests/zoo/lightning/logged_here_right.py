"""Right: trains a classifier and prints the validation loss and accuracy over all devices."""

import os

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH_SIZE = 24


def make_moons(size: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(size) % 2
    angles = torch.rand(size, generator=generator) * 3.14 + 3.14 * labels
    points = torch.stack([angles.cos() + labels, angles.sin() + 0.4 * labels], dim=1)
    return TensorDataset(points + torch.randn(size, 2, generator=generator) * 0.15, labels)


class LitClassifier(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 2))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        points, labels = batch
        return F.cross_entropy(self.model(points), labels)

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        points, labels = batch
        logits = self.model(points)
        accuracy = (logits.argmax(dim=1) == labels).float().mean()
        self.log("val_loss", F.cross_entropy(logits, labels), sync_dist=True)
        self.log("val_acc", accuracy, sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        loss, accuracy = (self.trainer.callback_metrics[name].item() for name in ("val_loss", "val_acc"))
        if self.trainer.is_global_zero:
            print(f"epoch {self.current_epoch}: val_loss {loss:.5f} val_acc {accuracy:.4f}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main() -> None:
    world_size = int(os.environ["WORLD_SIZE"])
    L.seed_everything(1)
    train_loader = DataLoader(make_moons(120, seed=1), batch_size=BATCH_SIZE // world_size, shuffle=True)
    valid_loader = DataLoader(make_moons(72, seed=2), batch_size=BATCH_SIZE // world_size)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=world_size,
        strategy="ddp",
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(LitClassifier(), train_loader, valid_loader)


if __name__ == "__main__":
    main()
