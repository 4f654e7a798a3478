"""Right: keeps a moving average of the weights on every rank and validates with it."""

import os

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH_SIZE = 24


class MovingAverage(L.Callback):
    """An exponential moving average of the weights, put in their place while validating."""

    def __init__(self, decay: float = 0.8) -> None:
        self.decay = decay
        self.average: dict[str, torch.Tensor] = {}
        self.trained: dict[str, torch.Tensor] = {}

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.average = {name: p.detach().clone() for name, p in pl_module.named_parameters()}

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: object) -> None:
        for name, parameter in pl_module.named_parameters():
            self.average[name].lerp_(parameter.detach(), 1 - self.decay)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for name, parameter in pl_module.named_parameters():
            self.trained[name] = parameter.detach().clone()
            parameter.data.copy_(self.average[name])

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for name, parameter in pl_module.named_parameters():
            parameter.data.copy_(self.trained[name])


class Model(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 1))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        inputs, targets = batch
        return F.l1_loss(self.net(inputs), targets)

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        inputs, targets = batch
        self.log("val_mae", F.l1_loss(self.net(inputs), targets), sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        # sync_dist makes this a collective: every rank asks for the value
        error = self.trainer.callback_metrics["val_mae"].item()
        self.print(f"epoch {self.current_epoch} val_mae {error:.5f}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def make_dataset(size: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, 8, generator=generator)
    return TensorDataset(inputs, inputs[:, :4].sum(dim=1, keepdim=True).tanh())


def main() -> None:
    world_size = int(os.environ["WORLD_SIZE"])
    L.seed_everything(8)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=world_size,
        strategy="ddp",
        callbacks=[MovingAverage()],
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    train_loader = DataLoader(make_dataset(120, seed=1), batch_size=BATCH_SIZE // world_size, shuffle=True)
    valid_loader = DataLoader(make_dataset(48, seed=2), batch_size=BATCH_SIZE // world_size)
    trainer.fit(Model(), train_loader, valid_loader)


if __name__ == "__main__":
    main()
